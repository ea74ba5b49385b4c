"""Is an attempt run again at once where its executor was restarted, after a time where it hangs, and never else?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.addresses import ExecutorAddress
from orchestrix.jobs.executors import caller, owner_notifier
from orchestrix.persistence.jobs import jobs
from orchestrix.registry.executor_client import ExecutorClient, LookupResult
from tests.documents import ROOT
from tests.integration.jobs.cluster_nodes import GROUP, Cluster, ClusterNode
from tests.integration.workers.fake_coordinator import Answer, Report, fake_coordinator
from tests.processes import Process
from tests.servers.run import Run
from tests.support import eventually, free_port

PROGRAM: Final = """
import asyncio
import sys
from pathlib import Path

from orchestrix import Executor, JobContext, job

address, admins, gate = sys.argv[1:]


@job("life.wait")
async def wait(context: JobContext) -> dict[str, str]:
    print("begins attempt", context.attempt, flush=True)
    while not Path(gate).exists():
        if await context.wait_cancelled(timeout=0.05):
            print("is stopped in attempt", context.attempt, flush=True)
            context.raise_if_cancelled()
    return {"by": address}


async def main() -> None:
    async with Executor("shop", address, admins, listen=address.removeprefix("http://"), beat=0.5, timeout=5.0) as one:
        print("is there", flush=True)
        await one.wait_for_stop()


asyncio.run(main())
"""
NEVER: Final[dict[str, Any]] = {"registry__beat": 400.0, "registry__dead": 1000.0, "registry__probe": 1000.0}
"""Neither silence nor a question every now and then finds anything."""
PROMISED_S: Final = 90.0
"""Three times the 30 s in which a restart is found."""


class Executors:
    """Executors as processes of their own."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._all: list[Process] = []
        self.gate = folder / "gate"
        (folder / "executor.py").write_text(PROGRAM)

    async def start(self, address: str, admins: Sequence[str]) -> Process:
        """One that is registered."""
        name = f"executor-{len(self._all) + 1}"
        command = (sys.executable, str(self._folder / "executor.py"), address, ",".join(admins), str(self.gate))
        env = {"PYTHONPATH": str(ROOT)}
        process = Process(self._run, name, command, env, self._folder, self._folder / f"{name}.log")
        self._all.append(process)
        await process.wait_for_line("is there", deadline=60.0)
        return process

    def close(self) -> None:
        """Ends all."""
        for one in self._all:
            one.kill9()


@pytest.fixture
def executors(server_run: Run, tmp_path: Path) -> Iterator[Executors]:
    made = Executors(server_run, tmp_path)
    yield made
    made.close()


def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def begun(cluster: Cluster, job: JobRow, attempt: int = 1) -> JobRow:
    """Its attempt of that number runs."""

    async def there() -> bool:
        now = await cluster.now(job)
        return (now.state, now.attempt) == ("RUNNING", attempt)

    await eventually(there, deadline=PROMISED_S, message=f"attempt {attempt} runs")
    return await cluster.now(job)


async def first_error(cluster: Cluster, job: JobRow) -> Mapping[str, Any]:
    """Why its first attempt has ended."""
    async with cluster.database.read() as connection:
        first = min(await jobs.attempts(connection, job.id), key=lambda one: one.attempt)
    assert first.state == "LOST"
    error: Mapping[str, Any] = first.error
    assert error["type"] == "ExecutorLost"
    return error


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that have denied an attempt."""
    denials: list[str] = []
    holds = ExecutorClient.holds

    async def spy(client: ExecutorClient, app: str, asked: ExecutorAddress, history_id: str) -> LookupResult:
        found = await holds(client, app, asked, history_id)
        if found == "denied":
            denials.append(str(asked))
        return found

    monkeypatch.setattr(ExecutorClient, "holds", spy)
    return denials


@pytest.mark.parametrize("told", [True, False])
async def test_a_restart_at_the_same_address_in_mid_run_is_found_at_once(
    cluster: Cluster, executors: Executors, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """By the heartbeat of the new process: the node that takes it wakes the owner, and where that is lost, the owner
    sees it when it looks."""
    denials = spied(monkeypatch)
    if told:
        monkeypatch.setattr(caller, "POLL_INTERVAL_S", 1000.0)
        monkeypatch.setattr(caller, "DENIAL_INTERVAL_S", 0.0)
    else:
        monkeypatch.setattr(owner_notifier, "CALLS_KIND", "not-known")
    nodes = [await cluster.node(**NEVER) for _ in range(2)]
    where, urls = address(), [one.url for one in nodes]
    first = await executors.start(where, urls)
    job = await cluster.submit(handler="life.wait", retries=3)
    await begun(cluster, job)
    first.kill9()
    second = await executors.start(where, urls)
    await eventually(lambda: bool(denials), deadline=PROMISED_S, message="the owner asks at once")
    if told:  # it asks twice, and looks by itself no more
        for one in nodes:
            one.node.context.signals.jobs.calls_due.set()
    await begun(cluster, job, 2)
    assert "restarted" in (await first_error(cluster, job))["message"]
    executors.gate.touch()
    done = await cluster.reached(job, "SUCCEEDED", deadline=30.0)
    assert (done.result, done.attempt) == ({"by": where}, 2)
    assert second.log().count("begins attempt") == 1


async def shown(node: ClusterNode, where: str) -> Mapping[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as client:
        found = (await client.get(f"{node.url}/registry/groups/{GROUP}")).json()["executors"]
    return next(dict(one) for one in found if one["address"] == where)


async def test_one_that_hangs_is_passed_over_and_its_attempt_runs_elsewhere(
    cluster: Cluster, executors: Executors
) -> None:
    times: dict[str, Any] = {
        "registry__beat": 1.0,
        "registry__dead": 6.0,
        "registry__probe": 1.0,
        "registry__call_timeout": 1.0,
    }
    nodes = [await cluster.node(**times) for _ in range(2)]
    urls = [one.url for one in nodes]
    hanging, other = address(), address()
    first = await executors.start(hanging, urls)
    second = await executors.start(other, urls)
    job = await cluster.submit(handler="life.wait", retries=3)
    assert (await begun(cluster, job)).address == hanging
    first.pause()

    async def all_pass_it_over() -> bool:
        return len((await shown(nodes[0], hanging))["suspectedBy"]) == 2

    await eventually(all_pass_it_over, deadline=30.0, message="a second node confirms that it gives no answer")
    one = await shown(nodes[1], hanging)
    assert one["suspectedSince"] is not None
    assert (await shown(nodes[1], other))["suspectedBy"] == []
    assert (await begun(cluster, job, 2)).address == other
    assert "has sent nothing for 6 s" in (await first_error(cluster, job))["message"]
    first.resume()
    await first.wait_for_line("is stopped in attempt 1", deadline=60.0)

    async def nobody_does() -> bool:
        return not (await shown(nodes[0], hanging))["suspectedBy"]

    await eventually(nobody_does, deadline=30.0, message="it is there again")
    executors.gate.touch()
    done = await cluster.reached(job, "SUCCEEDED", deadline=30.0)
    assert (done.result, done.attempt) == ({"by": other}, 2)
    assert (first.log().count("begins attempt"), second.log().count("begins attempt")) == (1, 1)


async def beat(node: ClusterNode, where: str, runs: Sequence[str], **more: Any) -> None:
    who = {"registryGroup": "EXECUTOR", "registryKey": GROUP, "registryValue": where, "instance": "one"}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{node.url}/api/registry", json={**who, "runs": list(runs), **more})
    assert answer.status_code == 200, answer.text


async def test_heartbeats_that_name_it_keep_an_attempt_alive_and_their_end_loses_it(cluster: Cluster) -> None:
    """Though the executor answers no question, drains and is not healthy."""
    node = await cluster.node(registry__beat=1.0, registry__dead=3.0, registry__probe=0.5, registry__call_timeout=1.0)
    async with fake_coordinator() as executor:

        def answer(report: Report) -> Answer:
            return (200, {}) if report.kind == "run" else (500, {})

        executor.answer = answer
        await beat(node, executor.url, [])
        job = await cluster.submit(handler="any", retries=1)
        await executor.has("run")
        called = await cluster.now(job)
        assert called.called_at is not None
        until = called.called_at.timestamp() + 3 * 3.0

        async def outlived() -> bool:
            await beat(node, executor.url, [str(called.history_id), "not-known"], state="DRAINING")
            now = await cluster.now(job)
            assert (now.state, now.attempt, now.history_id) == ("DISPATCHED", 1, called.history_id)
            return cluster.database.now().timestamp() > until

        await eventually(outlived, deadline=60.0, every=0.3)
        await beat(node, executor.url, [], state="UP")
        await cluster.group(addresses=[executor.url])
        await eventually(lambda: executor.kinds().count("run") == 2, deadline=30.0, message="it is called again")
    assert "has sent nothing for 3 s" in (await first_error(cluster, job))["message"]


async def test_an_attempt_that_is_over_is_not_brought_back_by_heartbeats(cluster: Cluster) -> None:
    node = await cluster.node(**NEVER)
    async with fake_coordinator() as executor:
        await beat(node, executor.url, [])
        job = await cluster.submit(handler="any")
        await executor.has("run")
        await node.node.jobs.canceller.cancel(job.id, "not needed", "ada")
        over = await cluster.reached(job, "CANCELLED")
        await beat(node, executor.url, [str(over.history_id)])
        after = await cluster.now(job)
        assert (after.state, after.worker_beat_at) == ("CANCELLED", over.worker_beat_at)
        [run] = [one for one in executor.requests if one.kind == "run"]
        callback, token = f"{node.url}/jobs/{job.id}/attempts/{over.history_id}", run.body["token"]
        assert urlsplit(run.body["callbacks"][0]).path == urlsplit(callback).path
        report = {"jobId": job.id, "historyId": over.history_id, "workerId": executor.url, "seq": 1}
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                f"{callback}/status",
                json={**report, "status": "RUNNING"},
                headers={"authorization": f"Bearer {token}"},
            )
    assert answer.json() == {"cancel": "not needed"}
