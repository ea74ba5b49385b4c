"""What may a job say, and what does it learn?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from orchestrix import JobCancelled, JobContext
from orchestrix.telemetry import log_events
from orchestrix.testing.simulation.virtual_time import elapse
from orchestrix.worker.jobs.context import MAX_LOG
from orchestrix.worker.jobs.stop_signal import StopCause, StopSignal
from tests.support import eventually, logged

from .house import House


def test_the_context_says_what_the_dispatch_says(house: House) -> None:
    seen: list[JobContext] = []

    async def look(context: JobContext) -> None:
        seen.append(context)

    async def days() -> None:
        await house.open(["bulk"], look=look)
        house.send("look", 7, queue="bulk", attempt=3, timeoutMs=1500, payload=[1, "two"])
        await house.ended(7)
        (context,) = seen
        assert (context.job_id, context.history_id, context.attempt) == ("j-7", "h-7", 3)
        assert (context.name, context.queue, context.payload) == ("look", "bulk", [1, "two"])
        assert (context.timeout, context.correlation_id) == (1.5, "c-7")
        assert context.remaining <= 1.5

    house.play(days())


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("plain", "plain"),
        (7, "7"),
        ("nul \0 half \ud800", "nul � half �"),
        ("x" * (MAX_LOG + 5), "x" * MAX_LOG + "… (5 more characters)"),
    ],
)
def test_any_text_can_be_logged(house: House, said: object, kept: str) -> None:
    async def talk(context: JobContext) -> None:
        await context.log(said, level="debug")

    async def days() -> None:
        await house.open(talk=talk)
        house.send("talk")
        await house.ended()
        assert house.messages() == [kept]

    house.play(days())


@pytest.mark.parametrize(
    ("done", "error"),
    [
        (-1, "progress is a percentage from 0 to 100, not -1"),
        (100.5, "progress is a percentage"),
        (float("nan"), "progress is a percentage"),
        (True, "progress is a percentage or a mapping, not a bool"),
        (5j, "progress is a percentage or a mapping, not a complex"),
        pytest.param(10**5000, "progress is a percentage from 0 to 100, not <int>", id="huge"),
        pytest.param({"x": 10**5000}, "progress cannot be sent: ['x'] is a number that has more than", id="much"),
        ("half", "progress is a percentage or a mapping, not a str: write await context.progress(50)"),
        ({"x": "y" * 5000}, "progress cannot be sent: it has 5008 bytes; at most 4096 are allowed"),
        ({"x": object()}, "progress cannot be sent: ['x'] is an object, which JSON cannot hold"),
        ({"x": [Decimal(1)]}, "progress cannot be sent: ['x'][0] is a Decimal, which JSON cannot hold"),
        ({1: 2}, "progress cannot be sent: it has the key 1, an int, but keys are strings in JSON"),
        ({"x": "\0"}, "progress cannot be sent: ['x'] is a string with a NUL character"),
    ],
)
def test_progress_that_cannot_be_told_is_a_mistake_that_no_attempt_will_mend(
    house: House, done: Any, error: str
) -> None:
    async def talk(context: JobContext) -> None:
        await context.progress(done)

    told = told_of(house, talk)
    assert (told["type"], told["retryable"]) == ("BadCall", False)
    assert told["message"].startswith(error)


def told_of(house: House, job: Any) -> dict[str, Any]:
    """The error that the job has ended with."""

    async def days() -> None:
        await house.open(mistaken=job)
        house.send("mistaken")
        await house.ended()

    house.play(days())
    error: dict[str, Any] = house.last()["error"]
    return error


WAIT = "expected a number of seconds, 0 or more, or None"
MISTAKES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda it: it.wait_cancelled("5"), f"context.wait_cancelled(timeout='5'): {WAIT}, e.g. timeout=5"),
    (lambda it: it.wait_cancelled(-1), f"context.wait_cancelled(timeout=-1): {WAIT}"),
    (lambda it: it.wait_cancelled(float("nan")), f"context.wait_cancelled(timeout=nan): {WAIT}"),
    (lambda it: it.wait_cancelled(True), f"context.wait_cancelled(timeout=True): {WAIT}"),
    (lambda it: it.wait_cancelled(timedelta(minutes=1)), f"{WAIT}, e.g. timeout=60"),
    (
        lambda it: it.wait_cancelled(seconds=5),
        "context.wait_cancelled(seconds=5): unknown argument seconds=: write await ",
    ),
    (lambda it: it.log(), 'context.log(): message is missing: write await context.log("page 3", level="info")'),
    (lambda it: it.log("a", "info", 3), "context.log('a', 'info', 3): it takes 2 arguments without a name, not 3"),
    (lambda it: it.log("a", "loud"), "context.log(level='loud'): unknown level; write debug, info, warning"),
    (lambda it: it.log("a", level=10), "context.log(level=10): unknown level"),
    (
        lambda it: it.log.info("a"),
        'context.log.info(…) is for steps: a job writes await context.log("…", level="info")',
    ),
    (lambda it: it.progress(), "context.progress(): done is missing: write await context.progress(50)"),
    (lambda it: it.progress(3, 9), "context.progress(3, 9): it takes one argument without a name, not 2"),
    (lambda it: it.sleep, "the context of a job has no sleep: write await asyncio.sleep(…)"),
    (lambda it: setattr(it, "progress", 50), "context.progress cannot be set: write await context.progress(…)"),
    (lambda it: setattr(it, "payload", {}), "context.payload cannot be set"),
    (lambda it: setattr(it, "cancelled", True), "context.cancelled cannot be set"),
    (lambda it: it.data, "the context of a job has no data: a job's input is context.payload"),
    (lambda it: it.pay_load, "the context of a job has no pay_load: did you mean payload?"),
    (lambda it: it.colour, "the context of a job has no colour: it has attempt, cancel_reason, cancelled, "),
    (
        lambda it: 1 if it.wait_cancelled(5) else 0,
        "context.wait_cancelled(…) has no answer before it is awaited: write",
    ),
    (lambda it: not it.progress(5), "context.progress(…) has no answer before it is awaited: write await"),
]


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES)
def test_a_wrong_call_is_a_mistake_that_no_attempt_will_mend(
    house: House, mistake: Callable[[Any], Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(context: JobContext) -> None:
        mistake(context)

    told = told_of(house, mistaken)
    assert (told["type"], told["retryable"]) == ("BadCall", False)
    assert sentence in told["message"]
    assert "test_context.py" in caplog.text, "the author sees where he wrote it"


def test_what_is_not_awaited_says_so_with_its_place(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def forgets(context: JobContext) -> None:
        context.log("never")
        await asyncio.gather(context.log("gathered"), asyncio.create_task(cast(Any, context.log("a task"))))
        await asyncio.wait_for(context.log("in time"), 5)

    async def days() -> None:
        await house.open(forgets=forgets)
        house.send("forgets")
        await house.ended()
        assert (house.last()["status"], sorted(house.messages())) == ("SUCCEEDED", ["a task", "gathered", "in time"])

    house.play(days())
    (line,) = [record.getMessage() for record in caplog.records if "not awaited" in record.getMessage()]
    assert line.startswith("context.log(…) was not awaited, and did nothing: write await context.log(…) (")
    assert "test_context.py, line " in line
    assert len(logged(caplog, log_events.CALL_NOT_AWAITED)) == 1


def test_a_job_may_keep_what_is_its_own_on_its_context(house: House) -> None:
    async def counts(context: Any) -> dict[str, int]:
        context.pages = 0
        context.pages += 3
        return {"pages": context.pages}

    async def days() -> None:
        await house.open(counts=counts)
        house.send("counts")
        await house.ended()
        assert house.last()["result"] == {"pages": 3}

    house.play(days())


def test_an_infinite_wait_is_one_without_an_end(house: House) -> None:
    seen: list[bool] = []

    async def waits(context: JobContext) -> None:
        seen.append(await context.wait_cancelled(context.remaining))

    async def days() -> None:
        await house.open(waits=waits)
        house.send("waits")
        await house.says("RUNNING")
        await house.stop_job()
        await house.ended()
        assert (seen, house.last()["status"]) == ([True], "CANCELLED")

    house.play(days())


def test_a_job_that_never_looked_and_returns_has_done_its_work(house: House) -> None:
    async def busy(context: JobContext) -> dict[str, bool]:
        await elapse(5.0)
        return {"done": True}

    async def looks(context: JobContext) -> dict[str, bool]:
        while not context.cancelled:
            await elapse(0.1)
        return {"done": False}

    async def days() -> None:
        await house.open(busy=busy, looks=looks)
        house.send("busy", 1)
        house.send("looks", 2)
        await house.says("RUNNING", 2)
        await house.stop_job(1)
        await house.stop_job(2)
        await house.ended(1, 2)
        assert (house.last(1)["status"], house.last(1)["result"]) == ("SUCCEEDED", {"done": True})
        assert (house.last(2)["status"], house.last(2)["result"]) == ("CANCELLED", None)

    house.play(days())


def test_an_error_on_the_way_out_does_not_hide_the_cancel(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def clumsy(context: JobContext) -> None:
        await context.wait_cancelled()
        raise KeyError("on the way out")

    async def days() -> None:
        await house.open(clumsy=clumsy)
        house.send("clumsy")
        await house.says("RUNNING")
        await house.stop_job()
        await house.ended()
        assert house.last()["status"] == "CANCELLED"
        assert "on the way out" in caplog.text

    house.play(days())


def test_a_job_that_cannot_be_cancelled_is_left_alone(house: House) -> None:
    over = asyncio.Event()

    async def stubborn(context: JobContext) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async def days() -> None:
        await house.open(places=1, stubborn=stubborn)
        house.send("stubborn", 1, 2)
        await house.says("RUNNING")
        began = house.loop.time()
        await house.stop_job()
        await house.ended()
        assert house.loop.time() - began == pytest.approx(15.0, abs=0.2)
        assert house.last()["error"]["message"].endswith("it did not stop in time and may still run")
        await house.later(20.0)
        assert house.of(2) == [], "its place is taken still"
        over.set()
        await house.ended(2)

    house.play(days())


def test_a_task_that_outlives_its_job_is_not_heard(house: House) -> None:
    told: list[str] = []

    async def leave(context: JobContext) -> None:
        async def stay() -> None:
            await elapse(1.0)
            try:
                await context.log("late")
            except JobCancelled as error:
                told.append(f"{error} {context.cancelled} {context.cancel_reason}")

        tasks.append(asyncio.create_task(stay()))

    tasks: list[asyncio.Task[None]] = []

    async def days() -> None:
        await house.open(leave=leave)
        house.send("leave")
        await house.ended()
        await eventually(lambda: told, deadline=5.0)
        assert told == ["the job has ended True the job has ended"]
        assert house.messages() == []

    house.play(days())


def test_the_first_word_to_stop_counts(house: House) -> None:
    async def days() -> None:
        halt = StopSignal()
        halt.set(StopCause.CANCELLED, "one")
        halt.set(StopCause.TIMED_OUT, "two")
        assert (halt.cause, halt.reason) == (StopCause.CANCELLED, "one")

    house.play(days())
