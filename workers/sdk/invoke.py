"""What became of a step: which event does the handler's answer or error amount to?"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from app.broker.port import Outgoing
from sagas.engine.messages import MAX_DATA, MAX_ID, StepError, Unreadable, dump, load

from . import events
from .context import LOGGER, Context
from .errors import OWN_TROUBLE, StepFailed
from .handlers import Handler
from .job import Job
from .limit import Limit, MoreTime, no_more
from .threads import in_thread


async def invoke(handler: Handler, job: Job, more: MoreTime = no_more) -> tuple[Outgoing, bool]:
    """Runs the handler; the event to send, and whether it is that of success. `more` tells of time given meanwhile.

    Raises `OWN_TROUBLE` (`Unavailable` among others) if the worker's own infrastructure is away, for that is not the
    step's failure, and `asyncio.CancelledError` if the worker itself gives the step up.
    """
    outcome = await _outcome(handler, job, more)
    if isinstance(outcome, StepError):
        return events.failed(job, outcome), False
    try:
        return _checked(job, outcome), True
    except (TypeError, ValueError, RecursionError, Unreadable) as bad:
        error = StepError("BadOutput", f"the handler's answer cannot be sent: {bad}", retryable=False)
        LOGGER.error("%s: %s", job.command.type, error.message, extra=job.told)
        return events.failed(job, error), False


async def _outcome(handler: Handler, job: Job, more: MoreTime) -> object:
    context = Context.of(job.command, job.ends)
    limit = Limit(job, context.remaining, more) if _is_async(handler) else None
    try:
        async with limit or nullcontext():
            return await _call(handler, context, job)
    except OWN_TROUBLE:
        raise
    except StepFailed as failure:
        LOGGER.warning("%s failed: %s: %s", job.command.type, failure.type, failure.message, extra=job.told)
        return StepError(failure.type, failure.message, failure.retryable, _milliseconds(failure.retry_after))
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        return _bug(job, error)
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeoutError) and limit is not None and limit.expired:
            return _timeout(job)
        return _bug(job, error)


async def _call(handler: Handler, context: Context, job: Job) -> object:
    if not _is_async(handler):
        return await in_thread(handler, context, job.command)
    answer = handler(context, job.command)
    return await answer if inspect.isawaitable(answer) else answer


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _bug(job: Job, error: BaseException) -> StepError:
    """An error that the handler did not foresee. Its stack trace stays in this worker's log."""
    LOGGER.error("%s failed", job.command.type, exc_info=error, extra=job.told)
    return StepError(type(error).__name__, _text(error), retryable=True)


def _timeout(job: Job) -> StepError:
    error = StepError("Timeout", f"{job.what} was not done in {job.command.timeout_ms} ms", retryable=True)
    LOGGER.warning("%s", error.message, extra=job.told)
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    return min(max(0, round(seconds * 1000)), MAX_ID - 1)


def _checked(job: Job, output: object) -> Outgoing:
    """The success event with `output`, proved to be readable by its reader."""
    if output is not None and not isinstance(output, Mapping):
        raise TypeError(f"it is a {type(output).__name__}: return a mapping, or None")
    data: dict[str, Any] = dict(output or {})
    if data and (size := len(dump(data))) > MAX_DATA:
        raise ValueError(f"it has {size} bytes, at most {MAX_DATA} are allowed")
    event = events.succeeded(job, data)
    if data:
        load(event.body)
    return event
