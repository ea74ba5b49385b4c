"""How did an attempt end: what does the function's answer or error amount to?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from orchestrix.saga.messages import StepError
from orchestrix.worker.errors import StepFailed
from orchestrix.worker.failures import said, unforeseen
from orchestrix.worker.outputs import sendable

from .halt import Cause, Halt

Status = Literal["SUCCEEDED", "FAILED", "CANCELLED"]
_OWN: Final = frozenset({"Timeout", "WorkerStopped"})
"""What `halted` says: an error of a function, or of a library, may have such a name too."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The last word of an attempt."""

    status: Status
    result: Mapping[str, Any] | None = None
    error: StepError | None = None


def returned(value: object) -> Ending:
    """The ending of a function that has returned `value`."""
    try:
        return Ending("SUCCEEDED", result=sendable(value))
    except ValueError as bad:
        return Ending("FAILED", error=StepError("BadResult", f"the job's result cannot be sent: {bad}", False))


def raised(error: BaseException) -> Ending:
    """The ending of a function that has raised `error`. A library's error that is called like ours does not mean it."""
    if isinstance(error, StepFailed):
        return Ending("FAILED", error=said(error))
    told = unforeseen(error)
    return Ending("FAILED", error=replace(told, type=f"Handler{told.type}") if told.type in _OWN else told)


def halted(halt: Halt, more: str = "") -> Ending:
    """The ending of a function that was told to stop."""
    if halt.cause is Cause.CANCELLED:
        return Ending("CANCELLED", error=StepError("Cancelled", halt.reason + more, retryable=False))
    type = "Timeout" if halt.cause is Cause.TIMED_OUT else "WorkerStopped"
    return Ending("FAILED", error=StepError(type, halt.reason + more, retryable=True))


def unknown(handler: str, queue: str) -> Ending:
    """The ending of a job that no function here does.

    It is not given back in the hope of another worker: where none knows the job it would go round for ever, and where
    the broker counts, into the dead letters. So whoever submitted it is told at once.
    """
    message = f"a worker of queue {queue} has no function for job {handler!r}: all workers of a queue need all its jobs"
    return Ending("FAILED", error=StepError("UnknownJob", message, retryable=False))
