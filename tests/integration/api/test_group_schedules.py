"""What does the API do with schedules whose jobs are for a group of executors?"""

from __future__ import annotations

from typing import Any, Final

import pytest

from orchestrix.api.schedules.models import ScheduleBody
from orchestrix.domain.nodes import FEATURE_LEVEL
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.jobs import schedules

from .answers import problem
from .test_group_jobs import GROUP, billing, columns, grouped
from .world import World

__all__ = ["billing"]
JOB: Final = {"group": GROUP, "handler": "monthly"}
BODY: Final = {"name": "hourly", "interval": "1h", "job": JOB}
PATH: Final = "/schedules/hourly"


async def made(world: World, **job: Any) -> dict[str, Any]:
    """A schedule whose job has these fields too."""
    answer = await world.client.post("/schedules", json={**BODY, "job": {**JOB, **job}})
    assert answer.status_code == 201, answer.text
    ScheduleBody.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


async def changed(world: World, **job: Any) -> dict[str, Any]:
    """Its job after that change."""
    answer = await world.client.patch(PATH, json={"job": job})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["job"]
    return found


def routing(strategy: str = "ROUND_ROBIN", **more: Any) -> dict[str, Any]:
    """How the executor is picked, as it is shown."""
    return {"strategy": strategy, "key": None, "address": None, "end": None, **more}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, routing()),
        ({"strategy": "CONSISTENT_HASH", "key": "eu"}, routing("CONSISTENT_HASH", key="eu")),
        (
            {"strategy": "ADDRESS", "address": "HTTP://Exec-1:80"},
            routing("ADDRESS", address="http://exec-1:80"),
        ),
        ({"strategy": "SHARDING_BROADCAST"}, routing("SHARDING_BROADCAST", end="all")),
        ({"strategy": "SHARDING_BROADCAST", "end": "any"}, routing("SHARDING_BROADCAST", end="any")),
    ],
)
async def test_its_jobs_are_for_the_group(billing: World, given: Any, shown: dict[str, Any]) -> None:
    one = await made(billing, **({"routing": given} if given else {}))
    assert one["job"] == {
        "queue": None,
        "group": GROUP,
        "routing": shown,
        "handler": "monthly",
        "payload": {},
        "timeoutMs": 3_600_000,
        "retries": 0,
    }
    assert (await billing.client.get(PATH)).json() == one
    run = (await billing.client.post(f"{PATH}/run")).json()
    key = shown["key"] or one["id"]
    assert (run["group"], run["routing"], run["scheduleId"]) == (GROUP, {**shown, "key": key}, one["id"])
    stored = (None, GROUP, shown["strategy"], key, shown["address"], shown["end"])
    assert await columns(billing, run["id"]) == stored


@pytest.mark.parametrize(
    ("job", "pointer", "detail"),
    [
        ({"group": None}, "/job/queue", "is missing: name the queue of workers, or a group of executors instead"),
        ({"queue": "q"}, "/job/group", "must not be given beside a queue: name one of both"),
        ({"group": None, "queue": "q", "routing": {}}, "/job/routing", "has no use with a queue: leave it out"),
        ({"group": "nobody"}, "/job/group", "names no executor group: make it with `orchestrix registry set nobody"),
        ({"group": " shop"}, "/job/group", "must not begin or end with white space"),
        ({"routing": {"strategy": "ADDRESS"}}, "/job/routing/address", "is required with strategy ADDRESS"),
        ({"routing": {"end": "any"}}, "/job/routing/end", "has no use with strategy ROUND_ROBIN"),
        ({"routing": {"strategy": "HASH"}}, "/job/routing/strategy", "must be one of FIRST, LAST, ROUND_ROBIN"),
        ({"routing": {"colour": 1}}, "/job/routing/colour", "is not known here; known are strategy"),
    ],
)
@pytest.mark.parametrize("there", [False, True], ids=["made", "changed"])
async def test_what_is_wrong_is_said_with_what_to_do(
    billing: World, there: bool, job: dict[str, Any], pointer: str, detail: str
) -> None:
    wanted = {name: value for name, value in {**JOB, **job}.items() if value is not None}
    if there and pointer != "/job/queue":
        await made(billing)
        answer = await billing.client.patch(PATH, json={"job": wanted})
    else:
        answer = await billing.client.post("/schedules", json={**BODY, "job": wanted})
    [error] = problem(answer, 422, "invalid_body")["errors"]
    assert (error["pointer"], detail in error["detail"]) == (pointer, True), error
    found = (await billing.client.get("/schedules")).json()["items"]
    assert [one["version"] for one in found] == ([1] if there and pointer != "/job/queue" else [])


async def test_a_queue_and_a_group_take_each_others_place(billing: World) -> None:
    await made(billing, routing={"strategy": "CONSISTENT_HASH", "key": "eu"}, timeout="5m")
    await grouped(billing, "other")
    hashed = routing("CONSISTENT_HASH", key="eu")
    job = await changed(billing, handler="weekly")
    assert (job["group"], job["routing"], job["handler"]) == (GROUP, hashed, "weekly")
    job = await changed(billing, group="other")
    assert (job["group"], job["routing"], job["timeoutMs"]) == ("other", hashed, 300_000), "the routing stays"
    job = await changed(billing, routing={"strategy": "FAILOVER"})
    assert (job["group"], job["routing"]) == ("other", routing("FAILOVER"))
    job = await changed(billing, timeout=None)
    assert job["timeoutMs"] == 3_600_000
    job = await changed(billing, queue="reports")
    assert (job["queue"], job["group"], job["routing"]) == ("reports", None, None)
    run = (await billing.client.post(f"{PATH}/run")).json()
    assert await columns(billing, run["id"]) == ("reports", None, None, None, None, None)
    answer = await billing.client.patch(PATH, json={"job": {"routing": {"strategy": "FIRST"}}})
    [error] = problem(answer, 422, "invalid_body")["errors"]
    assert error["pointer"] == "/job/routing"
    job = await changed(billing, timeout=None)
    assert job["timeoutMs"] is None
    job = await changed(billing, group=GROUP)
    assert (job["queue"], job["group"], job["routing"], job["timeoutMs"]) == (None, GROUP, routing(), 3_600_000)
    for name in ("group", "routing"):
        answer = await billing.client.patch(PATH, json={"job": {name: None}})
        assert "must have a value for" in problem(answer, 422, "invalid_body")["errors"][0]["detail"]


async def test_a_template_without_a_group_is_stored_as_before(billing: World) -> None:
    """Nodes of the former release read it."""
    await made(billing, group=None, queue="reports", timeout="5m")
    await made_with(billing, "other")
    async with billing.database.read() as connection:
        found = await schedules.get(connection, "hourly")
    assert found is not None
    assert found.job == {
        "queue": "reports",
        "handler": "monthly",
        "payload": {},
        "retries": 0,
        "timeout_ms": 300_000,
    }


async def made_with(world: World, name: str) -> None:
    """Another one, for the group."""
    assert (await world.client.post("/schedules", json={**BODY, "name": name})).status_code == 201


async def test_a_node_that_is_too_old_holds_them_up(billing: World) -> None:
    database = billing.database
    await made(billing)
    await database.run(lambda tx: nodes.join(tx, "new-1", "new", [], None, "9.9.9", FEATURE_LEVEL))
    await database.run(lambda tx: nodes.join(tx, "old-1", "old", ["coordinator"], None, "0.9.0"))
    queued = {**BODY, "name": "queued", "job": {"queue": "reports", "handler": "monthly"}}
    assert (await billing.client.post("/schedules", json=queued)).status_code == 201
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    answers = [
        await billing.client.post("/schedules", json={**BODY, "name": "other"}),
        await billing.client.patch("/schedules/queued", json={"job": {"group": GROUP}}),
        await billing.client.post(f"{PATH}/run"),
    ]
    for answer in answers:
        assert "old (0.9.0)" in problem(answer, 503, "mixed_versions")["detail"]
        assert int(answer.headers["retry-after"]) > 0
    assert (await billing.client.post(f"{PATH}/backfill", json=span)).status_code == 200, "it has no due time there"
    assert (await billing.client.patch(PATH, json={"overlap": "queue"})).status_code == 200
    await database.run(lambda tx: nodes.leave(tx, "old-1"))
    assert (await billing.client.post("/schedules", json={**BODY, "name": "other"})).status_code == 201
