"""What does a handler's answer or error become?"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from unittest import mock

import pytest

from app import clock
from app.broker.port import Outgoing
from sagas import Command
from sagas.engine import messages
from tests.support import eventually
from workers import Context, Permanent, Retry, StepFailed, Transient, Unavailable
from workers.sdk import limit
from workers.sdk.handlers import Handler
from workers.sdk.invoke import invoke
from workers.sdk.job import Job

from .rig import COMMAND, CREATED, FAILED, TRACE, job


def raising(error: BaseException) -> Handler:
    async def handler(context: Context, command: Command) -> None:
        raise error

    return handler


def returning(answer: object) -> Handler:
    async def handler(context: Context, command: Command) -> Any:
        return answer

    return handler


async def error_of(handler: Handler, ordered: Command = COMMAND) -> dict[str, Any]:
    """The error that is reported; the event is one that the orchestrator can read."""
    event, good = await invoke(handler, replace_time(ordered))
    assert (good, event.routing_key) == (False, FAILED)
    assert messages.event(FAILED, event.body).error is not None
    error: dict[str, Any] = json.loads(event.body)["error"]
    return error


def replace_time(ordered: Command) -> Any:
    made = job(ordered)
    made.looked = clock.monotonic()
    return made


FAILURES: list[tuple[StepFailed, dict[str, Any]]] = [
    (Permanent("Taken", "the name is taken"), {"type": "Taken", "message": "the name is taken", "retryable": False}),
    (Transient("Slow", "try later"), {"type": "Slow", "message": "try later", "retryable": True}),
    (
        Transient("Slow", "try later", retry_after=1.5),
        {"type": "Slow", "message": "try later", "retryable": True, "retryAfterMs": 1500},
    ),
    (
        Retry(after=30, message="503 from the forge"),
        {"type": "Retry", "message": "503 from the forge", "retryable": True, "retryAfterMs": 30_000},
    ),
    (
        Retry(0.25, type="Busy"),
        {"type": "Busy", "message": "it asks to be tried again later", "retryable": True, "retryAfterMs": 250},
    ),
    (StepFailed("Odd", "x", retryable=False), {"type": "Odd", "message": "x", "retryable": False}),
    (Retry(0), {"type": "Retry", "message": "it asks to be tried again later", "retryable": True, "retryAfterMs": 0}),
    (Transient("", "a\0b\ud800c"), {"type": "Error", "message": "a�b�c", "retryable": True}),
]


@pytest.mark.parametrize(("failure", "error"), FAILURES)
async def test_a_failed_step_is_reported_as_its_handler_says(failure: StepFailed, error: dict[str, Any]) -> None:
    assert await error_of(raising(failure)) == error


async def test_an_unforeseen_error_is_retryable_and_its_stack_trace_stays_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = await error_of(raising(KeyError("colour")))
    assert error == {"type": "KeyError", "message": "'colour'", "retryable": True}
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info
    assert record.__dict__["correlation_id"] == "c-1"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Retry(after=-5), "Retry(after=-5): a number of seconds, 0 or more, is wanted"),
        (lambda: Retry(after=float("inf")), "Retry(after=inf): a number of seconds"),
        (lambda: Retry(after=float("nan")), "Retry(after=nan): a number of seconds"),
        (lambda: Retry(after=cast(Any, "30")), "is wanted, as after=30"),
        (lambda: Retry(after=cast(Any, timedelta(minutes=2))), "is wanted, as after=120"),
        (lambda: Transient("Busy", "no", retry_after=-1), "Transient(retry_after=-1): "),
        (lambda: Transient("Busy", "no", retry_after=cast(Any, True)), "Transient(retry_after=True): "),
        (lambda: StepFailed("Bad", "x", retryable=cast(Any, "no")), "True or False is wanted, as retryable=True"),
    ],
)
async def test_a_failure_that_cannot_be_meant_counts_as_any_error_of_the_handler(
    call: Callable[[], StepFailed], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(context: Context, command: Command) -> None:
        raise call()

    error = await error_of(mistaken)
    assert (error["type"], error["retryable"], "retryAfterMs" in error) == ("Invalid", True, False)
    assert sentence in error["message"]
    assert [record.exc_info is not None for record in caplog.records] == [True], "the author sees where he wrote it"


def test_a_wait_of_more_than_30_days_counts_as_30_days() -> None:
    longest = 30 * 86_400
    assert [Retry(after).retry_after for after in (0, 0.5, longest)] == [0, 0.5, longest]
    assert [Retry(after).retry_after for after in (longest + 1, 1e12, 10**4000)] == [longest] * 3
    assert Transient("Busy", "no", retry_after=1e12).retry_after == longest


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("type", "message", "told"),
    [
        ("Bad", ValueError("no such card"), ("Bad", "no such card")),
        ("Bad", None, ("Bad", "None")),
        ("Bad", {"code": 7}, ("Bad", "{'code': 7}")),
        ("Bad", Unspeakable(), ("Bad", "its text cannot be read")),
        (KeyError, "x" * 5000, ("KeyError", "x" * 2000)),
        (404, ["x" * 5000], ("404", "['" + "x" * 1998)),
    ],
)
async def test_a_verdict_is_not_lost_by_what_explains_it(type: Any, message: Any, told: tuple[str, str]) -> None:
    async def sure(context: Context, command: Command) -> None:
        raise Permanent(type, message)

    error = await error_of(sure)
    assert (error["type"], error["message"], error["retryable"]) == (*told, False)


@pytest.mark.parametrize(
    ("error", "type"),
    [
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (TimeoutError("its own"), "TimeoutError"),
        (asyncio.CancelledError(), "CancelledError"),
        (StopIteration(), "RuntimeError"),
        (Unspeakable(), "Unspeakable"),
    ],
)
async def test_nothing_that_a_handler_raises_ends_the_worker(error: BaseException, type: str) -> None:
    reported = await error_of(raising(error))
    assert (reported["type"], reported["retryable"]) == (type, True)


async def test_a_very_long_message_is_cut() -> None:
    assert len((await error_of(raising(ValueError("x" * 10_000))))["message"]) == 2000


async def test_the_workers_own_outage_is_not_reported() -> None:
    with pytest.raises(Unavailable):
        await invoke(raising(Unavailable("the database is away")), replace_time(COMMAND))


async def test_a_step_whose_time_is_over_is_cancelled_and_fails() -> None:
    cancelled = asyncio.Event()

    async def hang(context: Context, command: Command) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    error = await error_of(hang, replace(COMMAND, timeout_ms=20))
    assert error == {"type": "Timeout", "message": "createGitRepo was not done in 20 ms", "retryable": True}
    assert cancelled.is_set()


async def test_a_step_goes_on_in_the_time_that_its_saga_was_given_meanwhile() -> None:
    asked = 0

    async def more(job: Job) -> float:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("the database is away")
        return 0.05 if asked < 4 else 0.0

    over = asyncio.Event()

    async def slow(context: Context, command: Command) -> None:
        await over.wait()

    async def enough() -> None:
        await eventually(lambda: asked == 3, deadline=5)
        over.set()

    telling = asyncio.create_task(enough())
    with mock.patch.object(limit, "ASK_AGAIN", 0.05):
        _, good = await invoke(slow, replace_time(replace(COMMAND, timeout_ms=10)), more)
    await telling
    assert good

    over.clear()
    event, good = await invoke(slow, replace_time(replace(COMMAND, timeout_ms=10)), more)
    assert (good, json.loads(event.body)["error"]["type"]) == (False, "Timeout")
    assert asked == 4


async def test_a_step_ends_in_its_time_if_the_question_for_more_goes_wrong() -> None:
    async def more(job: Job) -> float:
        raise ZeroDivisionError("a bug")

    async def hang(context: Context, command: Command) -> None:
        await asyncio.Event().wait()

    event, good = await invoke(hang, replace_time(replace(COMMAND, timeout_ms=10)), more)
    assert (good, json.loads(event.body)["error"]["type"]) == (False, "Timeout")


async def test_the_worker_may_cancel_a_step_without_a_report() -> None:
    began = asyncio.Event()

    async def hang(context: Context, command: Command) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(invoke(hang, replace_time(COMMAND)))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def endless() -> Mapping[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


def deep() -> Mapping[str, Any]:
    data: dict[str, Any] = {}
    for _ in range(63):
        data = {"in": data}
    return data


@pytest.mark.parametrize(
    "answer",
    [
        7,
        "text",
        ["a"],
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"rate": float("nan")},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {("a", "b"): 1},
        {1: "a", "1": "b"},
        {"big": "x" * (64 * 1024)},
        endless(),
        deep(),
    ],
    ids=str,
)
async def test_an_answer_that_no_saga_could_store_fails_the_step_for_good(answer: object) -> None:
    error = await error_of(returning(answer))
    assert (error["type"], error["retryable"]) == ("BadOutput", False)


@pytest.mark.parametrize("answer", [None, {}, {"a": 1}, {"name": "é🎉"}, {"big": "x" * (64 * 1024 - 10)}])
async def test_any_other_answer_becomes_the_data_of_the_success_event(answer: dict[str, Any] | None) -> None:
    event, good = await invoke(returning(answer), replace_time(COMMAND))
    assert (good, event.routing_key) == (True, CREATED)
    assert messages.event(CREATED, event.body).data == (answer or {})
    assert dict(event.headers) == {"traceparent": TRACE}


def plain(work: Callable[[Context], Any]) -> Handler:
    def handler(context: Context, command: Command) -> Any:
        return work(context)

    return handler


async def run(handler: Handler) -> Outgoing:
    return (await invoke(handler, replace_time(COMMAND)))[0]


async def test_a_plain_function_runs_in_a_thread_and_leaves_the_loop_alone() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait(context: Context) -> dict[str, Any]:
        asked.set()
        assert answered.wait(5.0)
        thread = threading.current_thread()
        return {"thread": thread is not threading.main_thread(), "keeps the process": not thread.daemon}

    task = asyncio.create_task(run(plain(wait)))
    await eventually(asked.is_set, deadline=5.0, every=0.001)
    answered.set()
    assert json.loads((await task).body)["data"] == {"thread": True, "keeps the process": False}


def fail(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("error", "type"),
    [
        (Permanent("Taken", "no"), "Taken"),
        (SystemExit(1), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), ""),
    ],
)
async def test_errors_come_out_of_the_thread(error: BaseException, type: str) -> None:
    assert type in (await error_of(plain(lambda _: fail(error))))["type"]


async def test_a_thread_may_take_longer_than_its_step() -> None:
    over = threading.Event()

    def late(context: Context) -> dict[str, float]:
        over.wait(0.05)
        return {"remaining": context.remaining}

    event, good = await invoke(plain(late), replace_time(replace(COMMAND, timeout_ms=1)))
    assert good
    assert json.loads(event.body)["data"] == {"remaining": 0.0}
