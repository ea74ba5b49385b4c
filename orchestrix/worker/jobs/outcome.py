"""How did an attempt end: what does the function's answer or error amount to?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from orchestrix.saga.messages import StepError
from orchestrix.worker.error_mapping import step_error_of, unexpected_error
from orchestrix.worker.errors import StepFailed
from orchestrix.worker.jobs.stop_signal import StopCause, StopSignal
from orchestrix.worker.output_validation import sendable

Status = Literal["SUCCEEDED", "FAILED", "CANCELLED"]
_OWN: Final = frozenset({"Timeout", "WorkerStopped"})
"""What `halted` says: an error of a function, or of a library, may have such a name too."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The last word of an attempt."""

    status: Status
    result: Mapping[str, Any] | None = None
    error: StepError | None = None


def returned(value: object) -> AttemptOutcome:
    """The ending of a function that has returned `value`."""
    try:
        return AttemptOutcome("SUCCEEDED", result=sendable(value))
    except ValueError as bad:
        return AttemptOutcome("FAILED", error=StepError("BadResult", f"the job's result cannot be sent: {bad}", False))


def raised(error: BaseException) -> AttemptOutcome:
    """The ending of a function that has raised `error`. A library's error that is called like ours does not mean it."""
    if isinstance(error, StepFailed):
        return AttemptOutcome("FAILED", error=step_error_of(error))
    told = unexpected_error(error)
    return AttemptOutcome("FAILED", error=replace(told, type=f"Handler{told.type}") if told.type in _OWN else told)


def halted(halt: StopSignal, more: str = "") -> AttemptOutcome:
    """The ending of a function that was told to stop."""
    if halt.cause is StopCause.CANCELLED:
        return AttemptOutcome("CANCELLED", error=StepError("Cancelled", halt.reason + more, retryable=False))
    type = "Timeout" if halt.cause is StopCause.TIMED_OUT else "WorkerStopped"
    return AttemptOutcome("FAILED", error=StepError(type, halt.reason + more, retryable=True))


def unknown(handler: str, queue: str) -> AttemptOutcome:
    """The ending of a job that no function here does.

    It is not given back in the hope of another worker: where none knows the job it would go round for ever, and where
    the broker counts, into the dead letters. So whoever submitted it is told at once.
    """
    message = f"a worker of queue {queue} has no function for job {handler!r}: all workers of a queue need all its jobs"
    return AttemptOutcome("FAILED", error=StepError("UnknownJob", message, retryable=False))
