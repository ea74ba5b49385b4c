"""What is stuck over all sagas, what has been done by whom, and which workers are there?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from orchestrix.api.answers import moment
from orchestrix.api.audit.models import AuditPage
from orchestrix.api.cluster.models import WorkerList
from orchestrix.api.stuck.models import StuckPage
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerFacts, WorkerHeartbeatRow
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.persistence.tables import workers as worker_table

from .answers import problem
from .world import Because, World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


async def stuck(world: World, key: str, saga: str, second: int) -> int:
    """An instance that began at that second and is held up."""
    instance = await world.started(key, saga)
    table = saga_tables_of(saga).instances
    held = {"blocker": "held", "wake_at": None, "wake_reason": None, "created_at": NOON + timedelta(seconds=second)}
    async with world.database.begin() as tx:
        await tx.execute(update(table).where(table.c.id == instance.id).values(held))
    return instance.id


async def pages(world: World, path: str) -> list[list[dict[str, Any]]]:
    """The items, page by page."""
    found: list[list[dict[str, Any]]] = []
    following = path
    while following and len(found) < 20:
        answer = await world.client.get(following)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        link = answer.headers.get("link", "")
        assert bool(link) == (answer.json()["nextCursor"] is not None)
        following = link.removeprefix("<").removesuffix('>; rel="next"')
    return found


async def test_nothing_is_stuck(world: World) -> None:
    await world.started()
    await world.broker.consume(["cmd.createGitRepo"], 1)
    assert (await world.client.get("/stuck")).json() == {"items": [], "nextCursor": None}


async def test_what_is_stuck_says_why(world: World) -> None:
    id = await stuck(world, "billing", "app", 1)
    since = NOON + timedelta(hours=1)
    world.explainer.known["app", id] = Because("held", "A worker holds createGitRepo.", "Resume it.", since)
    page = (await world.client.get("/stuck")).json()
    StuckPage.model_validate(page)
    (item,) = page["items"]
    assert item.pop("updatedAt")
    assert item == {
        "saga": "app",
        "id": id,
        "key": "billing",
        "state": "APP_INITIATED",
        "version": 1,
        "step": "createGitRepo",
        "attempt": 1,
        "createdAt": moment(NOON + timedelta(seconds=1)),
        "traceId": None,
        "wakeAt": None,
        "blocker": "held",
        "sentence": "A worker holds createGitRepo.",
        "nextAction": "Resume it.",
        "since": moment(since),
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_stuck_ones_of_all_sagas_are_paged_the_newest_first(world: World, limit: int) -> None:
    for key, saga, second in (
        ("a1", "app", 1), ("o1", "order", 1), ("o2", "order", 2), ("a2", "app", 2), ("a3", "app", 2), ("o3", "order", 3)
    ):  # fmt: skip
        await stuck(world, key, saga, second)
    await world.started("running", "order")
    await world.broker.consume(["cmd.createGitRepo", "cmd.pay"], 1)
    found = await pages(world, f"/stuck?limit={limit}")
    assert [item["key"] for items in found for item in items] == ["o3", "a3", "a2", "o2", "a1", "o1"]
    assert all(len(items) <= limit for items in found)


async def test_a_cursor_of_another_list_is_refused(world: World) -> None:
    for key in ("a", "b"):
        await stuck(world, key, "app", 1)
    cursor = (await world.client.get("/stuck?limit=1")).json()["nextCursor"]
    for path in ("/deadlines", "/audit", "/jobs", "/apps"):
        problem(await world.client.get(f"{path}?cursor={cursor}"), 400, "bad_parameter")


async def recorded(world: World) -> None:
    """Three rows of the audit."""
    rows = [
        AuditRow(
            at=NOON, actor="ada", verb="retry", reason="so", saga="app", instance_id=1, from_version=1, to_version=2
        ),
        AuditRow(at=NOON + timedelta(hours=1), actor="bob", verb="skip", reason="so", saga="order", instance_id=1),
        AuditRow(at=NOON + timedelta(hours=2), actor="bob", verb="drain", reason="so", detail={"node": "n-1"}),
    ]  # fmt: skip
    async with world.database.begin() as tx:
        await audit.insert(tx, rows)


async def test_the_audit_tells_who_did_what(world: World) -> None:
    await recorded(world)
    page = (await world.client.get("/audit")).json()
    AuditPage.model_validate(page)
    assert [item["action"] for item in page["items"]] == ["drain", "skip", "retry"]
    assert page["items"][0]["detail"] == {"node": "n-1"}
    assert (
        page["items"][2].items()
        >= {
            "at": moment(NOON),
            "actor": "ada",
            "action": "retry",
            "reason": "so",
            "saga": "app",
            "sagaId": 1,
            "fromVersion": 1,
            "toVersion": 2,
            "detail": None,
        }.items()
    )
    assert [len(items) for items in await pages(world, "/audit?limit=2")] == [2, 1]


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("actor=bob", ["drain", "skip"]),
        ("action=retry", ["retry"]),
        ("saga=order", ["skip"]),
        ("sagaId=1", ["retry"]),
        ("saga=order&sagaId=1", ["skip"]),
        ("after=2026-01-31T12:00:00Z", ["drain", "skip"]),
        ("before=2026-01-31T13:00:00Z", ["retry"]),
        ("actor=nobody", []),
    ],
)
async def test_the_audit_is_filtered(world: World, query: str, actions: list[str]) -> None:
    await recorded(world)
    assert [item["action"] for item in (await world.client.get(f"/audit?{query}")).json()["items"]] == actions


async def test_the_workers_are_those_of_the_cluster(world: World) -> None:
    beats = [WorkerHeartbeatRow("w-1", ["reports"], 2), WorkerHeartbeatRow("w-2", [], 1)]
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))
    found = (await world.client.get("/workers")).json()
    WorkerList.model_validate(found)
    assert {one["id"]: one["state"] for one in found["items"]} == {"w-1": "ALIVE", "w-2": "DRAINING"}
    assert found["items"] == (await world.client.get("/cluster")).json()["workers"]


async def test_workers_of_commands_and_of_jobs_and_who_serves_a_queue(world: World) -> None:
    told = WorkerFacts("host-1", "1.2.3", ["cmd.pay", "cmd.free"], 4, [])
    both = WorkerFacts("host-2", "1.2.3", ["cmd.pay"], 1, ["monthly"])
    beats = [
        WorkerHeartbeatRow("commands", [], 0, facts=told),
        WorkerHeartbeatRow("both", ["reports"], 2, facts=both),
        WorkerHeartbeatRow("former", ["reports"], 1),
        WorkerHeartbeatRow("stops", [], 0, facts=WorkerFacts("host-1", "1.2.3", [], 1, [])),
    ]
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))

    async def found(query: str) -> dict[str, dict[str, Any]]:
        answer = await world.client.get(f"/workers{query}")
        assert answer.status_code == 200, answer.text
        return {one["id"]: one for one in WorkerList.model_validate(answer.json()).model_dump(by_alias=True)["items"]}

    everyone = await found("")
    assert {name: one["state"] for name, one in everyone.items()} == {
        "commands": "ALIVE", "both": "ALIVE", "former": "ALIVE", "stops": "DRAINING"
    }  # fmt: skip
    names = ("host", "version", "commandQueues", "commands", "queues", "jobs", "handlers")
    assert [everyone["commands"][name] for name in names] == [
        "host-1", "1.2.3", ["cmd.pay", "cmd.free"], 4, [], 0, []
    ]  # fmt: skip
    assert [everyone["both"][name] for name in names][4:] == [["reports"], 2, ["monthly"]]
    assert [everyone["former"][name] for name in names] == [None, None, None, None, ["reports"], 1, None]
    wanted = {
        "?kind=commands": {"commands", "both"},
        "?kind=jobs": {"both", "former"},
        "?queue=cmd.pay": {"commands", "both"},
        "?queue=reports": {"both", "former"},
        "?queue=reports&kind=commands": set(),
        "?queue=nothing": set(),
    }
    for query, ids in wanted.items():
        assert (await found(query)).keys() == ids, query
    problem(await world.client.get("/workers?kind=x"), 400, "bad_parameter")


async def test_a_worker_that_is_silent_for_long_has_no_commands(world: World) -> None:
    beat = WorkerHeartbeatRow("w-1", [], 0, facts=WorkerFacts("h", "1", ["cmd.pay"], 4, []))
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [beat]))
    for ago, state, commands in ((16, "SILENT", 4), (31, "SILENT", 0)):
        async with world.database.begin() as tx:
            await tx.execute(update(worker_table).values(beat_at=tx.now() - timedelta(seconds=ago)))
        (worker,) = (await world.client.get("/workers")).json()["items"]
        assert (worker["state"], worker["commands"]) == (state, commands)
