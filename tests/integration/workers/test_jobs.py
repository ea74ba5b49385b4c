"""Do jobs run over real brokers, whatever happens to the connections and to the workers?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrix import JobContext
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import Binding, Exchange, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import (
    JOB_CANCEL,
    WORKER_HEARTBEAT,
    dead_letters_of,
    dispatch_queue,
    job_channels,
    logs_queue,
    queues_of_work,
    status_queue,
    worker_topology,
)
from orchestrix.clock import uuid7
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.saga.messages import dump
from orchestrix.worker.jobs.functions import Function, JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from tests.conformance.port.rig import Proxy, Rig
from tests.processes import Process, Processes
from tests.servers import templates
from tests.support import eventually
from tests.unit.workers.jobs.house import believed, dispatch

FINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}
ACTUALLY = """
import time
from orchestrix import JobContext, job

@job("wait")
async def wait(context: JobContext):
    await context.log("waits")
    await context.wait_cancelled()
    context.raise_if_cancelled()

@job("sleep")
def sleep(context: JobContext):
    context.log("sleeps")
    time.sleep(3600)
"""


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """An empty broker of each kind behind a proxy, and ports to it."""
    server = None
    if request.param == "rabbitmq":
        url = str(request.getfixturevalue("rabbitmq_url"))
    else:
        server = EmbeddedBroker()
        await server.start()
        url = server.url
    proxy = Proxy(url)
    await proxy.start()
    rig = Rig(proxy)
    yield rig
    for broker in rig.brokers:
        await broker.stop()
    await proxy.stop()
    if server is not None:
        await server.stop()


class Owner:
    """A coordinator for tests: dispatches, and reads all that is said of its jobs into `said`, as it arrives."""

    def __init__(self, broker: AmqpBroker) -> None:
        self.broker = broker
        self.said: list[dict[str, Any]] = []
        self.beats: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Is there before any worker, and hears beats."""
        await self.broker.declare(worker_topology(["default"]))
        ear = Topology(
            exchanges=(Exchange(JOB_CANCEL, "topic"),),
            queues=(Queue("beats", exclusive=True),),
            bindings=(Binding("beats", WORKER_HEARTBEAT, "#"),),
        )
        await self._read(["beats"], ear, self.beats)

    async def send(self, handler: str, *numbers: int, **fields: Any) -> None:
        """Dispatches jobs."""
        name = dispatch_queue("default")
        bodies = [dispatch(handler, number, **fields) for number in numbers or (1,)]
        results = await self.broker.publish([Outgoing("", name, body, uuid7()) for body in bodies])
        assert {one.outcome for one in results} == {Outcome.CONFIRMED}

    async def own(self, *numbers: int) -> None:
        """Reads the channels of these jobs."""
        for number in numbers or (1,):
            job_id = f"j-{number}"
            await self._read([status_queue(job_id), logs_queue(job_id)], job_channels(job_id), self.said)

    async def cancel(self, number: int = 1) -> None:
        """Tells all workers, as soon as one listens: until then its beats have it told again."""
        word = {"jobId": f"j-{number}", "historyId": f"h-{number}", "reason": "by hand"}

        async def told() -> bool:
            (result,) = await self.broker.publish([Outgoing(JOB_CANCEL, "default", dump(word), uuid7())])
            return result.outcome is Outcome.CONFIRMED

        await eventually(told, deadline=20.0, message="a worker listens")

    async def ended(self, number: int = 1, within: float = 20.0) -> dict[str, Any]:
        """The last word of a job."""

        def last() -> dict[str, Any] | None:
            return next((one for one in self.of(number) if one.get("status") in FINAL), None)

        await eventually(last, deadline=within, message=f"job {number} ends")
        found = last()
        assert found is not None
        return found

    def held(self) -> list[dict[str, str]]:
        """What the latest beat says that a worker holds."""
        return sorted(self.beats[-1]["jobs"], key=lambda one: str(one["jobId"])) if self.beats else []

    def of(self, number: int = 1) -> list[dict[str, Any]]:
        """What was said of a job."""
        return [one for one in self.said if one["jobId"] == f"j-{number}"]

    def lines(self, number: int = 1) -> list[str]:
        """Its log, without copies."""
        found = {one["seq"]: one["message"] for one in self.of(number) if "message" in one}
        return [found[seq] for seq in dict.fromkeys(found)]

    async def close(self) -> None:
        """Reads no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, queues: list[str], own: Topology, into: list[dict[str, Any]]) -> None:
        consumer = await self.broker.consume(queues, 200, own_topology=own)

        async def read() -> None:
            while deliveries := await consumer.receive(500):
                into.extend(json.loads(one.body) for one in deliveries)
                await consumer.acknowledge(deliveries)

        self._tasks.append(asyncio.create_task(read()))


@pytest.fixture
async def owner(rig: Rig) -> AsyncIterator[Owner]:
    """A coordinator that reaches the broker directly, or its end of the proxy where that is cut."""
    owner = Owner(await rig.up())
    await owner.open()
    yield owner
    await owner.close()


Work = Callable[..., Any]


@pytest.fixture
async def work(rig: Rig) -> AsyncIterator[Work]:
    """Starts a worker: `await work(places=3, name="w-1", echo=function)`."""
    runners: list[JobRunner] = []

    async def start(*, places: int = 10, name: str = "w-1", **functions: Function) -> JobRunner:
        table = JobTable(JobFunction(job, "default", function, 0.2) for job, function in functions.items())
        broker = await rig.up()
        runner = JobRunner(broker, table, [], believed, worker_id=name, slots=places, stop_timeout=0.5, heartbeat_s=1.0)
        await runner.start()
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        await runner.stop()


async def test_a_job_finds_its_channels_missing_and_ends_well(owner: Owner, work: Work) -> None:
    async def echo(context: JobContext) -> Any:
        await context.log("one")
        await context.progress(50)
        return {"payload": context.payload}

    await work(echo=echo)
    await owner.send("echo")
    await eventually(lambda: owner.broker.message_count(logs_queue("j-1")), deadline=10.0)
    await owner.own()
    last = await owner.ended()
    assert (last["status"], last["result"], last["workerId"]) == ("SUCCEEDED", {"payload": {"number": 1}}, "w-1")
    assert owner.lines() == ["one"]
    assert last["lastLogSeq"] < last["seq"]


async def test_all_is_said_in_order_over_cut_connections(owner: Owner, work: Work, rig: Rig) -> None:
    lines = asyncio.Event()

    async def talk(context: JobContext) -> None:
        for number in range(6000):
            await context.log(f"line {number}")
            if number % 1500 == 750:
                lines.set()

    await work(talk=talk)
    await owner.own()
    await owner.send("talk")
    for _ in range(3):
        await asyncio.wait_for(lines.wait(), 20.0)
        lines.clear()
        rig.proxy.cut()
    last = await owner.ended(within=40.0)
    await eventually(lambda: len(owner.lines()) == 6000, deadline=20.0)
    assert owner.lines() == [f"line {number}" for number in range(6000)]
    assert {one["seq"] for one in owner.of()} == set(range(1, last["seq"] + 1))


async def test_a_cancel_reaches_the_worker_and_its_beats_say_what_it_holds(owner: Owner, work: Work) -> None:
    async def wait(context: JobContext) -> None:
        await context.wait_cancelled()
        context.raise_if_cancelled()

    await work(wait=wait)
    await owner.own(1, 2)
    await owner.send("wait", 1, 2)
    both = [{"jobId": f"j-{number}", "historyId": f"h-{number}"} for number in (1, 2)]
    await eventually(lambda: owner.held() == both, deadline=10.0)
    await owner.cancel(1)
    assert (await owner.ended(1))["status"] == "CANCELLED"
    await eventually(lambda: owner.held() == both[1:], deadline=10.0)
    await owner.cancel(2)
    await owner.ended(2)


async def test_a_cancel_reaches_the_worker_after_its_connection_was_cut(owner: Owner, work: Work, rig: Rig) -> None:
    async def wait(context: JobContext) -> None:
        await context.wait_cancelled()
        context.raise_if_cancelled()

    runner = await work(wait=wait)
    await owner.own()
    await owner.send("wait")
    await eventually(owner.held, deadline=10.0)
    rig.proxy.cut()
    await eventually(lambda: runner._broker.generation == 2 and owner.broker.generation == 2, deadline=20.0)

    async def stopped() -> bool:  # the queue of the old connection may be there for a while: each beat has it told anew
        await owner.cancel()
        return any(one.get("status") in FINAL for one in owner.of())

    await eventually(stopped, deadline=30.0, every=0.5, message="it has heard of it")
    assert (await owner.ended())["status"] == "CANCELLED"


async def test_workers_with_few_places_share_a_queue_and_nothing_is_lost(owner: Owner, work: Work) -> None:
    ran: list[str] = []
    both = asyncio.Event()

    def runs(name: str) -> Function:
        async def run(context: JobContext) -> None:
            ran.append(name)
            if len(set(ran)) == 2:
                both.set()
            await both.wait()

        return run

    for name in ("w-1", "w-2"):
        await work(places=1, name=name, run=runs(name))
    numbers = range(1, 31)
    await owner.own(*numbers)
    await owner.send("run", *numbers)
    for number in numbers:
        assert (await owner.ended(number))["status"] == "SUCCEEDED"
    assert len(ran) == 30
    assert await owner.broker.message_count(dead_letters_of(dispatch_queue("default"))) == (0, 0)


async def test_a_thread_talks_over_a_real_broker(owner: Owner, work: Work) -> None:
    def talk(context: JobContext) -> dict[str, int]:
        for number in range(500):
            context.log(f"line {number}")
        return {"lines": 500}

    await work(talk=talk)
    await owner.own()
    await owner.send("talk")
    assert (await owner.ended())["result"] == {"lines": 500}
    await eventually(lambda: owner.lines() == [f"line {number}" for number in range(500)], deadline=10.0)


@pytest.fixture
async def process(rig: Rig, processes: Processes, sqlite_url: str, tmp_path: Path) -> Process:
    """`orchestrix worker --job-queue default`, ready."""
    (tmp_path / "my_waits.py").write_text(ACTUALLY)
    env = {
        "ORCHESTRIX_DATABASE_URL": sqlite_url,
        "ORCHESTRIX_BROKER_URL": rig.url,
        "ORCHESTRIX_WORKERS": "my_waits",
        "ORCHESTRIX_NODE_ID": "jobber",
        "ORCHESTRIX_WORKER__STOP_TIMEOUT": "1",
        "ORCHESTRIX_JOBS__BEAT": "0.5",
        "ORCHESTRIX_JOBS__SILENT": "2",
        "ORCHESTRIX_LOG__FORMAT": "pretty",
    }
    templates.upgraded(sqlite_url)
    process = processes.spawn("worker", "--job-queue", "default", env=env)
    await process.wait_for_line(r"ready  queues=\['default'\]")
    return process


async def owed(url: str, handler: str) -> None:
    """The database owes what `owner.send` asks for."""
    database = Database(url)
    now = database.now()
    who: dict[str, Any] = {"created_by": "ada", "correlation_id": "c-1", "created_at": now, "updated_at": now}
    job = rules.dispatched(JobRow(id="j-1", queue="default", handler=handler, **who), "h-1", now).job
    await database.run(lambda tx: jobs.insert(tx, [job]))
    await database.close()


@pytest.mark.parametrize("handler", ["wait", "sleep"])
async def test_sigterm_gives_jobs_up_with_a_word(owner: Owner, process: Process, sqlite_url: str, handler: str) -> None:
    await owner.own()
    await owed(sqlite_url, handler)
    await owner.send(handler)
    await eventually(owner.lines, deadline=10.0)
    assert owner.said[0]["workerId"].startswith("jobber-")
    process.terminate()
    last = await owner.ended()
    assert (last["status"], last["error"]["type"], last["error"]["retryable"]) == ("FAILED", "WorkerStopped", True)
    assert await process.exited() == 0


async def test_what_nobody_owes_is_a_dead_letter(owner: Owner, process: Process) -> None:
    await owner.broker.declare(queues_of_work(Topology()))
    await owner.send("wait")
    letters = dead_letters_of(dispatch_queue("default"))
    await eventually(lambda: _has_messages(owner.broker, letters), deadline=10.0)
    await eventually(lambda: owner.beats, deadline=10.0)
    assert (owner.said, owner.held()) == ([], [])


async def test_a_killed_worker_says_nothing_and_beats_no_more(owner: Owner, process: Process, sqlite_url: str) -> None:
    await owner.own()
    await owed(sqlite_url, "wait")
    await owner.send("wait")
    await eventually(owner.lines, deadline=10.0)
    await eventually(owner.held, deadline=10.0)
    process.kill9()
    seen = len(owner.beats)
    other = await eventually(lambda: owner.broker.message_count(dispatch_queue("default")), deadline=5.0)
    assert other is not None
    assert other[0] == 0, "the dispatch was acknowledged early"
    assert [one["status"] for one in owner.of() if "status" in one] == ["RUNNING"]
    await owner.send("wait", 2)
    await eventually(lambda: _has_messages(owner.broker, dispatch_queue("default")), deadline=5.0)
    assert len(owner.beats) <= seen + 1


async def _has_messages(broker: AmqpBroker, queue: str) -> bool:
    count = await broker.message_count(queue)
    return count is not None and count[0] > 0
