"""Does every node tell the same of the cluster: who leads, who is there, and how the lead changed hands?"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import update

from orchestrix.api.cluster.models import ClusterBody
from orchestrix.domain.leases import Candidacy, Fence, LeaderMode
from orchestrix.domain.nodes import NodeState
from orchestrix.persistence.cluster import leases, nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.tables import leases as lease_table
from orchestrix.persistence.tables import workers as worker_table

from .answers import problem
from .world import World


async def asked(world: World) -> dict[str, Any]:
    answer = await world.client.get("/cluster")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    ClusterBody.model_validate(body)
    return body


async def led(world: World, node_id: str, mode: LeaderMode = LeaderMode.BROKER, noticed: float = 0.0) -> Fence:
    bid = Candidacy(node_id, mode, by_token=True)
    fence = await world.database.run(lambda tx: leases.campaign(tx, bid, 30.0, noticed))
    assert fence is not None
    await world.database.run(lambda tx: leases.record_first_write(tx, fence))
    return fence


async def test_before_anything_there_is_nobody(world: World) -> None:
    assert await asked(world) == {
        "leader": None,
        "term": 0,
        "mode": None,
        "lease": None,
        "nodes": [],
        "workers": [],
        "handovers": [],
    }


async def test_the_leader_its_term_and_its_lease(world: World) -> None:
    await led(world, "a-1")
    found = await asked(world)
    assert (found["leader"], found["term"], found["mode"]) == ("a-1", 1, "broker")
    until, gained = (datetime.fromisoformat(found["lease"][name]) for name in ("until", "gainedAt"))
    assert until - gained == timedelta(seconds=30)
    assert found["lease"]["resignedAt"] is None


async def test_nobody_leads_when_the_lease_is_over(world: World) -> None:
    fence = await led(world, "a-1", LeaderMode.BROKERLESS)
    assert (await asked(world))["mode"] == "alone"
    await world.database.run(lambda tx: leases.resign(tx, fence))
    found = await asked(world)
    assert (found["leader"], found["term"], found["mode"]) == (None, 1, None)
    assert found["lease"]["resignedAt"] is not None


async def test_nobody_leads_when_the_lease_was_not_renewed(world: World) -> None:
    await led(world, "a-1")
    async with world.database.begin() as tx:
        await tx.execute(update(lease_table).values(lease_until=tx.now() - timedelta(seconds=1)))
    assert (await asked(world))["leader"] is None


async def test_nodes_with_their_states_and_loads(world: World) -> None:
    await world.database.run(lambda tx: nodes.join(tx, "a-1", "a", ["coordinator", "api"], "host-a", "0.1.0"))
    await world.database.run(lambda tx: nodes.join(tx, "b-1", "b", ["coordinator", "api"]))
    await world.database.run(lambda tx: nodes.record_heartbeat(tx, "b-1", NodeState.DRAINING, 12))
    await led(world, "a-1")
    first, second = (await asked(world))["nodes"]
    assert {**first, "startedAt": None, "beatAt": None} == {
        "id": "a-1",
        "name": "a",
        "state": "ALIVE",
        "isLeader": True,
        "roles": ["api", "coordinator"],
        "jobCount": 0,
        "startedAt": None,
        "beatAt": None,
        "endedAt": None,
        "host": "host-a",
        "version": "0.1.0",
    }
    assert (second["state"], second["isLeader"], second["jobCount"]) == ("DRAINING", False, 12)
    assert (second["host"], second["version"]) == (None, None), "one of a former release does not tell"


async def test_a_node_is_drained_by_its_name_too_where_only_one_has_it(world: World) -> None:
    for node, name in (("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("b-2", "b")):
        await world.database.run(lambda tx, node=node, name=name: nodes.join(tx, node, name, []))  # type: ignore[misc]
    await world.database.run(lambda tx: nodes.leave(tx, "b-1"))
    answer = await world.client.post("/cluster/nodes/b/drain")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, "b-2", "DRAINING")
    twice = problem(await world.client.post("/cluster/nodes/a/drain"), 409, "illegal_transition")
    assert twice["detail"] == "2 nodes are named a; give the id of one: a-1, a-2."
    unknown = problem(await world.client.post("/cluster/nodes/c/drain"), 404, "not_found")
    assert "`orchestrix cluster status` lists the ids" in unknown["detail"]
    assert [one["state"] for one in (await asked(world))["nodes"]] == ["ALIVE", "ALIVE", "DRAINING", "LEFT"]


async def test_workers_as_they_said_themselves(world: World) -> None:
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", ["reports"], 3)]))
    (worker,) = (await asked(world))["workers"]
    assert (worker["id"], worker["state"], worker["queues"], worker["jobs"]) == ("w-1", "ALIVE", ["reports"], 3)
    assert worker["lostPlaces"] == 0
    beat = WorkerHeartbeatRow("w-1", ["reports"], 3, lost_places=2)
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [beat]))
    (worker,) = (await asked(world))["workers"]
    assert worker["lostPlaces"] == 2


async def test_a_worker_that_ends_is_draining_until_it_is_silent(world: World) -> None:
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", [], 3)]))
    (worker,) = (await asked(world))["workers"]
    assert (worker["state"], worker["queues"], worker["jobs"]) == ("DRAINING", [], 3)
    await unheard_for(world, 16)
    (worker,) = (await asked(world))["workers"]
    assert worker["state"] == "SILENT"


async def unheard_for(world: World, seconds: float) -> None:
    """No worker has said anything for so long."""
    async with world.database.begin() as tx:
        await tx.execute(update(worker_table).values(beat_at=tx.now() - timedelta(seconds=seconds)))


async def test_a_worker_is_silent_before_its_jobs_are_lost_and_has_them_until_then(world: World) -> None:
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", ["reports"], 3)]))
    for ago, state, jobs in ((8, "ALIVE", 3), (16, "SILENT", 3), (31, "SILENT", 0)):
        await unheard_for(world, ago)
        (worker,) = (await asked(world))["workers"]
        assert (worker["state"], worker["jobs"]) == (state, jobs)


async def test_a_silent_worker_has_no_jobs_and_is_shown_for_a_while(world: World) -> None:
    beats = [WorkerHeartbeatRow(id, ["reports"], 3) for id in ("w-1", "w-2")]
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))
    for id, ago in (("w-1", 31), ("w-2", 601)):
        async with world.database.begin() as tx:
            at = tx.now() - timedelta(seconds=ago)
            await tx.execute(update(worker_table).where(worker_table.c.id == id).values(beat_at=at))
    (worker,) = (await asked(world))["workers"]
    assert (worker["id"], worker["state"], worker["jobs"]) == ("w-1", "SILENT", 0)


async def test_handovers_with_their_times_the_newest_first(world: World) -> None:
    await led(world, "a-1")
    await led(world, "b-1", noticed=0.25)
    second, first = (await asked(world))["handovers"]
    assert (first["term"], first["from"], first["to"], first["reason"]) == (1, None, "a-1", "first")
    assert (second["term"], second["from"], second["to"], second["reason"]) == (2, "a-1", "b-1", "lost")
    began, gained, ended = (datetime.fromisoformat(second[name]) for name in ("beganAt", "gainedAt", "endedAt"))
    assert gained - began == timedelta(seconds=0.25)
    assert ended >= gained
    assert 250 <= second["tookMs"] < 5000


async def test_it_takes_no_parameters(world: World) -> None:
    problem(await world.client.get("/cluster?all=1"), 400, "bad_parameter")
