"""Does a node give jobs to real executors, and follow them to their end?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrix import JobContext, Permanent, job
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_logs
from tests.integration.jobs.cluster_nodes import Cluster
from tests.servers import templates
from tests.support import eventually

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


@job("nodes.fail")
async def fail(context: JobContext) -> None:
    begun.append(context)
    raise Permanent("no such thing")


JOBS = [count, wait, fail]


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    gate.clear()


@pytest.fixture
async def cluster(broker_url: str, sqlite_url: str) -> AsyncIterator[Cluster]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    made = Cluster(database, sqlite_url, broker_url)
    await made.group()
    yield made
    await made.close()
    await database.close()


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
