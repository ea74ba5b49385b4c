"""Attempt runner: runs one attempt of a job, from its dispatch to its final status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from orchestrix import crash
from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.telemetry import tracing
from orchestrix.telemetry.tracing import Span
from orchestrix.worker.commands.events import error_fields
from orchestrix.worker.delivery_spans import GIVEN_BACK, context_headers, set_ignored
from orchestrix.worker.jobs.execution import JobExecution
from orchestrix.worker.jobs.messages import AttemptMessages
from orchestrix.worker.jobs.outcome import WORKER_STOPPED, AttemptOutcome, halted, unknown
from orchestrix.worker.jobs.report_buffer import ReportBuffer
from orchestrix.worker.jobs.stop_signal import StopSignal
from orchestrix.worker.threads import ask

from .context import JobContext
from .dispatch import JobDispatch
from .functions import JobFunction

Accept: TypeAlias = Callable[["AttemptRunner"], Awaitable[bool]]


class AttemptRunner:
    """An attempt of this worker. `function` is None if the worker has none for the job.

    `queue` is where it came from: a job queue, or an executor group. `deliveries` are the copies of its dispatch that
    came before it was accepted; one that came by HTTP has none. `stop_signal` is its stop signal. `span` is that of
    handling its dispatch, which ends with it.
    """

    def __init__(
        self,
        dispatch: JobDispatch,
        function: JobFunction | None,
        queue: str,
        report_buffer: ReportBuffer,
        worker_id: str,
        span: Span,
        deliveries: Sequence[Delivery] = (),
    ) -> None:
        self.dispatch = dispatch
        self.deliveries = list(deliveries)
        self.accepted = False
        self.stop_signal = StopSignal()
        self._function = function
        self._queue = queue
        self._report_buffer = report_buffer
        self._reports = AttemptMessages(dispatch, worker_id, context_headers(span))
        self._span = span
        self._progress: Mapping[str, Any] | None = None
        self._last_log = 0
        self._execution: JobExecution | None = None

    async def run(self, accept: Accept) -> AttemptOutcome | None:
        """How it ended, once its final status is confirmed; None if another worker has got it.

        `accept` acknowledges the dispatch; False says that the broker has redelivered it elsewhere.
        """
        ending: AttemptOutcome | None = None
        try:
            ending = await self._run(accept)
        finally:
            self._end_span(ending)
        return ending

    def _end_span(self, ending: AttemptOutcome | None) -> None:
        error = None if ending is None else ending.error
        if ending is None or (error is not None and error.type == WORKER_STOPPED):
            set_ignored(self._span, GIVEN_BACK)
        elif ending.status == "FAILED" and error is not None and self._span.recording:
            fields = error_fields(error)
            self._span.fail(fields["type"], fields["message"])
        self._span.end()

    async def _run(self, accept: Accept) -> AttemptOutcome | None:
        sending = asyncio.create_task(self._report_buffer.run(), name=f"reports of job {self.dispatch.history_id}")
        try:
            ending = self._outcome_before_start()
            if ending is None:
                if not await self._begin(accept):
                    return None
                ending = await self._execute()
                crash.point("worker.jobs.after_work")
            self.stop_signal.over = True
            self._report_buffer.end(partial(self._ended, ending))
            await sending
            if not self.accepted:
                await accept(self)
            return ending
        finally:
            self.stop_signal.over = True
            sending.cancel()

    @property
    def channels_redeclared(self) -> bool:
        """Whether the channels of its job were missing and were declared again."""
        return self._report_buffer.channels_redeclared

    @property
    def is_gone(self) -> bool:
        """Whether nothing of its function runs any more."""
        return self._execution is None or self._execution.is_gone

    async def gone(self) -> None:
        """Waits until nothing of its function runs any more."""
        if self._execution is not None:
            await self._execution.gone()

    # What the job reports; see `context.JobReporter`.

    async def log(self, level: str, message: str) -> None:
        await self._report_buffer.put(partial(self._line, level, message))

    async def progress(self, value: Mapping[str, Any]) -> None:
        self._progress = value
        self._report_buffer.show(self._running)

    # Its lifecycle.

    def _outcome_before_start(self) -> AttemptOutcome | None:
        """The outcome of an attempt that has no function, or was cancelled before it began."""
        if self._function is None:
            return unknown(self.dispatch.handler, self._queue)
        return halted(self.stop_signal) if self.stop_signal.cause is not None else None

    async def _begin(self, accept: Accept) -> bool:
        """The dispatch is acknowledged, and the work starts, only once RUNNING is confirmed."""
        await self._report_buffer.put(self._running)
        await self._report_buffer.confirmed()
        return await accept(self)

    async def _execute(self) -> AttemptOutcome:
        assert self._function is not None, "it is not stillborn"
        loop = asyncio.get_running_loop()
        context = JobContext(
            self.dispatch, self._queue, self, self.stop_signal, partial(ask, loop), self._function.settings
        )
        followed = self._span.context
        log_fields = {**self.dispatch.log_fields, **({} if followed is None else followed.log_fields)}
        self._execution = JobExecution(self._function, context, self.stop_signal, log_fields)
        with tracing.active(self._span):
            return await self._execution.run()

    # Its messages.

    def _running(self, seq: int) -> Outgoing:
        return self._reports.running(seq, self._progress)

    def _line(self, level: str, message: str, seq: int) -> Outgoing:
        self._last_log = seq
        return self._reports.log(seq, level, message)

    def _ended(self, ending: AttemptOutcome, seq: int) -> Outgoing:
        return self._reports.ended(seq, ending, self._progress, self._last_log)
