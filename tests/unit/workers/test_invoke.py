"""What does a handler's answer or error become?"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from unittest import mock

import pytest
from pydantic import BaseModel

from orchestrix import Command, Context, Hold, Permanent, Retry, Transient, Unavailable, clock
from orchestrix.broker.port import Outgoing
from orchestrix.saga import messages
from orchestrix.worker import output_validation
from orchestrix.worker.commands import time_limit
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.execution import invoke
from orchestrix.worker.error_mapping import step_error_of
from orchestrix.worker.errors import BadCall, StepFailed
from orchestrix.worker.handlers import Handler
from tests.support import eventually

from .rig import COMMAND, CREATED, FAILED, TRACE, job

pytestmark = pytest.mark.virtual_time


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


class Busy(Retry):
    """A kind of an author's own."""


class Stop(BaseException):
    """An author's own, which no `except Exception` catches."""


def replace_time(ordered: Command) -> Any:
    made = job(ordered)
    made.checked_at = clock.monotonic()
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
        {"type": "Busy", "message": "the handler asked for a retry in 0.25 s", "retryable": True, "retryAfterMs": 250},
    ),
    (StepFailed("Odd", "x", retryable=False), {"type": "Odd", "message": "x", "retryable": False}),
    (Retry(0), {"type": "Retry", "message": "the handler asked for a retry", "retryable": True, "retryAfterMs": 0}),
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
        (lambda: Retry(after=-5), "Retry(after=-5): expected a number of seconds, 0 or more, or None"),
        (lambda: Retry(after=float("inf")), "Retry(after=inf): expected a number of seconds"),
        (lambda: Retry(after=float("nan")), "Retry(after=nan): expected a number of seconds"),
        (lambda: Retry(after=cast(Any, "30")), ", e.g. after=30"),
        (
            lambda: Retry(after=cast(Any, "soon")),
            "Retry(after='soon'): expected a number of seconds, 0 or more, or None",
        ),
        (lambda: Busy(after=cast(Any, "soon")), "Busy(after='soon'): expected a number of seconds"),
        (lambda: Retry(after=cast(Any, timedelta(minutes=2))), ", e.g. after=120"),
        (lambda: Transient("Busy", "no", retry_after=-1), "Transient(retry_after=-1): "),
        (lambda: Transient("Busy", "no", retry_after=cast(Any, True)), "Transient(retry_after=True): "),
        (lambda: StepFailed("Bad", "x", retryable=cast(Any, "no")), "expected True or False, e.g. retryable=True"),
        (
            lambda: Permanent("Bad", "x", cast(Any, 5)),  # type: ignore[call-arg]
            "Permanent('Bad', 'x', 5): it takes 2 arguments without a name, not 3: write Permanent(\"SoldOut\", ",
        ),
        (
            lambda: Permanent("Bad", "x", retry_after=5),  # type: ignore[call-arg]
            "Permanent('Bad', 'x', retry_after=5): unknown argument retry_after=: write Permanent(",
        ),
        (
            lambda: Transient("Bad", "x", retryafter=5),  # type: ignore[call-arg]
            "unknown argument retryafter=; did you mean retry_after=?: write Transient(",
        ),
        (lambda: Retry(1, "x", "y"), "it takes 2 arguments without a name, not 3"),  # type: ignore[call-arg]
        (lambda: Retry(1, after=2), "after was given more than once: write Retry(after=30, "),  # type: ignore[misc]
        (lambda: StepFailed("Bad", "x", True), "2 arguments without a name, not 3"),  # type: ignore[call-arg]
    ],
)
async def test_a_failure_that_cannot_be_meant_is_a_mistake_that_no_try_will_mend(
    call: Callable[[], StepFailed], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(context: Context, command: Command) -> None:
        raise call()

    error = await error_of(mistaken)
    assert (error["type"], error["retryable"], "retryAfterMs" in error) == ("BadCall", False, False)
    assert sentence in error["message"]
    assert last_line(caplog) == __file__, "the author sees where he wrote it"


class Held(Hold):
    """One of an author's own, which says that another try may help: a person is asked all the same."""

    retryable = True


class NoStock(Permanent):
    """A kind of failure of an author's own."""


class NoSeat(Permanent):
    """One that does not call our `__init__`."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __str__(self) -> str:
        return f"row {self.row} is full"


class Refused(Transient):
    """One that sets what it likes."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__("Refused", "no")
        self.type, self.message = cast(Any, status), why


SAID: list[tuple[Any, dict[str, Any]]] = [
    (Hold("look at it"), {"type": "Hold", "message": "look at it", "retryable": False, "hold": True}),
    (
        Hold("OverLimit", "look at it", unsure=True),
        {"type": "OverLimit", "message": "look at it", "retryable": False, "unsure": True, "hold": True},
    ),
    (Held("look at it"), {"type": "Held", "message": "look at it", "retryable": False, "hold": True}),
    (Permanent("only"), {"type": "Permanent", "message": "only", "retryable": False}),
    (Permanent(message="only"), {"type": "Permanent", "message": "only", "retryable": False}),
    (Permanent, {"type": "Permanent", "message": "no reason given", "retryable": False}),
    (NoStock("3 left"), {"type": "NoStock", "message": "3 left", "retryable": False}),
    (NoSeat(3), {"type": "NoSeat", "message": "row 3 is full", "retryable": False}),
    (Refused(503, "busy"), {"type": "503", "message": "busy", "retryable": True}),
    (Transient("busy"), {"type": "Transient", "message": "busy", "retryable": True}),
    (Transient(retry_after=1), {"message": "no reason given", "retryable": True, "retryAfterMs": 1000}),
    (StepFailed("odd", retryable=False), {"type": "StepFailed", "message": "odd", "retryable": False}),
    (Retry, {"type": "Retry", "message": "the handler asked for a retry", "retryable": True}),
    (Retry(cast(Any, "503 from the forge")), {"type": "Retry", "message": "503 from the forge", "retryable": True}),
    (Retry(message="no"), {"type": "Retry", "message": "no", "retryable": True}),
]


@pytest.mark.parametrize(("failure", "told"), SAID)
async def test_a_verdict_is_not_lost_by_what_it_leaves_out(failure: Any, told: dict[str, Any]) -> None:
    error = await error_of(raising(failure))
    assert error == {"type": "Transient", **told}


GROUPS: list[tuple[BaseExceptionGroup[Any], dict[str, Any]]] = [
    (ExceptionGroup("", [Permanent("Full", "x")]), {"type": "Full", "message": "x", "retryable": False}),
    (ExceptionGroup("", [ExceptionGroup("", [KeyError("a")])]), {"type": "KeyError", "message": "'a'"}),
    (ExceptionGroup("", [Transient("Busy", "x"), KeyError("a"), Permanent("Full", "y")]), {"type": "Full"}),
    (ExceptionGroup("", [Unavailable("db"), BadCall("so")]), {"type": "BadCall", "retryable": False}),
    (ExceptionGroup("two", [KeyError("a"), KeyError("b")]), {"type": "ExceptionGroup", "retryable": True}),
]


@pytest.mark.parametrize(("group", "told"), GROUPS)
async def test_of_a_group_of_errors_the_telling_one_counts(
    group: BaseExceptionGroup[Any], told: dict[str, Any]
) -> None:
    error = await error_of(raising(group))
    assert error == {**error, **told}


async def test_a_verdict_counts_inside_a_task_group_too() -> None:
    async def handler(context: Context, command: Command) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(cast(Any, raising(NoSeat(3))(context, command)))
        except* KeyError:
            pass

    error = await error_of(handler)
    assert error == {"type": "NoSeat", "message": "row 3 is full", "retryable": False}
    with pytest.raises(Unavailable, match="db"):
        await error_of(raising(ExceptionGroup("", [Unavailable("db")])))


@pytest.mark.parametrize(
    "failure",
    [
        Retry(30, "503"),
        Retry(cast(Any, "busy")),
        Transient("Busy", "x", retry_after=3),
        NoSeat(3),
        Refused(503, "busy"),
    ],
)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda failure: pickle.loads(pickle.dumps(failure))])
def test_a_failure_may_come_from_another_process(failure: StepFailed, way: Callable[[StepFailed], StepFailed]) -> None:
    came = way(failure)
    assert (type(came), str(came), came.args, step_error_of(came)) == (
        type(failure),
        str(failure),
        failure.args,
        step_error_of(failure),
    )


def last_line(caplog: pytest.LogCaptureFixture) -> str:
    """The file at the end of the only stack trace that was logged: there a terminal's one line points to."""
    (record,) = [one for one in caplog.records if one.exc_info]
    assert record.exc_info
    return traceback.extract_tb(record.exc_info[2])[-1].filename


def test_a_wait_of_more_than_30_days_counts_as_30_days() -> None:
    longest = 30 * 86_400
    assert [Retry(after).retry_after for after in (0, 0.5, longest)] == [0, 0.5, longest]
    assert [Retry(after).retry_after for after in (longest + 1, 1e12, 10**4000)] == [longest] * 3
    assert Transient("Busy", "no", retry_after=1e12).retry_after == longest


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Mute(Exception):
    def __str__(self) -> str:
        raise Stop("no words")


@pytest.mark.parametrize(
    ("type", "message", "told"),
    [
        ("Bad", ValueError("no such card"), ("Bad", "no such card")),
        ("Bad", None, ("Bad", "None")),
        ("Bad", {"code": 7}, ("Bad", "{'code': 7}")),
        ("Bad", Unspeakable(), ("Bad", "its text cannot be read")),
        ("Bad", Mute(), ("Bad", "its text cannot be read")),
        (KeyError, "x" * 5000, ("KeyError", "x" * 2000)),
        (404, ["x" * 5000], ("404", "['" + "x" * 1998)),
    ],
)
async def test_a_verdict_is_not_lost_by_what_explains_it(type: Any, message: Any, told: tuple[str, str]) -> None:
    async def sure(context: Context, command: Command) -> None:
        raise Permanent(type, message)

    error = await error_of(sure)
    assert (error["type"], error["message"], error["retryable"]) == (*told, False)


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize(
    ("error", "type"),
    [
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (TimeoutError("its own"), "TimeoutError"),
        (asyncio.CancelledError(), "CancelledError"),
        (StopIteration(), "StopIteration"),
        (Unspeakable(), "Unspeakable"),
        (Stop("enough"), "Stop"),
        (GeneratorExit("enough"), "GeneratorExit"),
        (BaseExceptionGroup("", [Stop("enough")]), "Stop"),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_nothing_that_a_handler_raises_ends_the_worker(
    error: BaseException, type: str, threaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reported = await error_of(plain(lambda _: fail(error)) if threaded else raising(error))
    assert (reported["type"], reported["retryable"]) == (type, True)
    assert reported["message"]
    assert any(one.exc_info for one in caplog.records)


WORDLESS: list[tuple[BaseException, str]] = [
    (SystemExit(), "it called exit(), which does not end a worker"),
    (asyncio.CancelledError(), "it was not cancelled: something that it awaited was"),
    (Stop(), "no reason given"),
    (Stop("enough"), "enough"),
    (SystemExit(3), "3"),
    (StopIteration("x"), "x"),
]


@pytest.mark.parametrize(("error", "sentence"), WORDLESS)
async def test_an_error_without_words_is_told_in_a_sentence(error: BaseException, sentence: str) -> None:
    assert (await error_of(raising(error)))["message"].startswith(sentence)


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize("threaded", [False, True])
async def test_an_end_of_iteration_is_shown_where_its_author_raised_it(
    threaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handler = plain(lambda _: fail(StopIteration("x"))) if threaded else raising(StopIteration("x"))
    assert await error_of(handler) == {"type": "StopIteration", "message": "x", "retryable": True}
    assert last_line(caplog) == __file__


async def test_an_error_that_the_author_has_put_before_an_end_of_iteration_is_told() -> None:
    async def handler(context: Context, command: Command) -> None:
        try:
            next(iter(()))
        except StopIteration as empty:
            raise RuntimeError("nothing is left") from empty

    assert (await error_of(handler))["message"] == "nothing is left"


def test_a_step_that_is_thrown_away_is_not_answered() -> None:
    async def hang(context: Context, command: Command) -> None:
        await asyncio.get_running_loop().create_future()

    async def begin() -> Any:
        work = invoke(hang, replace_time(COMMAND))
        work.send(None)
        return work

    work = asyncio.run(begin())
    with pytest.raises(GeneratorExit):
        work.throw(GeneratorExit())


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
    assert error == {"type": "Timeout", "message": "createGitRepo timed out after 0.02 s", "retryable": True}
    assert cancelled.is_set()


async def test_a_step_goes_on_in_the_time_that_its_saga_was_given_meanwhile() -> None:
    asked = 0

    async def more(job: CommandDelivery) -> float:
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
    with mock.patch.object(time_limit, "RECHECK_INTERVAL_S", 0.05):
        _, good = await invoke(slow, replace_time(replace(COMMAND, timeout_ms=10)), more)
    await telling
    assert good

    over.clear()
    event, good = await invoke(slow, replace_time(replace(COMMAND, timeout_ms=10)), more)
    assert (good, json.loads(event.body)["error"]["type"]) == (False, "Timeout")
    assert asked == 4


async def test_a_step_ends_in_its_time_if_the_question_for_more_goes_wrong() -> None:
    async def more(job: CommandDelivery) -> float:
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


@dataclass
class Parcel:
    weight: int


class Trip(BaseModel):
    city: str


class Broken(Mapping[str, Any]):
    error: BaseException = LookupError("nothing here")

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


class Stopping(Broken):
    error = Stop("nothing here")


async def fetched() -> dict[str, Any]:
    return {}


UNSENDABLE: list[tuple[Callable[[], object], str]] = [
    (lambda: 7, "it is an int: return a mapping, or None"),
    (lambda: "text", "it is a str: return a mapping"),
    (lambda: ["a"], "it is a list: return a mapping"),
    (lambda: Trip(city="Rome"), 'it is a Trip: return its .model_dump(mode="json")'),
    (lambda: Parcel(3), "it is a Parcel: return dataclasses.asdict(…) of it"),
    (fetched, "it is a coroutine: an await is missing; write return await … in an async def"),
    (lambda: asyncio.get_running_loop().create_future(), "it is a Future: an await is missing"),
    (lambda: {"at": datetime(2026, 1, 1, tzinfo=UTC)}, "['at'] is a datetime, which JSON cannot hold: give its .iso"),
    (lambda: {"rows": [{}, {"price": Decimal(1)}]}, "['rows'][1]['price'] is a Decimal, which JSON cannot hold"),
    (lambda: {"rate": float("nan")}, "['rate'] is nan, which JSON cannot hold: give None, or leave it out"),
    (lambda: {"name": "a\0b"}, "['name'] is a string with a NUL character or a lone surrogate"),
    (lambda: {"name": "\ud800"}, "['name'] is a string with a NUL character"),
    (lambda: {("a", "b"): 1}, "it has the key ('a', 'b'), a tuple, but keys are strings in JSON: give str(…) of it"),
    (lambda: {"by": {1: "a"}}, "['by'] has the key 1, an int, but keys are strings in JSON"),
    (lambda: {"id": fetched()}, "['id'] is a coroutine, because an await is missing: give await … of it"),
    (lambda: {"big": "x" * (64 * 1024)}, "it has 65546 bytes; at most 65536 are allowed"),
    (endless, "['self'] is a dict that contains itself"),
    (deep, "is nested too deeply: at most 63 levels of objects and arrays"),
    (Broken, "it cannot be read: LookupError: nothing here"),
    (Stopping, "it cannot be read: Stop: nothing here"),
]


@pytest.mark.parametrize(("make", "sentence"), UNSENDABLE, ids=[sentence[:40] for _, sentence in UNSENDABLE])
async def test_an_answer_that_no_saga_could_store_fails_the_step_for_good(
    make: Callable[[], object], sentence: str
) -> None:
    error = await error_of(returning(make()))
    assert (error["type"], error["retryable"]) == ("BadOutput", False)
    assert error["message"].startswith("the handler's result cannot be sent: ")
    assert sentence in error["message"]


def test_an_answer_that_comes_back_as_it_was_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(output_validation, "json_problem", seen.append)
    usual = {"name": "é", "rows": [{"price": 1.5, "sold": True, "by": None}], "many": 10**30}
    assert output_validation.sendable(usual) == usual
    assert seen == []
    assert output_validation.sendable({"seat": (3, 4)}) == {"seat": [3, 4]}
    assert seen == [{"seat": (3, 4)}]


async def test_an_async_function_that_forgets_its_await_is_told_so() -> None:
    async def forgetful(context: Context, command: Command) -> Any:
        return fetched()

    error = await error_of(forgetful)
    assert (error["type"], "an await is missing" in error["message"]) == ("BadOutput", True)


MISTAKES: list[tuple[Callable[[Any], object], str]] = [
    (lambda context: context.log("x"), 'context.log(…) is for jobs: a step uses a logger, context.log.info("…")'),
    (lambda context: context.sleep, "the context of a step has no sleep: write await asyncio.sleep(…)"),
    (lambda context: context.progress(3), "the context of a step has no progress: only a job reports progress"),
    (lambda context: context.atempt, "the context of a step has no atempt: did you mean attempt?"),
    (lambda context: context.colour, "the context of a step has no colour: it has app_id, app_name, attempt, "),
]


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES)
async def test_what_the_context_does_not_have_is_a_mistake_that_no_try_will_mend(
    mistake: Callable[[Any], object], sentence: str
) -> None:
    async def mistaken(context: Context, command: Command) -> None:
        mistake(context)

    error = await error_of(mistaken)
    assert (error["type"], error["retryable"]) == ("BadCall", False)
    assert error["message"].startswith(sentence)


async def test_an_error_of_pythons_own_stays_one_that_another_try_may_mend() -> None:
    async def mistaken(context: Context, command: Command) -> None:
        len(cast(Any, 5))

    error = await error_of(mistaken)
    assert (error["type"], error["retryable"]) == ("TypeError", True)


def test_a_context_can_be_asked_and_copied_as_any_object() -> None:
    context = Context.of(COMMAND, 1.0)
    assert getattr(context, "colour", "none") == "none"
    assert not hasattr(context, "sleep")
    assert copy.copy(context) == context
    with pytest.raises(AttributeError):
        context.__dict__  # noqa: B018


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


@pytest.mark.virtual_time(False)
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


@pytest.mark.virtual_time(False)
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


@pytest.mark.virtual_time(False)
async def test_a_thread_may_take_longer_than_its_step() -> None:
    over = threading.Event()

    def late(context: Context) -> dict[str, float]:
        over.wait(0.05)
        return {"remaining": context.remaining}

    event, good = await invoke(plain(late), replace_time(replace(COMMAND, timeout_ms=1)))
    assert good
    assert json.loads(event.body)["data"] == {"remaining": 0.0}
