"""Which jobs are run, how are they held, and what is said of them?"""

from __future__ import annotations

import asyncio
import logging
import pkgutil
import traceback
from itertools import pairwise
from typing import Any

import pytest

from orchestrix import JobContext, Permanent, Retry
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX, job_channels, logs_queue, status_queue
from orchestrix.errors import ConfigError
from orchestrix.testing.simulation.virtual_time import elapse
from orchestrix.worker.jobs import slots
from orchestrix.worker.jobs.functions import JobTable
from orchestrix.worker.jobs.runner import JobRunner
from tests.support import eventually

from .house import House, believed, dispatch, tasks

pytestmark = pytest.mark.virtual_time


async def echo(context: JobContext) -> Any:
    await context.log(f"attempt {context.attempt}")
    await context.progress(50)
    await context.log("half", level="warning")
    return {"payload": context.payload}


class Stop(BaseException):
    """An author's own, which no `except Exception` catches."""


EXITED = "it called exit(), which does not end a worker: return, or raise an error with the reason"
ALONE = "it was not cancelled: something that it awaited was, or it raised this itself"


class Gate:
    """A job that tells when it begins and ends when it is let."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.open = asyncio.Event()

    async def __call__(self, context: JobContext) -> None:
        self.begun.append(context.payload["number"])
        await self.open.wait()

    async def has_begun(self, count: int) -> None:
        """Waits until so many have begun."""
        await eventually(lambda: len(self.begun) >= count, deadline=30.0, message=f"{count} begun: {self.begun}")


@pytest.mark.req("S0-11", "S0-14", "S0-15", "S0-25", "S0-26")
def test_a_job_says_all_that_happens_by_one_number_on_its_own_channels(house: House) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        house.send("echo")
        await house.ended()
        who = {"jobId": "j-1", "historyId": "h-1", "workerId": "worker-1"}
        nothing = {"result": None, "error": None}
        status, logs = status_queue("j-1"), logs_queue("j-1")
        first, second, third, fourth, fifth = house.of()
        assert first == {**who, "seq": 1, "status": "RUNNING", "progress": None, **nothing, "queue": status}
        assert {**second, "at": None} == {
            **who,
            "seq": 2,
            "level": "info",
            "message": "attempt 1",
            "at": None,
            "queue": logs,
        }
        assert second["at"].startswith("2026-01-01T00:16:40.")
        assert second["at"].endswith("Z")
        assert third == {**who, "seq": 3, "status": "RUNNING", "progress": {"percent": 50}, **nothing, "queue": status}
        assert (fourth["seq"], fourth["level"], fourth["message"], fourth["queue"]) == (4, "warning", "half", logs)
        assert fifth == {
            **who,
            "seq": 5,
            "status": "SUCCEEDED",
            "progress": {"percent": 50},
            "error": None,
            "result": {"payload": {"number": 1}},
            "lastLogSeq": 4,
            "queue": status,
        }
        assert house.runner.counts.succeeded == 1

    house.play(days())


def test_all_that_a_job_says_joins_the_trace_of_its_dispatch(house: House) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"}

    async def days() -> None:
        await house.open(echo=echo)
        house.put_channels(1)
        house.put(dispatch("echo"), headers={**trace, "x-other": "no"})
        await house.ended()
        assert house.headers == [trace] * 5

    house.play(days())


def test_the_dispatch_is_acknowledged_when_the_broker_has_running_and_the_work_begins_then(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        house.server.raise_alarm("disk")
        house.send("gate")
        await house.later(5.0)
        assert (house.acknowledged, gate.begun) == ([], [])
        house.server.clear_alarm()
        await gate.has_begun(1)
        assert [one.queue for one in house.acknowledged] == [f"{DISPATCH_QUEUE_PREFIX}default"]
        assert house.statuses() == ["RUNNING"]
        assert house.server.depth(f"{DISPATCH_QUEUE_PREFIX}default") == 0
        gate.open.set()
        await house.ended()

    house.play(days())


class NoDisk(Permanent):
    """A kind of failure of an author's own that does not call our `__init__`."""

    def __init__(self, disk: int) -> None:
        self.disk = disk


SECONDS = "expected a number of seconds, 0 or more, or None, e.g. after=30"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Permanent("Gone", "no such index"), {"type": "Gone", "message": "no such index", "retryable": False}),
        (
            Retry(after=30, message="busy"),
            {"type": "Retry", "message": "busy", "retryable": True, "retryAfterMs": 30_000},
        ),
        (lambda: Retry(after=-5), {"type": "BadCall", "message": f"Retry(after=-5): {SECONDS}", "retryable": False}),
        (Permanent("only"), {"type": "Permanent", "message": "only", "retryable": False}),
        (NoDisk(3), {"type": "NoDisk", "message": "3", "retryable": False}),
        (ExceptionGroup("", [NoDisk(4)]), {"type": "NoDisk", "message": "4", "retryable": False}),
        (KeyError("colour"), {"type": "KeyError", "message": "'colour'", "retryable": True}),
        (SystemExit(3), {"type": "SystemExit", "message": "3", "retryable": True}),
        (KeyboardInterrupt(), {"type": "KeyboardInterrupt", "message": "no reason given", "retryable": True}),
        (SystemExit(), {"type": "SystemExit", "message": EXITED, "retryable": True}),
        (asyncio.CancelledError(), {"type": "CancelledError", "message": ALONE, "retryable": True}),
        (StopIteration("x"), {"type": "StopIteration", "message": "x", "retryable": True}),
        (Stop("enough"), {"type": "Stop", "message": "enough", "retryable": True}),
        (GeneratorExit("enough"), {"type": "GeneratorExit", "message": "enough", "retryable": True}),
    ],
)
def test_an_error_is_told_with_what_may_help(
    house: House, error: Any, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(context: JobContext) -> None:
        await context.log("tries")
        raise error if isinstance(error, BaseException) else error()

    caplog.set_level(logging.WARNING, "orchestrix.worker")

    async def days() -> None:
        await house.open(fail=fail)
        house.send("fail")
        await house.ended()
        last = house.last()
        assert (last["status"], last["error"], last["result"], last["lastLogSeq"]) == ("FAILED", said, None, 2)
        (line,) = [one for one in caplog.records if one.getMessage().startswith("job fail failed")]
        if line.exc_info and said["type"] != "BadCall":
            assert line.exc_info[2] is not None
            assert traceback.extract_tb(line.exc_info[2])[-1].filename == __file__

    house.play(days())


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (7, "it is an int: return a mapping, or None"),
        pytest.param({"x": 10**5000}, "cannot be sent: ['x'] is a number that has more than 4300 digits", id="huge"),
        ({"x": float("nan")}, "['x'] is nan, which JSON cannot hold"),
        ({"x": "y" * 70_000}, "it has 70008 bytes; at most 65536 are allowed"),
        ({"x": object()}, "['x'] is an object, which JSON cannot hold: give a string, number, list or dict"),
        ({"x": {1: 2}}, "['x'] has the key 1, an int"),
        ({"x": "\0"}, "cannot be sent: ['x'] is a string with a NUL character or a lone surrogate"),
        ({"x": "\ud800"}, "cannot be sent: ['x'] is a string with a NUL character or a lone surrogate"),
    ],
)
def test_a_result_that_cannot_be_sent_fails_the_job_for_good(
    house: House, result: Any, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def odd(context: JobContext) -> Any:
        return result

    async def days() -> None:
        await house.open(odd=odd)
        house.send("odd")
        await house.ended()
        error = house.last()["error"]
        assert (error["type"], error["retryable"]) == ("BadResult", False)
        assert sentence in error["message"]
        assert sentence in caplog.text

    house.play(days())


def test_a_job_that_nobody_knows_fails_at_once_and_is_not_given_back(house: House) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        house.send("other")
        await house.ended()
        (last,) = house.of()
        assert (last["status"], last["seq"], last["lastLogSeq"]) == ("FAILED", 1, 0)
        assert last["error"]["retryable"] is False
        assert "queue default has no function for job 'other'" in last["error"]["message"]
        await eventually(lambda: len(house.acknowledged) == 1, deadline=5.0)

    house.play(days())


UNREADABLE = [
    (b"null", "not-an-object"),
    (b"{}", "channels: must be an object"),
    (dispatch("echo", channels={"status": "s"}), "logs: is missing"),
    (dispatch("echo", jobId=7, channels={"status": "s", "logs": "l"}), "jobId: must be a string"),
    (dispatch("echo", attempt=0), "attempt: must be a whole number above 0"),
    (dispatch("echo", timeoutMs="soon"), "timeoutMs: must be a whole number above 0"),
    (dispatch(""), "handler: is missing"),
]


@pytest.mark.parametrize(("body", "reason"), UNREADABLE, ids=[reason for _, reason in UNREADABLE])
def test_a_dispatch_that_cannot_be_read_goes_to_the_dead_letters_as_it_came(
    house: House, body: bytes, reason: str
) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        house.put(body)
        house.send("echo", 2)
        await house.ended(2)
        await eventually(lambda: len(house.acknowledged) == 2, deadline=5.0)
        (letter,) = house.dead
        assert (letter.routing_key, letter.body) == (f"{DISPATCH_QUEUE_PREFIX}default", body)
        assert str(letter.headers["x-reason"]).startswith(reason)

    house.play(days())


def test_no_more_jobs_run_at_once_than_there_are_places_and_others_may_have_the_rest(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(places=2, gate=gate)
        house.send("gate", *range(1, 8))
        await gate.has_begun(2)
        await house.later(20.0)
        assert len(gate.begun) == 2
        queue = house.server._queues[f"{DISPATCH_QUEUE_PREFIX}default"]
        assert len(queue.ready) == 5, "nothing is kept from other workers"
        gate.open.set()
        await house.ended(*range(1, 8))
        assert sorted(gate.begun) == list(range(1, 8))

    house.play(days())


def test_what_was_given_back_often_is_kept_until_there_is_a_place(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(["a", "b", "c"], places=1, gate=gate)
        house.server.delivery_limit = 2 * slots.MAX_REQUEUES
        for queue, numbers in (("a", range(1, 20)), ("b", range(20, 40)), ("c", range(40, 60))):
            house.send("gate", *numbers, queue=queue)
        gate.open.set()
        await house.ended(*range(1, 60), within=600.0)
        assert (sorted(gate.begun), house.dead) == (list(range(1, 60)), [])

    house.play(days())


def test_a_second_copy_of_a_dispatch_changes_nothing_while_it_runs_and_when_it_is_over(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        house.send("gate", 1, 1)
        await gate.has_begun(1)
        await eventually(lambda: len(house.acknowledged) == 2, deadline=5.0)
        gate.open.set()
        await house.ended()
        house.send("gate", 1)
        await eventually(lambda: len(house.acknowledged) == 3, deadline=5.0)
        assert (gate.begun, house.statuses()) == ([1], ["RUNNING", "SUCCEEDED"])
        assert house.runner.counts.joined == 2

    house.play(days())


def test_a_dispatch_that_went_back_before_it_was_acknowledged_is_begun_by_whoever_gets_it_next(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        gate.open.set()
        await house.open(gate=gate)
        house.server.raise_alarm("disk")
        house.send("gate")
        await house.later(3.0)
        await house.runner._parts.job_slots._consumer.reopen()  # type: ignore[union-attr]
        await house.later(3.0)
        house.server.clear_alarm()
        await house.ended()
        assert gate.begun == [1]
        assert house.server.depth(f"{DISPATCH_QUEUE_PREFIX}default") == 0

    house.play(days())


def test_a_dispatch_that_another_worker_has_got_meanwhile_is_not_begun(house: House) -> None:
    async def days() -> None:
        first, second = Gate(), Gate()
        runner = await house.open(gate=first)
        house.server.raise_alarm("disk")
        house.send("gate")
        await house.later(3.0)
        assert runner._parts is not None
        consumer = runner._parts.job_slots._consumer
        await consumer.pause()
        await consumer.reopen()
        await house.open(worker_id="worker-2", gate=second, beats=False)
        house.server.clear_alarm()
        await second.has_begun(1)
        await house.later(3.0)
        assert (first.begun, runner.counts.lost, runner._parts.job_slots.attempts) == ([], 1, {})
        second.open.set()
        await house.ended()
        assert house.last()["workerId"] == "worker-2"

    house.play(days())


@pytest.mark.req("S0-18")
def test_a_worker_beats_with_all_that_it_holds(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        runner = await house.open(["default", "bulk"], gate=gate)
        house.send("gate", 1, 2)
        await gate.has_begun(2)
        await house.later(25.0)
        times = [at for at, _ in house.beats]
        assert [round(later - earlier) for earlier, later in pairwise(times)][-2:] == [10, 10]
        _, beat = house.beats[-1]
        jobs = sorted(beat.pop("jobs"), key=lambda one: one["jobId"])
        assert jobs == [{"jobId": "j-1", "historyId": "h-1"}, {"jobId": "j-2", "historyId": "h-2"}]
        assert beat.pop("timestamp").endswith("Z")
        assert beat == {"workerId": "worker-1", "queues": ["default", "bulk"], "state": "ALIVE"}
        gate.open.set()
        await house.ended(1, 2)
        await house.later(11.0)
        assert house.beats[-1][1]["jobs"] == []
        assert runner.counts.succeeded == 2

    house.play(days())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_tells_of_channels_that_it_has_made_anew_also_after_the_attempt(house: House, stopped: bool) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        if stopped:
            await house.stop_job(1)
            await house.later(1.0)
        house.send("echo", 1, channels=False)
        house.send("echo", 2)
        await house.ended(1, 2)
        seen = len(house.beats)
        await eventually(lambda: len(house.beats) == seen + 4, deadline=60.0)
        named = [beat["jobs"] for _, beat in house.beats[seen:]]
        assert named == [[{"jobId": "j-1", "historyId": "h-1"}]] * 3 + [[]], "else nobody clears them away again"

    house.play(days())


def test_a_worker_that_ends_says_that_it_serves_nothing_more_and_at_last_that_it_is_gone(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        runner = await house.open(gate=gate)
        house.send("gate", 1)
        await gate.has_begun(1)
        ending = asyncio.create_task(runner.stop())
        await house.later(2.0)
        beat = house.beats[-1][1]
        assert (beat["state"], beat["queues"], len(beat["jobs"])) == ("DRAINING", [], 1)
        gate.open.set()
        await ending
        beat = house.beats[-1][1]
        assert (beat["state"], beat["queues"], beat["jobs"]) == ("LEFT", [], [])

    house.play(days())


@pytest.mark.parametrize("away", [0.5, 33.0])
def test_a_worker_beats_at_once_when_the_broker_is_back(house: House, away: float) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        await eventually(lambda: len(house.beats) == 2, deadline=12.0)
        house.server.stop()
        await house.later(away)
        house.server.start()
        back = house.loop.time()
        await house.broker.wait_connected()
        await eventually(lambda: house.beats[-1][0] > back, deadline=6.0)

    house.play(days())


def test_a_worker_that_dies_beats_no_more_and_its_job_is_nobodys(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        process = house.loop.process("worker")
        await process.spawn(house.open(gate=gate))
        house.send("gate")
        await gate.has_begun(1)
        process.on_death.append(house.broker.disconnect)
        process.kill()
        seen = len(house.beats)
        await house.later(60.0)
        assert len(house.beats) == seen
        assert house.statuses() == ["RUNNING"]
        assert house.server.depth(f"{DISPATCH_QUEUE_PREFIX}default") == 0, (
            "it was acknowledged early: only the beats tell"
        )

    house.play(days())


def test_sigterm_takes_no_more_and_lets_jobs_end(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        house.send("gate")
        await gate.has_begun(1)
        stopping = asyncio.create_task(house.close())
        await elapse(0.1)
        house.send("gate", 2)
        await house.later(12.0)
        assert (gate.begun, house.beats[-1][1]["jobs"]) == ([1], [{"jobId": "j-1", "historyId": "h-1"}])
        gate.open.set()
        began = house.loop.time()
        await stopping
        assert house.loop.time() - began < 1.0
        assert house.statuses() == ["RUNNING", "SUCCEEDED"]
        assert house.server.depth(f"{DISPATCH_QUEUE_PREFIX}default") == 1

    house.play(days())


def test_sigterm_gives_up_what_does_not_end_so_that_another_attempt_begins_at_once(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate, stop_timeout=5.0)
        house.send("gate", 1, 2)
        await gate.has_begun(2)
        began = house.loop.time()
        await house.close()
        assert house.loop.time() - began == pytest.approx(5.0, abs=0.5)
        for number in (1, 2):
            error = house.last(number)["error"]
            assert (house.statuses(number), error["retryable"]) == (["RUNNING", "FAILED"], True)
            assert (error["type"], error["message"]) == (
                "WorkerStopped",
                "the worker stopped before the job ended",
            )

    house.play(days())


def test_a_stop_without_a_broker_is_not_held_up(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate, stop_timeout=5.0)
        house.send("gate")
        await gate.has_begun(1)
        house.server.stop()
        began = house.loop.time()
        await house.close()
        assert house.loop.time() - began < 20.0
        assert house.statuses() == ["RUNNING"]

    house.play(days())


@pytest.mark.req("S0-12")
def test_a_job_that_waits_is_cancelled_after_its_grace(house: House) -> None:
    cleaned = []

    async def wait(context: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(context.cancel_reason)

    async def days() -> None:
        await house.open(wait=wait)
        house.send("wait")
        await house.says("RUNNING")
        began = house.loop.time()
        await house.stop_job(reason="not needed")
        await house.says("CANCELLED")
        assert house.loop.time() - began == pytest.approx(10.0, abs=0.2)
        assert house.last()["error"] == {"type": "Cancelled", "message": "not needed", "retryable": False}
        assert cleaned == ["not needed"]
        assert house.runner.counts.cancelled == 1

    house.play(days())


def test_a_job_that_listens_ends_at_once_and_says_so(house: House) -> None:
    async def listen(context: JobContext) -> None:
        if await context.wait_cancelled():
            await context.log("cleans up")
            context.raise_if_cancelled()

    async def days() -> None:
        await house.open(listen=listen)
        house.send("listen", 1, 2)
        await house.says("RUNNING", 2)
        began = house.loop.time()
        await house.stop_job(1)
        await house.ended(1)
        assert house.loop.time() - began < 0.2
        assert (house.statuses(1), house.messages(1)) == (["RUNNING", "CANCELLED"], ["cleans up"])
        assert (house.last(1)["lastLogSeq"], house.statuses(2)) == (2, ["RUNNING"])
        await house.stop_job(2, historyId=None)
        await house.ended(2)
        assert house.statuses(2) == ["RUNNING", "CANCELLED"]

    house.play(days())


def test_a_word_for_another_attempt_concerns_nobody_here(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        house.send("gate")
        await gate.has_begun(1)
        await house.stop_job(1, historyId="h-0")
        await house.later(15.0)
        assert house.statuses() == ["RUNNING"]
        gate.open.set()
        await house.ended()
        assert house.statuses() == ["RUNNING", "SUCCEEDED"]

    house.play(days())


def test_a_job_that_was_cancelled_before_its_dispatch_came_is_not_begun(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        await house.stop_job(1)
        await house.later(60.0)
        house.send("gate")
        await house.ended()
        assert (gate.begun, house.statuses()) == ([], ["CANCELLED"])
        await eventually(
            lambda: len([one for one in house.acknowledged if DISPATCH_QUEUE_PREFIX in one.queue]) == 1, deadline=5.0
        )

    house.play(days())


def test_a_word_that_cannot_be_read_is_passed_over(house: House) -> None:
    async def days() -> None:
        gate = Gate()
        await house.open(gate=gate)
        house.send("gate")
        await gate.has_begun(1)
        await house.stop_job(1, jobId=None)
        await house.stop_job(1)
        await house.ended()
        assert house.statuses(1)[-1] == "CANCELLED"

    house.play(days())


def test_a_job_has_its_time_and_no_more(house: House) -> None:
    remaining = []

    async def slow(context: JobContext) -> None:
        remaining.append((context.timeout, round(context.remaining)))
        while not context.cancelled:
            await elapse(0.5)

    async def days() -> None:
        await house.open(slow=slow)
        house.send("slow", timeoutMs=3000)
        began = house.loop.time()
        await house.ended()
        assert house.loop.time() - began == pytest.approx(5.0, abs=0.6), "the coordinator's word may come first"
        assert house.last()["error"] == {
            "type": "Timeout",
            "message": "timed out after 3 s",
            "retryable": True,
        }
        assert remaining == [(3.0, 3)]

    house.play(days())


def test_jobs_leave_nothing_behind(house: House) -> None:
    async def days() -> None:
        await house.open(echo=echo)
        await house.later(1.0)
        before = tasks()
        for first in range(1, 200, 50):
            house.send("echo", *range(first, first + 50))
            await house.ended(*range(first, first + 50))
        await eventually(lambda: tasks() == before, deadline=5.0)
        parts = house.runner._parts
        assert parts is not None
        assert (parts.job_slots.attempts, parts.job_slots._tasks, parts.job_slots._kept) == ({}, set(), [])

    house.play(days())


def test_what_is_remembered_has_an_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MEMORY_LIMIT", 3)

    async def days() -> None:
        memory: slots.RecentMemory[int] = slots.RecentMemory()
        for number in range(5):
            memory.put(str(number), number)
        assert [memory.get(str(number)) for number in range(5)] == [None, None, 2, 3, 4]
        await elapse(slots.MEMORY_S + 1)
        assert memory.get("4") is None

    house.play(days())


def test_a_worker_without_jobs_or_with_a_queue_that_cannot_be_is_refused(house: House) -> None:
    async def days() -> None:
        with pytest.raises(ConfigError, match=r"this worker has no jobs: add a module with @job"):
            JobRunner(
                None,  # type: ignore[arg-type]
                JobTable(),
                ["x"],
                believed,
                worker_id="w",
                slots=1,
                stop_timeout=1,
                heartbeat_s=1,
            )
        with pytest.raises(ConfigError, match=r"'a b' cannot be a job queue"):
            await house.open(["a b"], echo=echo)

    house.play(days())


def test_the_channels_of_a_job_have_one_reader_each() -> None:
    for queue in job_channels("j-1").queues:
        assert queue.arguments == {"x-queue-type": "quorum", "x-single-active-consumer": True}


@pytest.mark.parametrize("place", ["attempt.AttemptRunner.run", "slots.JobSlots.admit"])
def test_whatever_goes_wrong_in_the_worker_itself_is_told_and_the_dispatch_comes_again(
    house: House, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole: Any = pkgutil.resolve_name(f"orchestrix.worker.jobs.{place}")
    errors = [Stop("a bug")]

    async def broken(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await whole(*arguments)

    monkeypatch.setattr(f"orchestrix.worker.jobs.{place}", broken)

    async def days() -> None:
        await house.open(echo=echo)
        house.send("echo")
        await house.ended()
        assert house.last()["status"] == "SUCCEEDED"
        assert not errors
        assert "a bug" in caplog.text

    house.play(days())
