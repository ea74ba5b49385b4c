"""Do rows of nodes say who lives, and does only a leader in office say who does not?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, update

from orchestrix.domain.leases import Candidacy, Fence, LeaderMode
from orchestrix.domain.nodes import NodeRow, NodeState
from orchestrix.errors import StaleTermError
from orchestrix.persistence.cluster import leases, nodes
from orchestrix.persistence.cluster.nodes import UNTOLD, WorkerFacts, WorkerHeartbeatRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.tables import nodes as table
from orchestrix.persistence.tables import workers

ROLES = ("coordinator", "api")
DAY = 86_400.0


async def join(database: Database, node_id: str) -> bool:
    return await database.run(lambda tx: nodes.join(tx, node_id, node_id[0], ROLES))


async def beat(database: Database, node_id: str, state: NodeState = NodeState.ALIVE, jobs: int = 0) -> bool:
    return await database.run(lambda tx: nodes.record_heartbeat(tx, node_id, state, jobs))


async def leader(database: Database, node_id: str = "l-1") -> Fence:
    bid = Candidacy(node_id, LeaderMode.BROKER, by_token=True)
    fence = await database.run(lambda tx: leases.campaign(tx, bid, 30.0))
    assert fence is not None
    return fence


async def declare(database: Database, fence: Fence, node: NodeRow) -> bool:
    return await database.run(lambda tx: nodes.declare_dead(tx, fence, node.id, node.beat_at))


async def living(database: Database) -> dict[str, NodeRow]:
    async with database.read() as connection:
        return {node.id: node for node in (await nodes.living(connection)).nodes}


async def listed(database: Database) -> list[NodeRow]:
    async with database.read() as connection:
        return await nodes.listed(connection, 100)


async def aged(database: Database, node_id: str, seconds: float) -> None:
    """The node's last beat was so long ago."""
    async with database.begin() as tx:
        changed = update(table).where(table.c.id == node_id)
        await tx.execute(changed.values(beat_at=tx.now() - timedelta(seconds=seconds)))


async def test_a_node_joins_once(database: Database) -> None:
    assert await join(database, "a-1")
    assert not await join(database, "a-1")
    (node,) = (await living(database)).values()
    assert (node.name, node.state, node.roles) == ("a", NodeState.ALIVE, ("api", "coordinator"))
    assert node.beat_at - node.started_at < timedelta(milliseconds=1)
    assert node.ended_at is None


async def test_a_node_whose_process_has_ended_is_dead_once_and_beats_no_more(database: Database) -> None:
    await join(database, "a-1")
    assert await database.run(lambda tx: nodes.found_ended(tx, "a-1"))
    (node,) = await listed(database)
    assert (node.state, node.job_count, node.ended_at is not None) == (NodeState.DEAD, 0, True)
    for unknown in ("a-1", "b-1"):
        assert not await database.run(lambda tx, id=unknown: nodes.found_ended(tx, id))  # type: ignore[misc]
    assert not await beat(database, "a-1")


@pytest.mark.req("S0-32")
async def test_a_beat_says_how_the_node_is(database: Database) -> None:
    await join(database, "a-1")
    before = (await living(database))["a-1"]
    assert await beat(database, "a-1", NodeState.DRAINING, 12)
    node = (await living(database))["a-1"]
    assert (node.state, node.job_count) == (NodeState.DRAINING, 12)
    assert node.beat_at > before.beat_at
    assert not await beat(database, "b-1"), "nobody knows it"


async def test_it_is_known_how_long_a_node_has_been_silent(database: Database) -> None:
    await join(database, "a-1")
    await aged(database, "a-1", 60)
    async with database.read() as connection:
        found = await nodes.living(connection)
    assert timedelta(seconds=59) < found.now - found.nodes[0].beat_at < timedelta(seconds=70)


@pytest.mark.req("S0-54")
async def test_who_was_declared_dead_beats_in_vain(database: Database) -> None:
    fence = await leader(database)
    await join(database, "a-1")
    await beat(database, "a-1", jobs=3)
    assert await declare(database, fence, (await living(database))["a-1"])
    assert await living(database) == {}
    assert not await beat(database, "a-1")
    assert not await join(database, "a-1")
    assert not await database.run(lambda tx: nodes.leave(tx, "a-1"))
    (node,) = await listed(database)
    assert (node.state, node.job_count) == (NodeState.DEAD, 0), "others have its jobs"
    assert node.ended_at is not None


async def test_a_beat_that_came_in_time_saves_a_node(database: Database) -> None:
    fence = await leader(database)
    await join(database, "a-1")
    as_seen = (await living(database))["a-1"]
    await beat(database, "a-1")
    assert not await declare(database, fence, as_seen)
    assert await beat(database, "a-1")


async def test_a_former_leader_declares_nobody_dead(database: Database) -> None:
    old = await leader(database)
    await join(database, "a-1")
    await leader(database, "m-1")
    with pytest.raises(StaleTermError):
        await declare(database, old, (await living(database))["a-1"])
    assert await beat(database, "a-1")


async def test_who_leaves_is_gone(database: Database) -> None:
    await join(database, "a-1")
    await beat(database, "a-1", jobs=3)
    assert await database.run(lambda tx: nodes.leave(tx, "a-1"))
    assert not await beat(database, "a-1")
    (node,) = await listed(database)
    assert (node.state, node.job_count) == (NodeState.LEFT, 0)
    assert node.ended_at is not None


async def test_the_living_are_listed_first(database: Database) -> None:
    for node_id in ("c-1", "b-1", "a-1"):
        await join(database, node_id)
    await join(database, "d-1")
    await database.run(lambda tx: nodes.leave(tx, "b-1"))
    fence = await leader(database)
    await declare(database, fence, (await living(database))["c-1"])
    found = await listed(database)
    assert [node.id for node in found] == ["a-1", "d-1", "c-1", "b-1"]
    async with database.read() as connection:
        assert len(await nodes.listed(connection, 2)) == 2


async def test_what_is_long_gone_is_forgotten(database: Database) -> None:
    fence = await leader(database)
    for node_id in ("a-1", "b-1", "c-1"):
        await join(database, node_id)
    await database.run(lambda tx: nodes.leave(tx, "a-1"))
    await database.run(lambda tx: nodes.leave(tx, "b-1"))
    await aged(database, "a-1", 2 * DAY)
    await aged(database, "c-1", 2 * DAY)
    async with database.begin() as tx:
        await _worker(tx, "w-1", 2 * DAY)
        await _worker(tx, "w-2", 10)
    await database.run(lambda tx: nodes.prune(tx, fence, DAY))
    assert {node.id for node in await listed(database)} == {"b-1", "c-1"}
    async with database.read() as connection:
        (worker,) = await nodes.listed_workers(connection, 10, 600.0)
    assert (worker.id, worker.queues, worker.jobs) == ("w-2", ["reports"], 1)
    await leader(database, "m-1")
    with pytest.raises(StaleTermError):
        await database.run(lambda tx: nodes.prune(tx, fence, 0.0))
    assert len(await listed(database)) == 2


async def test_workers_are_listed_until_they_leave_or_are_long_silent(database: Database) -> None:
    async with database.begin() as tx:
        for worker_id, ago in (("w-1", 700.0), ("w-2", 500.0), ("w-3", 1.0), ("w-4", 0.0)):
            await _worker(tx, worker_id, ago)
    await database.run(lambda tx: nodes.delete_workers(tx, {"w-3": None, "unknown": None}))
    async with database.read() as connection:
        assert [one.id for one in await nodes.listed_workers(connection, 10, 600.0)] == ["w-4", "w-2"]


async def test_a_late_word_that_a_worker_has_left_is_not_that_of_its_next_life(database: Database) -> None:
    left = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
    lives = {"again": timedelta(microseconds=1), "gone": timedelta(0), "timeless": None}
    beats = [WorkerHeartbeatRow(id, [], 0, None if later is None else left + later) for id, later in lives.items()]
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))
    await database.run(lambda tx: nodes.delete_workers(tx, dict.fromkeys(lives, left)))
    async with database.read() as connection:
        assert [one.id for one in await nodes.listed_workers(connection, 10, 600.0)] == ["again"]


async def _worker(tx: Transaction, worker_id: str, ago: float) -> None:
    at = tx.now() - timedelta(seconds=ago)
    row = {"id": worker_id, "queues": ["reports"], "jobs": 1, "started_at": at, "beat_at": at}
    await tx.execute(insert(workers).values(row))


async def test_a_node_tells_its_host_and_release_unless_it_is_of_a_former_one(database: Database) -> None:
    await database.run(lambda tx: nodes.join(tx, "a-1", "a", ROLES, "host-1", "1.2.3"))
    await join(database, "b-1")
    assert [(node.host, node.version) for node in await listed(database)] == [("host-1", "1.2.3"), (None, None)]


async def test_a_worker_is_as_its_latest_heartbeat_says(database: Database) -> None:
    told = WorkerFacts("höst", "1.2.3", ["cmd.a", "cmd.b"], 3, ["monthly"])
    for facts in (told, WorkerFacts("höst", "1.2.4", [], 0, []), UNTOLD):
        beat = WorkerHeartbeatRow("w-1", [], 0, facts=facts)
        await database.run(lambda tx, beat=beat: nodes.record_worker_heartbeats(tx, [beat]))  # type: ignore[misc]
        async with database.read() as connection:
            (worker,) = await nodes.listed_workers(connection, 10, 600.0)
        assert worker.facts == facts
        assert worker.command_queues == (facts.command_queues or ())


async def test_workers_that_tell_more_and_less_are_stored_together(database: Database) -> None:
    told = WorkerFacts("host-1", "1.2.3", ["cmd.a"], 3, [])
    beats = [WorkerHeartbeatRow("old", ["reports"], 1), WorkerHeartbeatRow("new", [], 0, facts=told, ago_s=7.0)]
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))
    async with database.read() as connection:
        old, new = await nodes.listed_workers(connection, 10, 600.0)
    assert (old.id, old.facts, new.id, new.facts) == ("old", UNTOLD, "new", told)
    assert old.beat_at - new.beat_at == timedelta(seconds=7), "it was received earlier than it is stored"
