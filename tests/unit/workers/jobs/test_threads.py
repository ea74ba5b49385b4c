"""Does a job in a thread have all that one in the event loop has?"""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchestrix import JobCancelled, JobContext
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX, cancel_queue
from orchestrix.saga.messages import dump
from orchestrix.worker.jobs import report_buffer as feeds
from orchestrix.worker.jobs.functions import JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from orchestrix.worker.threads import CompletedAwaitable, ask
from tests.fakes.broker import FakeBroker
from tests.support import eventually

from .house import believed, dispatch

QUEUE = f"{DISPATCH_QUEUE_PREFIX}default"


class Bench:
    """A worker with threads, over a broker in the test's memory."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.runner: JobRunner | None = None

    async def run(self, function: Any, *, grace: float = 10.0, places: int = 10) -> None:
        """Begins the job `work`, which is done by `function`."""
        table = JobTable([JobFunction("work", "default", function, grace)])
        self.runner = JobRunner(
            self.broker, table, [], believed, worker_id="w", slots=places, stop_timeout=0.1, heartbeat_s=10.0
        )
        await self.runner.start()
        self.send()

    def send(self, number: int = 1, **fields: Any) -> None:
        """One more dispatch."""
        self.broker.put(QUEUE, dispatch("work", number, **fields))

    def cancel(self, number: int = 1) -> None:
        """The word to stop."""
        word = {"jobId": f"j-{number}", "historyId": f"h-{number}", "reason": "by hand"}
        self.broker.put(cancel_queue("w"), dump(word))

    def said(self, number: int = 1) -> list[dict[str, Any]]:
        """What was said of a job."""
        bodies = [json.loads(one.body) for one in self.broker.published if one.exchange == ""]
        return [one for one in bodies if one["jobId"] == f"j-{number}"]

    async def ended(self, number: int = 1) -> dict[str, Any]:
        """The last word."""
        final = {"SUCCEEDED", "FAILED", "CANCELLED"}
        await eventually(lambda: final & {one.get("status") for one in self.said(number)}, deadline=10.0)
        return self.said(number)[-1]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A worker, once a job is run."""
    bench = Bench()
    yield bench
    if bench.runner is not None:
        await bench.runner.stop()


async def test_a_thread_talks_without_await(bench: Bench) -> None:
    here = threading.get_ident()
    threads = []

    def work(context: JobContext) -> dict[str, Any]:
        threads.append(threading.get_ident())
        context.log("begins")
        context.progress(10)
        context.progress({"percent": 20, "phase": "two"})
        assert not context.cancelled
        assert not context.wait_cancelled(0.01)
        context.raise_if_cancelled()
        context.log("ends", level="error")
        return {"number": context.payload["number"]}

    await bench.run(work)
    last = await bench.ended()
    assert (last["status"], last["result"]) == ("SUCCEEDED", {"number": 1})
    assert threads
    assert threads != [here]
    lines = [(one["level"], one["message"]) for one in bench.said() if "message" in one]
    assert lines == [("info", "begins"), ("error", "ends")]
    assert [one["seq"] for one in bench.said()] == list(range(1, len(bench.said()) + 1))
    assert last["progress"] == {"percent": 20, "phase": "two"}


async def test_a_job_in_the_loop_may_talk_from_threads_of_its_own(bench: Bench) -> None:
    async def work(context: JobContext) -> None:
        await context.log("loop")
        await asyncio.to_thread(context.log, "thread")
        await context.log("loop again")

    await bench.run(work)
    await bench.ended()
    assert [one["message"] for one in bench.said() if "message" in one] == ["loop", "thread", "loop again"]


async def test_an_error_in_a_thread_is_the_jobs(bench: Bench) -> None:
    def work(context: JobContext) -> None:
        context.log("x", level="loud")

    await bench.run(work)
    error = (await bench.ended())["error"]
    assert (error["type"], error["message"]) == (
        "BadCall",
        "context.log(level='loud'): unknown level; write debug, info, warning, error",
    )


async def test_a_thread_that_listens_stops_when_it_is_told(bench: Bench) -> None:
    def work(context: JobContext) -> None:
        context.log("listens")
        if context.wait_cancelled():
            context.log(f"heard: {context.cancel_reason}")

    await bench.run(work)
    await eventually(lambda: len(bench.said()) == 2, deadline=5.0)
    bench.cancel()
    assert (await bench.ended())["status"] == "CANCELLED"
    assert bench.said()[-2]["message"] == "heard: by hand"


async def test_a_thread_that_does_not_listen_is_left_alone_and_keeps_its_place(bench: Bench) -> None:
    told: list[str] = []
    go = threading.Event()

    def work(context: JobContext) -> None:
        if context.payload["number"] == 2:
            return
        go.wait(10.0)
        try:
            context.log("too late")
        except JobCancelled as error:
            told.append(str(error))
            raise

    await bench.run(work, grace=0.05, places=1)
    await eventually(lambda: bench.said(), deadline=5.0)
    bench.cancel()
    last = await bench.ended()
    assert (last["status"], last["error"]["message"]) == (
        "CANCELLED",
        "by hand; it did not stop in time and may still run",
    )
    bench.send(2)
    await eventually(lambda: bench.broker.queue(QUEUE).ready, deadline=5.0, message="the next one is not taken")
    assert bench.said(2) == []
    go.set()
    await bench.ended(2)
    assert told == ["by hand"]


async def test_a_thread_waits_where_it_has_more_to_say_than_fits(bench: Bench) -> None:
    taken = 0

    def work(context: JobContext) -> None:
        nonlocal taken
        bench.broker.blocked = "disk"
        for number in range(feeds.MAX_UNCONFIRMED * 2):
            context.log(number)
            taken += 1

    await bench.run(work)
    await eventually(lambda: taken == feeds.MAX_UNCONFIRMED, deadline=10.0)
    bench.broker.blocked = None
    assert (await bench.ended())["lastLogSeq"] == 2 * feeds.MAX_UNCONFIRMED + 1


async def test_a_thread_that_waits_for_room_is_freed_when_its_attempt_is_over(bench: Bench) -> None:
    told: list[BaseException] = []

    def work(context: JobContext) -> None:
        bench.broker.blocked = "disk"
        try:
            for number in range(feeds.MAX_UNCONFIRMED * 2):
                context.log(number)
        except JobCancelled as error:
            told.append(error)
            raise

    await bench.run(work, grace=0.05)
    await eventually(lambda: bench.broker.blocked, deadline=5.0)
    bench.cancel()
    await eventually(lambda: told, deadline=5.0)
    bench.broker.blocked = None
    assert (await bench.ended())["status"] == "CANCELLED"


async def test_sigterm_does_not_wait_for_a_thread(bench: Bench) -> None:
    go = threading.Event()

    def work(context: JobContext) -> None:
        go.wait(10.0)

    await bench.run(work)
    await eventually(lambda: bench.said(), deadline=5.0)
    assert bench.runner is not None
    async with asyncio.timeout(5.0):
        await bench.runner.stop()
    last = bench.said()[-1]
    assert (last["status"], last["error"]["type"]) == ("FAILED", "WorkerStopped")
    go.set()


async def test_an_answer_that_is_there_can_be_awaited_and_is_as_true_as_it_is() -> None:
    assert (
        await CompletedAwaitable(3),
        bool(CompletedAwaitable(3)),
        bool(CompletedAwaitable(0)),
        bool(CompletedAwaitable(None)),
    ) == (3, True, False, False)


async def test_who_asks_a_loop_that_has_ended_is_cancelled() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def nothing() -> None:
        return

    with pytest.raises(asyncio.CancelledError):
        ask(loop, nothing)


class Stop(BaseException):
    """An author's own, which no `except Exception` catches."""


@pytest.mark.parametrize("error", [Stop("x"), StopIteration("x"), GeneratorExit("x")])
async def test_whatever_it_raises_is_told_at_once_and_where(
    bench: Bench, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(context: JobContext) -> None:
        raise error

    await bench.run(stop)
    told = {"type": type(error).__name__, "message": "x", "retryable": True}
    assert (await bench.ended())["error"] == told
    (line,) = [one for one in caplog.records if one.exc_info]
    assert line.exc_info
    assert line.exc_info[2] is not None
    assert traceback.extract_tb(line.exc_info[2])[-1].filename == __file__
