"""Error mapping: maps an error that an author's function raised to the failure of its step."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, Final

from orchestrix.saga.errors import OrchestrixError
from orchestrix.saga.messages import MAX_ID, StepError
from orchestrix.saga.validation.arguments import number
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS, NO_REASON_GIVEN, BadCall, Permanent, StepFailed, text_of
from orchestrix.worker.function_checks import is_ours

_TELLING: Final = (Permanent, BadCall, StepFailed, *INFRASTRUCTURE_ERRORS)
_WORDLESS: Final = (
    (SystemExit, "it called exit(), which does not end a worker: return, or raise an error with the reason"),
    (
        asyncio.CancelledError,
        "it was not cancelled: something that it awaited was, or it raised this itself",
    ),
)
"""Errors without a text of their own, and what is reported for them."""
_HIDES: Final = "coroutine raised StopIteration"
"""Python's own text."""


def ends_task(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether `task`, in which it was raised, must end with it: it was cancelled, or is being discarded.

    Any other error is the author's, of whatever class.
    """
    if isinstance(error, GeneratorExit):
        return task is None or asyncio._get_running_loop() is None or asyncio.current_task() is not task
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def step_error_of(failure: StepFailed) -> StepError:
    """The failure as the function has described it.

    An author's subclass may skip our `__init__` or set attributes freely: its verdict counts all the same.
    """
    kind, why = getattr(failure, "type", type(failure)), getattr(failure, "message", failure)
    wait = _milliseconds(failure.retry_after)
    hold = bool(failure.hold)
    again = bool(failure.retryable) and not hold
    return StepError(
        text_of(kind), text_of(why) or NO_REASON_GIVEN, again, wait, unsure=bool(failure.unsure), hold=hold
    )


def main_error(error: BaseException) -> BaseException:
    """The decisive error of a group, such as that of an `asyncio.TaskGroup`: a permanent one first, then any other of
    our classes, then the only one; any other error is itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    parts = [main_error(one) for one in error.exceptions]
    telling = (one for kind in _TELLING for one in parts if isinstance(one, kind))
    return next(telling, parts[0] if len(parts) == 1 else error)


def unexpected_error(error: BaseException) -> StepError:
    """The failure for an unexpected error: retryable, except where the function itself is written wrongly."""
    meant = _meant(error)
    return StepError(type(meant).__name__, text_of(meant) or _default_text(meant), not isinstance(meant, BadCall))


def traced(error: BaseException) -> BaseException:
    """`error`, with a stack trace that ends at the author's own line, if that line is wrong."""
    error = _meant(error)
    own, trace = None, error.__traceback__ if isinstance(error, BadCall) else None
    while trace is not None:
        own = own if is_ours(trace.tb_frame) else trace
        trace = trace.tb_next
    if own is not None:
        own.tb_next = None
    return printable(error)


def printable(error: BaseException) -> BaseException:
    """`error`, or what can be written into a log in its place: its own text, or that of its cause, may raise anything,
    and logging must not crash the worker."""
    try:
        traceback.format_exception(error)
    except BaseException:
        words = f"{type(error).__name__} (its text cannot be read)"
        return UnprintableError(words).with_traceback(error.__traceback__)
    return error


class UnprintableError(OrchestrixError):
    """Replaces an error that cannot be logged."""


def _meant(error: BaseException) -> BaseException:
    """What the author has raised: Python replaces a `StopIteration` that leaves a coroutine by another error."""
    cause = error.__cause__
    hidden = isinstance(cause, StopIteration) and error.args == (_HIDES,)
    return cause if hidden and cause is not None else error


def _default_text(error: BaseException) -> str:
    return next((words for kind, words in _WORDLESS if isinstance(error, kind)), NO_REASON_GIVEN)


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None or not number(seconds):
        return None
    return min(max(0, round(seconds * 1000)), MAX_ID - 1)
