"""Executor runs: the attempts that an executor has taken, each run once, at most so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Topology
from orchestrix.http_client import HttpClient
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import Span
from orchestrix.worker.commands.stuck_slots import STUCK_SLOT_HINT
from orchestrix.worker.context import LOGGER
from orchestrix.worker.error_mapping import ends_task, printable
from orchestrix.worker.executor.callbacks import Callbacks
from orchestrix.worker.executor.run_call import RunCall
from orchestrix.worker.executor.spans import begin_run
from orchestrix.worker.jobs.attempt import AttemptRunner
from orchestrix.worker.jobs.dispatch import JobCancel
from orchestrix.worker.jobs.execution import CANCEL_GRACE_S
from orchestrix.worker.jobs.functions import JobTable
from orchestrix.worker.jobs.report_buffer import ReportBuffer
from orchestrix.worker.jobs.slots import RecentMemory
from orchestrix.worker.jobs.stop_signal import StopCause

FINAL_REPORT_TIMEOUT_S: Final = 2.0
"""Seconds that the final reports get at least to be taken."""
ENDED_KNOWN_S: Final = 60.0
"""Seconds for which an attempt whose final report was taken is not denied: its owner may not have read that yet."""
CLEAR_TIMEOUT_S: Final = 1.0


class RunAdmission(Enum):
    """What becomes of a call to run an attempt."""

    TAKEN = "taken"
    """It runs, or did already."""
    FULL = "full"
    STOPPING = "stopping"
    UNKNOWN_JOB = "unknown job"


class Runs:
    """The attempts of an executor by their history id, at most `slots` at once.

    An attempt that has run is remembered for an hour: it does not run again. A slot is free again when its report is
    taken and nothing of the function runs any more.
    """

    def __init__(self, jobs: JobTable, slots: int, address: str, client: HttpClient, report_timeout_s: float) -> None:
        self.slots = slots
        self.stopping = False
        self.abandoned = 0
        """How many attempts had not ended when the time to stop was over."""
        self._jobs, self._address, self._client, self._report_timeout_s = jobs, address, client, report_timeout_s
        self._attempts: dict[str, AttemptRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: RecentMemory[float] = RecentMemory()
        """When each ended, by the monotonic clock."""
        self._cancelled: RecentMemory[str] = RecentMemory()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def history_ids(self) -> list[str]:
        """The attempts in flight: they run, or their final report was not taken yet."""
        return list(self._attempts)

    @property
    def load(self) -> float:
        """The share of the slots that is taken, from 0 to 1."""
        return len(self._tasks) / self.slots

    def knows(self, history_id: str) -> bool:
        """Whether the attempt is in flight, or has ended a short while ago."""
        if history_id in self._attempts:
            return True
        ended = self._ended.get(history_id)
        return ended is not None and clock.monotonic() - ended < ENDED_KNOWN_S

    def take(self, call: RunCall, headers: Mapping[str, str]) -> RunAdmission:
        """Begins the attempt, unless it runs, has run, or cannot be run now. `headers` may have a trace context."""
        name = call.dispatch.history_id
        if name in self._attempts or self._ended.get(name) is not None:
            return RunAdmission.TAKEN
        if call.dispatch.handler not in self._jobs:
            return RunAdmission.UNKNOWN_JOB
        if self.stopping:
            return RunAdmission.STOPPING
        if len(self._tasks) >= self.slots:
            return RunAdmission.FULL
        self._begin(call, headers)
        return RunAdmission.TAKEN

    def cancel(self, cancel: JobCancel) -> None:
        """Stops the attempts concerned, and remembers it for calls still under way."""
        reason = cancel.reason or "it was cancelled"
        for attempt in self._attempts.values():
            if cancel.history_id in (None, attempt.dispatch.history_id) and attempt.dispatch.job_id == cancel.job_id:
                attempt.stop_signal.set(StopCause.CANCELLED, reason)
        self._cancelled.put(cancel.history_id or cancel.job_id, reason)

    async def stop(self, timeout: float) -> None:
        """Takes nothing new, and lets attempts run for up to `timeout` seconds; what has not ended then is asked to
        stop and reported as failed, within about eight seconds more."""
        self.stopping = True
        if not await self._quiet(timeout):
            self.abandoned = len(self._attempts)
            LOGGER.warning(
                "%s did not finish in time; abandoned",
                counted(self.abandoned, "job"),
                extra={"event": log_events.WORK_ABANDONED},
            )
            for attempt in self._attempts.values():
                attempt.stop_signal.set(StopCause.WORKER_STOPPED, "the executor stopped before the job ended")
                attempt.stop_signal.set_urgent()
            await self._quiet(CANCEL_GRACE_S + FINAL_REPORT_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLEAR_TIMEOUT_S)

    async def _quiet(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    # The lifecycle of an attempt.

    def _begin(self, call: RunCall, headers: Mapping[str, str]) -> None:
        dispatch = call.dispatch
        attempt = self._attempts[dispatch.history_id] = self._made(call, begin_run(call, headers, self._address))
        reason = self._cancelled.get(dispatch.history_id) or self._cancelled.get(dispatch.job_id)
        if reason is not None:
            attempt.stop_signal.set(StopCause.CANCELLED, reason)
        self._idle.clear()
        task = asyncio.create_task(self._serve(attempt), name=f"attempt {dispatch.history_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _made(self, call: RunCall, span: Span) -> AttemptRunner:
        def cancel(reason: str) -> None:
            attempt.stop_signal.set(StopCause.CANCELLED, reason)

        dispatch = call.dispatch
        callbacks = Callbacks(self._client, call, self._report_timeout_s, cancel)
        report_buffer = ReportBuffer(callbacks, Topology())
        function = self._jobs[dispatch.handler]
        attempt = AttemptRunner(dispatch, function, call.group, report_buffer, self._address, span)
        return attempt

    async def _serve(self, attempt: AttemptRunner) -> None:
        task, name = asyncio.current_task(), attempt.dispatch.history_id
        try:
            if await attempt.run(_accept) is not None:
                self._ended.put(name, clock.monotonic())
        except BaseException as error:
            if ends_task(error, task):
                raise
            handler, fields = attempt.dispatch.handler, attempt.dispatch.log_fields
            LOGGER.error(
                "internal error of the executor at job %s",
                handler,
                exc_info=printable(error),
                extra={**fields, "event": log_events.WORKER_ERROR},
            )
            self._ended.put(name, -ENDED_KNOWN_S)  # denied at once, so that it runs again elsewhere
        finally:
            self._attempts.pop(name, None)
            if not self._attempts:
                self._idle.set()
        if not attempt.is_gone and len(self._tasks) == self.slots:
            LOGGER.error(
                "job %s still runs after its end; %s",
                attempt.dispatch.handler,
                STUCK_SLOT_HINT,
                extra={"event": log_events.HANDLER_STUCK},
            )
        await attempt.gone()


async def _accept(attempt: AttemptRunner) -> bool:
    """Its RUNNING was taken. An answer that asked to stop has set its stop signal, so that the work does not begin."""
    attempt.accepted = True
    return True
