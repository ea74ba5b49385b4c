"""What becomes of jobs whose executors answer as they should not, and what can others do with an attempt's token?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.executor_reports import ENDED_ATTEMPT, FOREIGN_ATTEMPT
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.tables import job_logs
from tests.integration.jobs.cluster_nodes import Cluster, ClusterNode
from tests.integration.registry.test_executor_client import Write, answers, drips, floods, nothing, rogue
from tests.integration.workers.fake_coordinator import fake_coordinator
from tests.servers import templates
from tests.support import eventually
from tests.taps import ready

GIGABYTE = b"HTTP/1.1 %d Words\r\nContent-Length: 1073741824\r\n\r\n"
CALL_TIMEOUT_S = 1.0


@pytest.fixture
async def broker_url() -> AsyncIterator[str]:
    server = EmbeddedBroker()
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def cluster(broker_url: str, sqlite_url: str) -> AsyncIterator[Cluster]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    made = Cluster(database, sqlite_url, broker_url)
    yield made
    await made.close()
    await database.close()


async def test_rogue_addresses_end_their_own_jobs_alone(cluster: Cluster) -> None:
    node = await cluster.node(registry__call_timeout=CALL_TIMEOUT_S)
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(rogue(answers(200)))
        flood, taken = floods(GIGABYTE % 404, 1024)
        writes: dict[str, Write] = {
            "redirect": answers(307, None, f"Location: http://127.0.0.1:{other.port}/run"),
            "flood": flood,
            "slow": drips(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100000\r\n\r\n"),
            "silent": nothing,
            "honest": answers(404),
        }
        urls = {name: str((await stack.enter_async_context(rogue(one))).address) for name, one in writes.items()}
        await cluster.group(addresses=[*urls.values(), node.url])
        sent = {name: await _sent_to(cluster, url) for name, url in {**urls, "own": node.url}.items()}
        for name in ("redirect", "flood", "slow", "honest"):
            assert (await cluster.reached(sent[name], "FAILED")).error["type"] == "ExecutorRefused", name
        own = await cluster.reached(sent["own"], "FAILED")
        assert own.error["type"] == "ExecutorNotReached"
        assert (await cluster.now(sent["silent"])).state == "DISPATCHED", "nobody knows whether it runs there"
        assert other.heads == []
        assert taken[0] < 64, "what lies in the buffers of the system"


async def _sent_to(cluster: Cluster, address: str) -> JobRow:
    return await cluster.submit(handler="any", routing="ADDRESS", routing_address=address)


async def test_a_token_is_good_for_its_attempt_alone_and_for_nothing_after_its_end(
    cluster: Cluster, broker_url: str
) -> None:
    node = await cluster.node()
    async with fake_coordinator() as executor:
        await cluster.group(addresses=[executor.url])
        for _ in range(2):
            await cluster.submit(handler="any")
        await executor.has("run", 2)
        runs = [report.body for report in executor.requests if report.kind == "run"]
        one, two = ({**body, "address": executor.url} for body in runs)
        assert await _reports(node, one, token=two["token"]) == (401, None)
        assert await _reports(node, one, token="x") == (401, None)
        assert await _reports(node, one, jobId=two["jobId"]) == (422, None)
        assert await _reports(node, one, workerId="http://127.0.0.2:9") == (200, FOREIGN_ATTEMPT)
        job = await _of(cluster, one)
        assert (job.state, job.seq) == ("DISPATCHED", 0)
        assert await _reports(node, one) == (200, None)
        await cluster.reached(job, "RUNNING")
        assert await _reports(node, one, seq=2, status="SUCCEEDED", lastLogSeq=0) == (200, None)
        await eventually(
            lambda: _is_cleared(cluster, job), deadline=20.0, message="it is over, and its queues are gone"
        )
        before = await cluster.now(job)
        for status in ("RUNNING", "FAILED"):
            assert await _reports(node, one, seq=3, status=status) == (200, ENDED_ATTEMPT)
        ids = {"jobId": one["jobId"], "historyId": one["historyId"], "workerId": executor.url}
        late = await _post(node, one, "logs", [{**ids, "seq": 3, "message": "late"}], one["token"])
        assert (late.status_code, late.json()) == (200, {"cancel": ENDED_ATTEMPT})
        assert await cluster.now(job) == before
        queues = [status_queue(job.id), logs_queue(job.id)]
        assert await asyncio.to_thread(ready, broker_url, queues) == {}, "nothing is published"
        async with cluster.database.read() as connection:
            count = (await connection.execute(select(func.count()).select_from(job_logs))).scalar_one()
        assert count == 0


async def _of(cluster: Cluster, run: dict[str, Any]) -> JobRow:
    async with cluster.database.read() as connection:
        found = await jobs.get(connection, run["jobId"])
    assert found is not None
    return found


async def _is_cleared(cluster: Cluster, job: JobRow) -> bool:
    now = await cluster.now(job)
    return now.state == "SUCCEEDED" and not now.channels


async def _reports(node: ClusterNode, run: dict[str, Any], **changes: Any) -> tuple[int, str | None]:
    """The status of the answer to a report of that attempt, and its `cancel`."""
    token = changes.pop("token", run["token"])
    ids = {"jobId": run["jobId"], "historyId": run["historyId"], "workerId": run["address"]}
    answer = await _post(node, run, "status", {**ids, "seq": 1, "status": "RUNNING", **changes}, token)
    return answer.status_code, answer.json().get("cancel")


async def _post(node: ClusterNode, run: dict[str, Any], kind: str, body: Any, token: str) -> httpx.Response:
    url = f"{node.url}/jobs/{run['jobId']}/attempts/{run['historyId']}/{kind}"
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        return await client.post(url, json=body, headers={"Authorization": f"Bearer {token}"})
