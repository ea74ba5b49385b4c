"""Attempt outcome: maps a job function's return value or error, or a stop, to the final status of the attempt."""

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
WORKER_STOPPED: Final = "WorkerStopped"
"""The type of an attempt that ended because its worker did: another one begins, and no retry is used up."""
_OWN: Final = frozenset({"Timeout", WORKER_STOPPED})
"""The types that `halted` reports: an error of a function, or of a library, may have such a name too."""


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The final status of an attempt."""

    status: Status
    result: Mapping[str, Any] | None = None
    error: StepError | None = None


def returned(value: object) -> AttemptOutcome:
    """The outcome of a function that has returned `value`."""
    try:
        return AttemptOutcome("SUCCEEDED", result=sendable(value))
    except ValueError as bad:
        return AttemptOutcome("FAILED", error=StepError("BadResult", f"the job's result cannot be sent: {bad}", False))


def raised(error: BaseException) -> AttemptOutcome:
    """The outcome of a function that has raised `error`. A library's error with the name of one of ours is not one of
    ours."""
    if isinstance(error, StepFailed):
        return AttemptOutcome("FAILED", error=step_error_of(error))
    failure = unexpected_error(error)
    return AttemptOutcome(
        "FAILED", error=replace(failure, type=f"Handler{failure.type}") if failure.type in _OWN else failure
    )


def halted(stop_signal: StopSignal, more: str = "") -> AttemptOutcome:
    """The outcome of a function that was asked to stop."""
    if stop_signal.cause is StopCause.CANCELLED:
        return AttemptOutcome("CANCELLED", error=StepError("Cancelled", stop_signal.reason + more, retryable=False))
    type = "Timeout" if stop_signal.cause is StopCause.TIMED_OUT else WORKER_STOPPED
    return AttemptOutcome("FAILED", error=StepError(type, stop_signal.reason + more, retryable=True))


def unknown(handler: str, queue: str) -> AttemptOutcome:
    """The outcome of a job without a function here.

    It is not requeued for another worker: where none has the function it would circulate for ever or, where the broker
    counts redeliveries, be dead-lettered. So the job fails at once.
    """
    lacks = f"a worker of queue {queue} has no function for job {handler!r}"
    message = f"{lacks}: every worker of a queue needs all its jobs"
    return AttemptOutcome("FAILED", error=StepError("UnknownJob", message, retryable=False))
