"""Job execution: runs a job's function, and stops it when it is cancelled or times out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from orchestrix import clock, crash
from orchestrix.quantities import duration
from orchestrix.telemetry import log_events
from orchestrix.worker.commands.stuck_slots import STUCK_SLOT_HINT
from orchestrix.worker.context import LOGGER
from orchestrix.worker.error_mapping import ends_task, main_error, step_error_of, traced, unexpected_error
from orchestrix.worker.errors import StepFailed
from orchestrix.worker.jobs.context import JobContext
from orchestrix.worker.jobs.functions import JobFunction
from orchestrix.worker.jobs.outcome import AttemptOutcome, halted, raised, returned
from orchestrix.worker.jobs.stop_signal import StopCause, StopSignal
from orchestrix.worker.threads import call, is_async

Call = Callable[..., Coroutine[Any, Any, Any]]
TIMEOUT_GRACE_S: Final = 2.0
"""Seconds that the leader's stop message may take before the worker times the attempt out itself."""
CANCEL_GRACE_S: Final = 5.0
"""Seconds in which a function that was cancelled may still clean up before the attempt ends without it."""


class FunctionResult(NamedTuple):
    """The result of the call."""

    value: object = None
    error: BaseException | None = None


class JobExecution:
    """One running function: it ends by itself, or is asked to stop, then cancelled, then abandoned."""

    def __init__(
        self,
        function: JobFunction,
        context: JobContext,
        stop_signal: StopSignal,
        log_fields: Mapping[str, object],
        how: Call = call,
    ) -> None:
        self._function, self._context, self._stop_signal, self._log_fields, self._how = (
            function,
            context,
            stop_signal,
            log_fields,
            how,
        )
        self._work: asyncio.Task[FunctionResult] | None = None
        self._begun = clock.monotonic()

    async def run(self) -> AttemptOutcome:
        """How it ended. A thread, or a function that ignores its cancellation, may still run then."""
        if self._stop_signal.cause is not None:
            return halted(self._stop_signal)
        self._begun = clock.monotonic()
        work = self._work = asyncio.create_task(self._outcome(), name=f"job {self._context.history_id}")
        try:
            timeout = self._context.timeout
            await _first(work, self._stop_signal.wait(), None if timeout is None else timeout + TIMEOUT_GRACE_S)
            if not work.done():
                self._time_out()
                await _first(work, self._stop_signal.urgent(), self._function.grace)
            if not work.done():
                await self._cancel(work)
        except asyncio.CancelledError:
            work.cancel()
            raise
        return self._judged(work)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._work is None or self._work.done()

    async def gone(self) -> None:
        """Waits until nothing of it runs any more."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def _outcome(self) -> FunctionResult:
        task = asyncio.current_task()
        try:
            work = self._how(self._function.function, self._context)
            return FunctionResult(await crash.within("worker.jobs.during_work", work))
        except BaseException as error:  # of any class: otherwise no status would be sent
            if isinstance(error, GeneratorExit) and ends_task(error, task):
                raise
            return FunctionResult(error=main_error(error))

    def _time_out(self) -> None:
        timeout = self._context.timeout
        if timeout is not None:  # else it was asked to stop: the first cause counts
            self._stop_signal.set(StopCause.TIMED_OUT, f"timed out after {duration(timeout)}")

    async def _cancel(self, work: asyncio.Task[FunctionResult]) -> None:
        if is_async(self._function.function):  # a thread would run on, and nothing would wait for it
            work.cancel()
            await asyncio.wait([work], timeout=CANCEL_GRACE_S)

    def _judged(self, work: asyncio.Task[FunctionResult]) -> AttemptOutcome:
        if not work.done():
            name = self._context.name
            LOGGER.warning(
                "job %s did not stop when cancelled: its slot is blocked until it ends; %s",
                name,
                STUCK_SLOT_HINT,
                extra={**self._log_fields, "event": log_events.HANDLER_STUCK},
            )
            return halted(self._stop_signal, "; it did not stop in time and may still run")
        value, error = work.result()
        if error is not None:
            self._log_error(error)
        if self._stop_signal.cause is not None and (error is not None or self._stop_signal.noticed):
            return halted(self._stop_signal)
        return raised(error) if error is not None else self._returned(value)

    def _returned(self, value: object) -> AttemptOutcome:
        ending = returned(value)
        if ending.error is not None:
            extra = self._failure_fields(ending.error.type)
            LOGGER.error("job %s failed: %s", self._context.name, ending.error.message, extra=extra)
        return ending

    def _log_error(self, error: BaseException) -> None:
        """Logs the stack trace of an unexpected error, in this worker's log alone."""
        if isinstance(error, StepFailed):
            failure = step_error_of(error)
            values = self._context.name, failure.type, failure.message
            LOGGER.warning("job %s failed: %s: %s", *values, extra=self._failure_fields(failure.type))
        elif self._stop_signal.cause is None or not isinstance(error, asyncio.CancelledError):
            extra = self._failure_fields(unexpected_error(error).type)
            LOGGER.error("job %s failed", self._context.name, exc_info=traced(error), extra=extra)

    def _failure_fields(self, error_type: str) -> dict[str, object]:
        ms = max(0, round((clock.monotonic() - self._begun) * 1000))
        return {**self._log_fields, "event": log_events.HANDLER_FAILED, "ms": ms, "error_type": error_type}


async def _first(work: asyncio.Task[FunctionResult], other: Coroutine[Any, Any, None], timeout: float | None) -> None:
    """Waits for the end of `work` or of `other`, or for `timeout` seconds."""
    waiting = asyncio.create_task(other)
    try:
        await asyncio.wait({work, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
