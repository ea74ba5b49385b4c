"""Does a worker say of itself what it serves and holds, and does nothing depend on whether anybody hears it?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import pytest

from orchestrix.broker.port import Broker, Outcome, Outgoing, Published, Topology
from orchestrix.broker.topology import WORKER_HEARTBEAT
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.telemetry import log_events
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.heartbeat import UNHEARD_RETRY_S, ProcessIdentity
from orchestrix.worker.jobs.functions import JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from orchestrix.worker.worker import Worker
from tests.fakes.broker import FakeBroker
from tests.fakes.rows import Rows
from tests.support import eventually, logged

from .jobs.house import believed
from .rig import CATALOG, CREATE, DELETE, command

pytestmark = pytest.mark.virtual_time

IDENTITY = ProcessIdentity("w-1", "host-1", "1.2.3")
BEAT_S = 0.02


class Post(FakeBroker):
    """A broker that answers heartbeats as `outcome` says, and may refuse a declaration."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = Published(Outcome.CONFIRMED)
        self.refusal: str | None = None
        self.beats: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.judge = self._judge

    def _judge(self, message: Outgoing) -> Published:
        if message.exchange != WORKER_HEARTBEAT:
            return Published(Outcome.CONFIRMED)
        self.beats.append(json.loads(message.body))
        self.times.append(asyncio.get_running_loop().time())
        return self.outcome

    async def declare(self, topology: Topology) -> None:
        await super().declare(topology)
        if self.refusal is not None:
            raise ConfigError(self.refusal)


class Bench:
    """A worker whose handler waits for `open`."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.post = Post()
        self.open = asyncio.Event()
        self.begun = 0
        self.worker: Worker | None = None

    async def start(self, *, jobs: bool = False, beat: float = BEAT_S) -> Worker:
        async def handler(*_: Any) -> None:
            self.begun += 1
            await self.open.wait()

        self.rows.put(1)
        broker = cast(Broker, self.post)
        settings = Settings.model_validate({"jobs": {"beat": beat, "silent": 3 * beat}, "worker": {"stop_timeout": 10}})
        runner = self._runner(beat) if jobs else None
        table = HandlerTable([(CREATE, handler), (DELETE, handler)])
        self.worker = Worker(broker, cast(Database, self.rows), CATALOG, table, settings, runner, process=IDENTITY)
        await self.worker.start()
        return self.worker

    def _runner(self, beat: float) -> JobRunner:
        table = JobTable([JobFunction("monthly", "reports", _nothing, 1.0)])
        return JobRunner(
            self.post, table, [], believed, worker_id="w-1", slots=1, stop_timeout=1.0, heartbeat_s=beat
        )  # fmt: skip

    def gaps(self) -> list[float]:
        """Seconds from each heartbeat to the next."""
        return [round(late - early, 6) for early, late in pairwise(self.post.times)]

    async def work(self) -> None:
        """The handler is at a command."""
        ordered = command(1)
        self.post.put(ordered.type, ordered.body())
        await eventually(lambda: self.begun, deadline=5.0)

    async def says(self, **fields: Any) -> None:
        """Waits for a heartbeat with these fields."""
        await eventually(
            lambda: any(fields.items() <= one.items() for one in self.post.beats[-1:]),
            deadline=5.0,
            message=f"{fields} in {self.post.beats[-1:]}",
        )


async def _nothing(*_: Any) -> None:
    return


@pytest.fixture
async def bench(rows: Rows) -> AsyncIterator[Bench]:
    """A worker, its broker and its rows."""
    bench = Bench(rows)
    yield bench
    bench.open.set()
    if bench.worker is not None:
        await bench.worker.stop()


async def test_a_worker_of_commands_says_where_it_is_and_what_it_serves(bench: Bench) -> None:
    await bench.start()
    await bench.says(
        workerId="w-1",
        host="host-1",
        version="1.2.3",
        state="ALIVE",
        queues=[],
        jobs=[],
        commandQueues=[CREATE, DELETE],
        commands=0,
        handlers=[],
    )
    await bench.work()
    await bench.says(commands=1)


async def test_one_that_stops_serves_nothing_but_is_there_until_its_work_has_ended(bench: Bench) -> None:
    worker = await bench.start()
    await bench.work()
    stopping = asyncio.create_task(worker.stop())
    await bench.says(state="DRAINING", commandQueues=[], commands=1)
    bench.open.set()
    await stopping
    assert (bench.post.beats[-1]["state"], bench.post.beats[-1]["commands"]) == ("LEFT", 0)
    assert worker.abandoned == 0


async def test_one_with_jobs_says_both_and_leaves_only_when_its_commands_have_ended(bench: Bench) -> None:
    worker = await bench.start(jobs=True)
    await bench.says(queues=["reports"], handlers=["monthly"], commandQueues=[CREATE, DELETE])
    await bench.work()
    stopping = asyncio.create_task(worker.stop())
    await bench.says(state="DRAINING", queues=[], commandQueues=[], commands=1)
    seen = len(bench.post.beats)
    await eventually(lambda: len(bench.post.beats) > seen + 3, deadline=5.0, message="it goes on")
    assert bench.post.beats[-1]["state"] == "DRAINING"
    bench.open.set()
    await stopping
    assert bench.post.beats[-1]["state"] == "LEFT"


async def test_what_no_node_listens_for_is_said_again_soon_until_one_does(bench: Bench) -> None:
    bench.post.outcome = Published(Outcome.RETURNED)
    await bench.start(beat=10)
    await eventually(lambda: len(bench.post.beats) > 2, deadline=5.0)
    assert bench.gaps() == [UNHEARD_RETRY_S] * 2
    bench.post.outcome = Published(Outcome.CONFIRMED)
    seen = len(bench.post.beats)
    await eventually(lambda: len(bench.post.beats) > seen, deadline=5.0)
    bench.post.outcome = Published(Outcome.RETURNED)
    await eventually(lambda: len(bench.post.beats) > seen + 3, deadline=50.0)
    assert bench.gaps()[seen:] == [10] * 3, "once heard, it keeps its interval"


async def test_one_that_may_not_send_heartbeats_works_all_the_same_and_closes_no_channel_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "403 ACCESS_REFUSED - access to exchange 'orchestrix.worker.heartbeat' refused for user 'joe'"
    bench.post.outcome = Published(Outcome.UNKNOWN, refused, channel_closed=True)
    worker = await bench.start()
    await bench.work()
    await eventually(lambda: bench.post.beats, deadline=5.0)
    bench.open.set()
    await eventually(lambda: worker.counts.done, deadline=5.0)
    await worker.stop()
    assert len(bench.post.beats) == 1, "each refusal closes the channel of the events, too"
    (warning,) = [one.getMessage() for one in caplog.records if "heartbeats" in one.getMessage()]
    assert warning == f"the broker refuses the heartbeats of this worker, so that no list shows it: {refused}"
    assert len(logged(caplog, log_events.HEARTBEATS_REFUSED)) == 1


async def test_one_whose_exchange_cannot_be_declared_sends_none(bench: Bench) -> None:
    bench.post.refusal = "exchange orchestrix.worker.heartbeat: ACCESS_REFUSED"
    worker = await bench.start()
    await bench.work()
    await eventually(lambda: bench.post.declared, deadline=5.0)
    bench.open.set()
    await eventually(lambda: worker.counts.done, deadline=5.0)
    assert bench.post.beats == []


async def test_what_did_not_end_in_time_is_counted(bench: Bench) -> None:
    worker = await bench.start()
    worker._settings = worker._settings.model_copy(update={"stop_timeout": 0.05})
    await bench.work()
    await worker.stop()
    assert worker.abandoned == 1
