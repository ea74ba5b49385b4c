"""What does the API do with jobs for a group of executors?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from orchestrix import clock
from orchestrix.api.jobs.models import JobBody, JobPage
from orchestrix.domain import jobs as rules
from orchestrix.domain.nodes import FEATURE_LEVEL
from orchestrix.domain.registry import executor_calls
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.registry import groups

from .answers import problem
from .test_jobs import changed
from .world import World

GROUP: Final = "billing"
BODY: Final = {"group": GROUP, "handler": "monthly"}
ADDRESS: Final = "http://10.0.0.7:9999"
STRATEGIES: Final = (
    "FIRST, LAST, ROUND_ROBIN, RANDOM, CONSISTENT_HASH, FAILOVER, SHARDING_BROADCAST, LEAST_LOADED, WEIGHTED, ADDRESS"
)


@pytest.fixture
async def billing(world: World) -> World:
    """An API with an executor group."""
    await grouped(world, GROUP)
    return world


async def grouped(world: World, name: str) -> None:
    """The app has a group."""
    await world.database.run(lambda tx: groups.set_addresses(tx, name, [ADDRESS], tx.now()))


async def submitted(world: World, **more: Any) -> dict[str, Any]:
    """A job for the group that was submitted."""
    answer = await world.client.post("/jobs", json={**BODY, **more})
    assert answer.status_code == 201, answer.text
    JobBody.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


async def refused(world: World, **fields: Any) -> list[tuple[str, str]]:
    """Where and how the body is wrong; no job is stored for it."""
    body = problem(await world.client.post("/jobs", json={"handler": "monthly", **fields}), 422, "invalid_body")
    assert (await world.client.get("/jobs")).json()["items"] == []
    return [(error["pointer"], error["detail"]) for error in body["errors"]]


async def columns(world: World, id: str) -> tuple[object, ...]:
    """The columns that say for whom a job is."""
    async with world.database.read() as connection:
        job = await jobs.get(connection, id)
    assert job is not None
    return job.queue, job.executor_group, job.routing, job.routing_key, job.routing_address, job.broadcast_end


@pytest.mark.parametrize(
    ("routing", "stored"),
    [
        (None, ("ROUND_ROBIN", None, None, None)),
        ({}, ("ROUND_ROBIN", None, None, None)),
        ({"key": "customer-7"}, ("ROUND_ROBIN", "customer-7", None, None)),
        ({"strategy": "CONSISTENT_HASH", "key": "customer-7"}, ("CONSISTENT_HASH", "customer-7", None, None)),
        ({"strategy": "ADDRESS", "address": "HTTP://Exec-1:80"}, ("ADDRESS", None, "http://exec-1:80", None)),
        ({"strategy": "SHARDING_BROADCAST"}, ("SHARDING_BROADCAST", None, None, "all")),
        ({"strategy": "SHARDING_BROADCAST", "end": "any"}, ("SHARDING_BROADCAST", None, None, "any")),
    ],
)
async def test_a_job_is_for_a_group(billing: World, routing: dict[str, Any] | None, stored: tuple[object, ...]) -> None:
    body = await submitted(billing, routing=routing)
    assert await columns(billing, body["id"]) == (None, GROUP, *stored)
    assert (body["queue"], body["group"], body["state"]) == (None, GROUP, "PENDING")
    assert billing.due == [None], "the leader hears of it"


@pytest.mark.parametrize(
    ("routing", "shown"),
    [
        (None, {"strategy": "ROUND_ROBIN", "key": None, "address": None, "end": None}),
        ({"strategy": "SHARDING_BROADCAST"}, {"strategy": "SHARDING_BROADCAST", "end": "all"}),
        ({"strategy": "ADDRESS", "address": ADDRESS, "key": "k"}, {"key": "k", "address": ADDRESS}),
    ],
)
async def test_a_job_shows_its_routing(billing: World, routing: dict[str, Any] | None, shown: dict[str, Any]) -> None:
    body = await submitted(billing, routing=routing)
    assert {name: body["routing"][name] for name in shown} == shown
    assert (await billing.client.get(f"/jobs/{body['id']}")).json()["routing"] == body["routing"]
    [item] = (await billing.client.get("/jobs")).json()["items"]
    assert item["routing"] == body["routing"]
    job = (await billing.client.post("/jobs", json={"queue": "q", "handler": "h"})).json()
    assert (job["group"], job["routing"]) == (None, None)


async def test_a_job_shows_where_its_attempts_were_called(billing: World) -> None:
    id = (await submitted(billing, retries=1))["id"]
    now = billing.database.now()
    await changed(billing, id, lambda job: rules.dispatched(job, clock.uuid7(), now))
    await changed(billing, id, lambda job: executor_calls.called(job, ADDRESS, now))
    lost = await changed(billing, id, lambda job: rules.ended(job, rules.WORKER_SILENT, now, 0.0))
    body = (await billing.client.get(f"/jobs/{id}")).json()
    [attempt] = body["attempts"]
    assert (attempt["address"], attempt["calledAt"] is not None, attempt["state"]) == (ADDRESS, True, "LOST")
    await changed(billing, id, lambda job: rules.dispatched(lost, clock.uuid7(), now))
    body = (await billing.client.get(f"/jobs/{id}")).json()
    assert (body["address"], body["calledAt"]) == (None, None)
    assert [one["address"] for one in body["attempts"]] == [ADDRESS, None]


async def test_lists_have_shards_of_broadcasts_only_where_they_are_asked_for(billing: World) -> None:
    parent, other = await submitted(billing, routing={"strategy": "SHARDING_BROADCAST"}), await submitted(billing)
    async with billing.database.begin() as tx:
        [row] = await jobs.of_ids(tx, [parent["id"]])
        parts = [replace(row, id=clock.uuid7(), parent_id=row.id, shard_index=n, shard_total=2) for n in range(2)]
        await jobs.insert(tx, parts)

    async def ids(query: str) -> list[str]:
        page = (await billing.client.get(f"/jobs?{query}")).json()
        JobPage.model_validate(page)
        return sorted(item["id"] for item in page["items"])

    both = sorted([parent["id"], other["id"]])
    assert (await ids(""), await ids(f"group={GROUP}"), await ids("group=shop")) == (both, both, [])
    assert await ids(f"parentId={parent['id']}") == sorted(part.id for part in parts)
    assert await ids(f"parentId={other['id']}") == []
    shown = (await billing.client.get(f"/jobs?parentId={parent['id']}&limit=1")).json()["items"][0]
    assert (shown["parentId"], shown["shardIndex"], shown["shardTotal"]) == (parent["id"], 1, 2)
    assert (await billing.client.get(f"/jobs/{parts[0].id}")).json()["shardIndex"] == 0
    problem(await billing.client.get("/jobs?group="), 400, "bad_parameter")


async def test_each_attempt_has_an_hour_unless_more_or_less_is_asked_for(billing: World) -> None:
    assert (await submitted(billing))["timeoutMs"] == 3_600_000
    assert (await submitted(billing, timeout="2h"))["timeoutMs"] == 7_200_000
    assert (await billing.client.post("/jobs", json={"queue": "q", "handler": "h"})).json()["timeoutMs"] is None


@pytest.mark.parametrize(
    ("fields", "pointer", "told"),
    [
        ({}, "/queue", "is missing: name the queue of workers, or a group of executors instead"),
        ({"queue": "q", "group": GROUP}, "/group", "must not be given beside a queue"),
        ({"queue": "q", "routing": {}}, "/routing", "has no use with a queue"),
        ({"routing": {}}, "/queue", "is missing"),
        ({"group": " x"}, "/group", "white space"),
        ({"group": GROUP, "routing": "RANDOM"}, "/routing", "must be an object"),
        ({"group": GROUP, "routing": {"strategy": "NEAREST"}}, "/routing/strategy", STRATEGIES),
        ({"group": GROUP, "routing": {"strategy": None}}, "/routing/strategy", STRATEGIES),
        ({"group": GROUP, "routing": {"strategy": "ADDRESS"}}, "/routing/address", "is required with strategy ADDRESS"),
        (
            {"group": GROUP, "routing": {"strategy": "ADDRESS", "address": "10.0.0.7"}},
            "/routing/address",
            "write http://host:port or https://host:port",
        ),
        ({"group": GROUP, "routing": {"address": ADDRESS}}, "/routing/address", "has no use with strategy ROUND_ROBIN"),
        (
            {"group": GROUP, "routing": {"strategy": "FIRST", "end": "any"}},
            "/routing/end",
            "has no use with strategy FIRST",
        ),
        ({"group": GROUP, "routing": {"strategy": "SHARDING_BROADCAST", "end": "most"}}, "/routing/end", "all, any"),
        ({"queue": "q", "deadline": "5m"}, "/deadline", "has no use without strategy SHARDING_BROADCAST"),
        ({"group": GROUP, "deadline": "5m"}, "/deadline", "has no use without strategy SHARDING_BROADCAST"),
        (
            {"group": GROUP, "routing": {"strategy": "FIRST"}, "deadline": 5},
            "/deadline",
            "has no use without strategy SHARDING_BROADCAST",
        ),
        ({"group": GROUP, "routing": {"key": ""}}, "/routing/key", "1 to 200"),
        ({"group": GROUP, "routing": {"key": "k" * 201}}, "/routing/key", "200"),
        ({"group": GROUP, "routing": {"weight": 1}}, "/routing/weight", "is not known here"),
        ({"group": "nobody's"}, "/group", "orchestrix registry set 'nobody'\"'\"'s' --auto"),
    ],
)
async def test_a_wrong_target_is_named(billing: World, fields: dict[str, Any], pointer: str, told: str) -> None:
    [(where, detail)] = await refused(billing, **fields)
    assert (where, told in detail) == (pointer, True), detail


async def test_all_faults_of_a_routing_are_named(billing: World) -> None:
    found = await refused(billing, group=GROUP, routing={"strategy": "LAST", "address": ADDRESS, "end": "all"})
    assert [pointer for pointer, _ in found] == ["/routing/address", "/routing/end"]


async def test_a_broadcast_can_have_a_deadline(billing: World) -> None:
    body = await submitted(billing, routing={"strategy": "SHARDING_BROADCAST"}, deadline="5m", timeout="1m")
    assert (body["deadlineMs"], body["timeoutMs"], body["children"]) == (300_000, 60_000, None)
    async with billing.database.read() as connection:
        job = await jobs.get(connection, body["id"])
    assert job is not None
    assert job.deadline_ms == 300_000


async def test_the_audit_names_the_group(billing: World) -> None:
    job = await submitted(billing, createdBy="ada")
    async with billing.database.read() as connection:
        [(_, row)] = await audit.page(connection, AuditFilter(verb="submit-job"), 10)
    assert (row.actor, row.detail) == ("ada", {"job": job["id"], "group": GROUP, "handler": "monthly"})


async def test_a_key_gives_one_job_for_one_target(billing: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(billing.client.post("/jobs", json=BODY, headers=headers) for _ in range(4)))
    again = await billing.client.post("/jobs", json=BODY, headers=headers)
    assert {answer.json()["id"] for answer in answers if answer.status_code == 201} == {again.json()["id"]}
    assert (again.json()["group"], len((await billing.client.get("/jobs")).json()["items"])) == (GROUP, 1)
    other = {**BODY, "routing": {"strategy": "LAST"}}
    problem(await billing.client.post("/jobs", json=other, headers=headers), 422, "idempotency_key_reused")


async def test_a_refused_job_leaves_its_key_free(billing: World) -> None:
    body, headers = {"group": "later", "handler": "monthly"}, {"Idempotency-Key": "k-1"}
    problem(await billing.client.post("/jobs", json=body, headers=headers), 422, "invalid_body")
    await grouped(billing, "later")
    assert (await billing.client.post("/jobs", json=body, headers=headers)).status_code == 201


async def test_a_node_that_is_too_old_holds_group_jobs_up(billing: World) -> None:
    database = billing.database
    await database.run(lambda tx: nodes.join(tx, "new-1", "new", [], None, "9.9.9", FEATURE_LEVEL))
    await submitted(billing)
    await database.run(lambda tx: nodes.join(tx, "old-1", "old", ["coordinator"], None, "0.9.0"))
    headers = {"Idempotency-Key": "k-1"}
    answer = await billing.client.post("/jobs", json=BODY, headers=headers)
    body = problem(answer, 503, "mixed_versions")
    assert "old (0.9.0)" in body["detail"]
    assert "new (" not in body["detail"]
    assert "upgrade or stop it" in body["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert (await billing.client.post("/jobs", json={"queue": "q", "handler": "h"})).status_code == 201
    await database.run(lambda tx: nodes.mark_draining(tx, "old-1"))
    problem(await billing.client.post("/jobs", json=BODY), 503, "mixed_versions")
    await database.run(lambda tx: nodes.leave(tx, "old-1"))
    assert (await billing.client.post("/jobs", json=BODY, headers=headers)).status_code == 201


async def test_without_nodes_nobody_is_too_old(billing: World) -> None:
    await submitted(billing)
