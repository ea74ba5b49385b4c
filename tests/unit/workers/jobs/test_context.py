"""What may a job say, and what does it learn?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.testing.virtual_time import elapse
from tests.support import eventually
from workers import JobCancelled, JobContext
from workers.sdk.jobs.context import MAX_LOG
from workers.sdk.jobs.halt import Cause, Halt

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
        ("x" * (MAX_LOG + 5), "x" * MAX_LOG + "… (5 characters more)"),
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
        (-1, "ValueError: progress is a percentage from 0 to 100, not -1"),
        (100.5, "ValueError: progress is a percentage"),
        (float("nan"), "ValueError: progress is a percentage"),
        (True, "TypeError: progress is a percentage or a mapping, not a bool"),
        (5j, "TypeError: progress is a percentage or a mapping, not a complex"),
        pytest.param(10**5000, "ValueError: progress is a percentage from 0 to 100, not <int>", id="huge"),
        pytest.param({"x": 10**5000}, "ValueError: progress cannot be sent: a number has more than", id="much"),
        ("half", "TypeError: progress is a percentage or a mapping, not a str"),
        ({"x": "y" * 5000}, "ValueError: progress is 5008 bytes of JSON, at most 4096 are allowed"),
        ({"x": object()}, "TypeError: progress cannot be sent: Object of type object is not JSON serializable"),
        ({"x": "\0"}, "ValueError: progress cannot be sent: a text in it has a NUL character"),
    ],
)
def test_progress_that_cannot_be_told_is_an_error_of_the_job(house: House, done: Any, error: str) -> None:
    async def talk(context: JobContext) -> None:
        await context.progress(done)

    async def days() -> None:
        await house.open(talk=talk)
        house.send("talk")
        await house.ended()
        told = house.last()["error"]
        assert f"{told['type']}: {told['message']}".startswith(error)

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
        assert house.last()["error"]["message"].endswith("it did not stop in time, and may go on unheard")
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
        halt = Halt()
        halt.set(Cause.CANCELLED, "one")
        halt.set(Cause.TIMED_OUT, "two")
        assert (halt.cause, halt.reason) == (Cause.CANCELLED, "one")

    house.play(days())
