"""Does a node give jobs to real executors, and follow them to their end?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from orchestrix import JobContext, Transient, job
from orchestrix.jobs.executors import caller, owner_notifier
from orchestrix.persistence.jobs import job_logs
from orchestrix.persistence.registry import groups
from orchestrix.persistence.tables import job_group, jobs
from orchestrix.registry import directory
from tests.integration.jobs.cluster_nodes import Cluster
from tests.integration.workers.fake_coordinator import Answer, FakeCoordinator, Report, fake_coordinator
from tests.support import eventually, free_port

begun: list[JobContext] = []
gate = asyncio.Event()


@job("nodes.count")
async def count(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    for number in range(context.payload["to"]):
        await context.log(f"counted {number}")
    return {"counted": context.payload["to"]}


@job("nodes.wait", grace=0.2)
async def wait(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    while not gate.is_set():
        if await context.wait_cancelled(timeout=0.01):
            context.raise_if_cancelled()
    return {"waited": True}


@job("nodes.flaky")
async def flaky(context: JobContext) -> None:
    begun.append(context)
    if context.attempt == 1:
        raise Transient("not yet")


JOBS = [count, wait, flaky]


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    gate.clear()


async def lines_of(cluster: Cluster, job_id: str) -> list[str]:
    async with cluster.database.read() as connection:
        return [one.message for one in await job_logs.page(connection, job_id, 1000)]


@pytest.mark.req("X-1")
async def test_a_job_runs_on_the_executor_that_routing_picked(cluster: Cluster) -> None:
    await cluster.node()
    async with cluster.executor(jobs=JOBS) as address:
        job = await cluster.submit(handler="nodes.count", payload={"to": 3})
        done = await cluster.reached(job, "SUCCEEDED")
        assert (done.address, done.worker_id, done.result) == (address, address, {"counted": 3})
        await eventually(lambda: lines_of(cluster, job.id), deadline=10.0)
        assert await lines_of(cluster, job.id) == ["counted 0", "counted 1", "counted 2"]
    assert [one.job_id for one in begun] == [job.id]


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners look by themselves only after a long time."""
    monkeypatch.setattr(caller, "POLL_INTERVAL_S", 1000.0)


async def test_the_owner_is_woken_by_another_attempt(cluster: Cluster, unpolled: None) -> None:
    await cluster.node()
    await cluster.node()
    async with cluster.executor(jobs=JOBS):
        job = await cluster.submit(handler="nodes.flaky", retries=1)
        done = await cluster.reached(job, "SUCCEEDED")
    assert (done.attempt, done.owner_epoch, len(begun)) == (2, 1, 2)


async def test_a_lost_notification_is_made_up_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_notifier, "CALLS_KIND", "not-known")
    await cluster.node()
    async with cluster.executor(jobs=JOBS):
        job = await cluster.submit(handler="nodes.flaky", retries=1)
        assert (await cluster.reached(job, "SUCCEEDED")).attempt == 2


async def test_a_cancel_by_any_node_reaches_the_executor(cluster: Cluster, unpolled: None) -> None:
    nodes = [await cluster.node(), await cluster.node()]
    async with cluster.executor(jobs=JOBS):
        for one in nodes:
            job = await cluster.submit(handler="nodes.wait")
            await cluster.reached(job, "RUNNING")
            await one.node.jobs.canceller.cancel(job.id, "not needed", "ada")
            assert (await cluster.reached(job, "CANCELLED")).error["message"] == "not needed"


async def test_the_executor_of_an_attempt_that_timed_out_is_stopped(cluster: Cluster, unpolled: None) -> None:
    await cluster.node()
    async with cluster.executor(jobs=JOBS):
        job = await cluster.submit(handler="nodes.wait", timeout_ms=3_600_000)
        await cluster.reached(job, "RUNNING")
        async with cluster.database.begin() as tx:  # its hour is over
            await tx.execute(update(jobs).values(wake_at=tx.now()))
        await cluster.reached(job, "TIMED_OUT")
        [context] = begun
        await eventually(lambda: context.cancelled, deadline=15.0, message="the executor is asked to stop")


async def test_a_job_is_followed_after_its_owner_has_stopped(cluster: Cluster) -> None:
    """Its executor was given the URLs of both nodes, and reports to the one that is left."""
    await cluster.node()
    await cluster.node()
    async with cluster.executor(jobs=JOBS):
        job = await cluster.submit(handler="nodes.wait")
        await cluster.reached(job, "RUNNING")
        await cluster.stop_owner(job)
        gate.set()
        done = await cluster.reached(job, "SUCCEEDED")
    assert (done.owner_epoch, done.attempt, len(begun)) == (2, 1, 1)


async def test_a_call_without_an_answer_is_made_again_by_the_next_owner(cluster: Cluster) -> None:
    await cluster.node(registry__token="s3cret-of-the-shop")
    second = await cluster.node(registry__token="s3cret-of-the-shop", http__public_url="https://o.example/x,http://b:1")
    async with fake_coordinator() as one, fake_coordinator() as two:
        executor, other = sorted((one, two), key=lambda each: each.url)
        held = asyncio.Event()

        async def answer(report: Report) -> Answer:
            if report.kind == "run" and len(calls(executor)) == 1:
                await held.wait()
            return 200, {}

        executor.answer = answer
        await cluster.group(addresses=[executor.url, other.url])
        job = await cluster.submit(handler="any", payload={"a": 1})
        await executor.has("run")
        await cluster.group(addresses=[other.url])
        owner = await cluster.stop_owner(job)
        await executor.has("run", 2)
        held.set()
        before, after = (report.body for report in calls(executor))
        assert (before["historyId"], before["token"]) == (after["historyId"], after["token"])
        assert calls(other) == []
        if owner is not second:
            below = f"/jobs/{job.id}/attempts/{after['historyId']}"
            assert after["callbacks"] == [f"https://o.example/x{below}", f"http://b:1{below}"]


def calls(executor: FakeCoordinator) -> list[Report]:
    return [one for one in executor.requests if one.kind == "run"]


async def test_failover_moves_on_at_once_from_who_is_not_there(cluster: Cluster, unpolled: None) -> None:
    await cluster.node()
    # Those that never registered come first.
    dead = [f"http://127.0.0.2:{free_port()}" for _ in range(3)]
    async with cluster.executor(jobs=JOBS) as address:
        await cluster.group(addresses=[*dead, address])
        job = await cluster.submit(handler="nodes.count", payload={"to": 0}, routing="FAILOVER")
        done = await cluster.reached(job, "SUCCEEDED")
    assert (done.address, done.attempt) == (address, 1)


async def test_an_address_that_must_not_be_called_is_a_failure_that_names_the_setting(cluster: Cluster) -> None:
    await cluster.node()
    await cluster.group(addresses=["http://10.0.0.7:9999"])
    job = await cluster.submit(handler="any")
    failed = await cluster.reached(job, "FAILED")
    assert failed.error["type"] == "ExecutorNotReached"
    assert "ORCHESTRIX_REGISTRY__ALLOW" in failed.error["message"]


@pytest.mark.req("S2-38")
async def test_each_strategy_goes_by_the_group_as_it_is(cluster: Cluster) -> None:
    node = await cluster.node()
    async with cluster.executor(jobs=JOBS) as one, cluster.executor(jobs=JOBS) as two:
        for strategy in ("ROUND_ROBIN", "LEAST_LOADED"):
            given = [await cluster.submit(handler="nodes.wait", routing=strategy) for _ in range(6)]
            found = Counter([(await cluster.reached(job, "RUNNING")).address for job in given])
            assert found == {one: 3, two: 3}, strategy
            async with httpx.AsyncClient(trust_env=False) as client:
                shown = (await client.get(f"{node.url}/registry/groups/shop")).json()["executors"]
                picked = await client.post(f"{node.url}/registry/route?app=shop", json={"strategy": "LEAST_LOADED"})
            assert {each["address"]: each["inFlight"] for each in shown} == {one: 3, two: 3}
            assert "3 in flight" in picked.json()["reason"]
            gate.set()
            for job in given:
                await cluster.reached(job, "SUCCEEDED")
            gate.clear()
        named = await cluster.submit(handler="nodes.count", payload={"to": 0}, routing="ADDRESS", routing_address=two)
        assert (await cluster.reached(named, "SUCCEEDED")).address == two


async def test_a_call_that_reaches_no_one_refreshes_the_list(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unnoticed(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(groups, "outdated", unnoticed)
    monkeypatch.setattr(directory, "REFRESH_S", 1000.0)
    node = await cluster.node()
    dead = f"http://127.0.0.1:{free_port()}"
    async with cluster.executor(jobs=JOBS) as address:
        async with cluster.database.begin() as tx:
            await tx.execute(update(job_group).values(address_list=f"{dead},{address}"))
        await node.node.registry.directory.view()
        job = await cluster.submit(handler="nodes.count", payload={"to": 0}, retries=1)
        done = await cluster.reached(job, "SUCCEEDED")
        assert (done.address, done.attempt) == (address, 2)
        in_memory = node.node.registry.directory

        def remembered() -> bool:
            last = in_memory._last
            return last is not None and [group.addresses for group in last.groups] == [(address,)]

        await eventually(remembered, deadline=10.0, message="the list in memory is right too")


async def test_a_node_without_an_api_sends_executors_to_one_that_has_it(cluster: Cluster) -> None:
    api = await cluster.node(frozenset({"api", "orchestrator"}))
    await cluster.node(frozenset({"coordinator"}))
    async with cluster.executor(jobs=JOBS):
        job = await cluster.submit(handler="nodes.count", payload={"to": 1})
        done = await cluster.reached(job, "SUCCEEDED")
    assert done.owner != api.node.current_id
