"""Does a broadcast run on every real executor of its group, and end by the ends of its children?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from orchestrix import JobContext, Permanent, job
from orchestrix.domain.jobs import JobRow
from orchestrix.persistence.jobs import broadcasts, jobs
from orchestrix.persistence.registry import groups
from tests.integration.jobs.cluster_nodes import Cluster
from tests.support import eventually

begun: list[JobContext] = []
gate = asyncio.Event()


@job("shards.index")
async def index(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    return {"shard": context.shard_index, "of": context.shard_total, "given": context.payload}


@job("shards.wait", grace=0.2)
async def wait(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    while not (gate.is_set() and context.shard_index == 1):
        if await context.wait_cancelled(timeout=0.01):
            context.raise_if_cancelled()
    return {"shard": context.shard_index}


@job("shards.odd")
async def odd(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    if context.shard_index == 1 and not gate.is_set():
        raise Permanent("no paper")
    return {"shard": context.shard_index}


JOBS = [index, wait, odd]
BROADCAST = {"routing": "SHARDING_BROADCAST", "broadcast_end": "all"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    gate.clear()


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.node()
    return cluster


@pytest.fixture
async def three(cluster: Cluster) -> AsyncIterator[list[str]]:
    """The addresses of three executors of the group."""
    async with AsyncExitStack() as stack:
        yield sorted([await stack.enter_async_context(cluster.executor(jobs=JOBS)) for _ in range(3)])


async def children(cluster: Cluster, parent: JobRow) -> list[JobRow]:
    async with cluster.database.read() as connection:
        found = await jobs.of_ids(connection, await broadcasts.child_ids(connection, [parent.id]))
    return sorted(found, key=lambda one: one.shard_index or 0)


async def stored(cluster: Cluster, id: str) -> JobRow:
    async with cluster.database.read() as connection:
        [found] = await jobs.of_ids(connection, [id])
    return found


def http(cluster: Cluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.nodes[0].url, trust_env=False)


async def test_every_executor_gets_a_shard_and_clients_see_one_job(cluster: Cluster, three: list[str]) -> None:
    async with http(cluster) as client:
        wanted = {"handler": "shards.index", "group": "shop", "payload": {"a": 1}, "deadline": "1m"}
        body = (await client.post("/jobs", json={**wanted, "routing": {"strategy": "SHARDING_BROADCAST"}})).json()
        parent = await stored(cluster, body["id"])
        done = await cluster.reached(parent, "SUCCEEDED")
        assert done.result == [{"shard": n, "of": 3, "given": {"a": 1}} for n in range(3)]
        found = await children(cluster, parent)
        assert [(one.shard_index, one.address) for one in found] == list(enumerate(three))
        [listed] = (await client.get("/jobs")).json()["items"]
        assert (listed["id"], listed["children"]) == (parent.id, {"total": 3, "left": 0, "failed": 0})
        assert listed["deadlineMs"] == 60_000
        shards = (await client.get("/jobs", params={"parentId": parent.id})).json()["items"]
        assert sorted(one["shardIndex"] for one in shards) == [0, 1, 2]
        assert [(one["parentId"], one["shardTotal"], one["children"]) for one in shards] == [(parent.id, 3, None)] * 3
        part = (await client.get(f"/jobs/{found[0].id}")).json()
        assert part["payload"] == {"a": 1}
        why = (await client.get(f"/jobs/{parent.id}/why")).json()
        assert why["sentence"] == "Succeeded on 3 executors."


async def test_only_a_broadcast_has_a_deadline(cluster: Cluster) -> None:
    async with http(cluster) as client:
        answer = await client.post("/jobs", json={"handler": "h", "queue": "q", "deadline": "1m"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/deadline"


async def test_an_executor_that_is_lost_is_replaced_with_its_shard(cluster: Cluster, three: list[str]) -> None:
    lost = "http://127.0.0.1:1"  # nobody listens there
    async with cluster.database.begin() as tx:
        await groups.set_addresses(tx, "shop", sorted([*three, lost]), tx.now())
    parent = await cluster.submit(handler="shards.index", payload={}, retries=2, **BROADCAST)
    done = await cluster.reached(parent, "SUCCEEDED", deadline=20.0)
    assert [one["shard"] for one in done.result] == [0, 1, 2, 3]
    [moved] = [one for one in await children(cluster, parent) if one.routing_address == lost]
    assert moved.address in three
    assert moved.attempt == 2
    assert sorted(one.shard_index or 0 for one in begun) == [0, 1, 2, 3], "each shard once"


async def test_the_first_success_stops_the_other_executors(cluster: Cluster, three: list[str]) -> None:
    parent = await cluster.submit(handler="shards.wait", payload={}, **{**BROADCAST, "broadcast_end": "any"})
    await eventually(lambda: len(begun) == 3, deadline=10.0)
    gate.set()
    done = await cluster.reached(parent, "SUCCEEDED")
    assert done.result == [None, {"shard": 1}, None]

    async def stopped() -> bool:
        return [one.state for one in await children(cluster, parent)] == ["CANCELLED", "SUCCEEDED", "CANCELLED"]

    await eventually(stopped, deadline=20.0)
    assert len(begun) == 3
    assert (await cluster.now(parent)).result == done.result


async def test_a_person_cancels_all(cluster: Cluster, three: list[str]) -> None:
    parent = await cluster.submit(handler="shards.wait", payload={}, **BROADCAST)
    await eventually(lambda: len(begun) == 3, deadline=10.0)
    async with http(cluster) as client:
        why = (await client.get(f"/jobs/{parent.id}/why")).json()
        assert why["sentence"].startswith("Running on executors: 3 of 3 shards have not ended")
        answer = await client.post(f"/jobs/{parent.id}/cancel", json={"reason": "not wanted"})
        assert answer.status_code == 200, answer.text
    done = await cluster.reached(parent, "CANCELLED", deadline=20.0)
    assert (done.children_left, done.children_failed) == (0, 3)
    assert all(one.cancelled for one in begun)


async def test_its_deadline_stops_all(cluster: Cluster, three: list[str]) -> None:
    parent = await cluster.submit(handler="shards.wait", payload={}, deadline_ms=1500, **BROADCAST)
    done = await cluster.reached(parent, "TIMED_OUT", deadline=20.0)
    assert done.error["indexes"] == [0, 1, 2]

    async def stopped() -> bool:
        return (await cluster.now(parent)).children_left == 0

    await eventually(stopped, deadline=20.0)
    assert [one.state for one in await children(cluster, parent)] == ["CANCELLED"] * 3


async def test_a_failed_shard_is_named_and_a_retry_runs_it_alone(cluster: Cluster, three: list[str]) -> None:
    parent = await cluster.submit(handler="shards.odd", payload={}, **BROADCAST)
    done = await cluster.reached(parent, "FAILED")
    assert done.error["message"] == "1 of 3 shards failed (shard 1); shard 1: Permanent: no paper"
    gate.set()
    async with http(cluster) as client:
        answer = await client.post(f"/jobs/{parent.id}/retry", json={"reason": "mended"})
        assert answer.status_code == 200, answer.text
    done = await cluster.reached(parent, "SUCCEEDED", deadline=20.0)
    assert done.result == [{"shard": n} for n in range(3)]
    assert sorted(one.shard_index or 0 for one in begun) == [0, 1, 1, 2]


async def test_many_broadcasts_at_once_all_end(cluster: Cluster, three: list[str]) -> None:
    parents = [await cluster.submit(handler="shards.index", payload={}, **BROADCAST) for _ in range(20)]
    other = await cluster.submit(handler="shards.index", payload={})
    for parent in [*parents, other]:
        await cluster.reached(parent, "SUCCEEDED", deadline=60.0)
    assert len(begun) == 61
