"""Command slots: executes as many commands at once as there are slots."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.config.settings import WorkerSettings
from orchestrix.lifecycle import backoff
from orchestrix.quantities import counted
from orchestrix.saga.messages import StepError
from orchestrix.telemetry import log_events, tracing
from orchestrix.telemetry.metrics.catalogue import PROCESS_DURATION
from orchestrix.telemetry.metrics.instruments import histogram
from orchestrix.telemetry.tracing import NO_SPAN
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands import events
from orchestrix.worker.commands.admission import CommandAdmission
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.execution import invoke
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.prefetch import PrefetchWindow
from orchestrix.worker.commands.redelivery.scheduler import RedeliveryScheduler
from orchestrix.worker.commands.reporter import CommandReport, CommandReporter
from orchestrix.worker.commands.slot_monitor import SlotMonitor
from orchestrix.worker.commands.stuck_slots import StuckSlots
from orchestrix.worker.commands.time_limit import MoreTime
from orchestrix.worker.context import LOGGER, Context, GroupStore
from orchestrix.worker.delivery_spans import CHANNEL_LOST
from orchestrix.worker.error_mapping import ends_task, printable
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS
from orchestrix.worker.handlers import HandlerTable

_NOT_TRACED: Final = nullcontext()
_STEP_FAILED: Final = "step_failed"
_processing = histogram(PROCESS_DURATION)
GUARD_MAX_AGE_S: Final = 1.0
"""Seconds after which a read of the row is too old to start the work on it."""
EMPTY_POLL_INTERVAL_S: Final = 0.05
EMPTY_POLLS: Final = 2
"""So many polls in a row must find nothing else in flight, because what has just arrived is not known yet."""


class CommandSlots:
    """As many tasks as commands may run at once; suspect commands come one by one, through `redeliveries`."""

    def __init__(
        self,
        in_flight: InFlightCommands,
        handlers: HandlerTable,
        reporter: CommandReporter,
        outage: Backpressure,
        settings: WorkerSettings,
        more: MoreTime,
        window: PrefetchWindow,
        redeliveries: RedeliveryScheduler,
        slots: StuckSlots,
        groups: GroupStore,
    ) -> None:
        self._in_flight = in_flight
        self._handlers = handlers
        self._reporter = reporter
        self._outage = outage
        self._settings = settings
        self._more = more
        self._window, self._redeliveries, self._slot_count = window, redeliveries, slots
        self._groups = groups
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._ready: deque[CommandDelivery] = deque()
        self._arrived = asyncio.Semaphore(0)
        self._busy: dict[CommandDelivery, None] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.abandoned = 0
        """How many commands had not ended when the time to stop was over."""
        redeliveries.use(self)

    @property
    def busy(self) -> list[CommandDelivery]:
        """The running commands."""
        return list(self._busy)

    def put(self, command: CommandDelivery) -> None:
        """Queues the command for a slot; returns at once."""
        if command.suspect:
            self._redeliveries.put(command)
        else:
            self._ready.append(command)
            self._arrived.release()

    def start(self, admission: CommandAdmission, watch: SlotMonitor) -> None:
        """Starts the slots; `admission` checks again what had to wait."""
        self._admission, self._watch = admission, watch
        self._tasks = {asyncio.create_task(self._serve(), name="runner") for _ in range(self._settings.concurrency)}

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return len(self._busy) < self._settings.concurrency

    def begin(self, command: CommandDelivery) -> asyncio.Task[None]:
        """Executes a suspect command as soon as a slot is free."""
        self._take(command)
        task = asyncio.create_task(self._work(command), name="redelivered command")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def beside(self, command: CommandDelivery) -> set[CommandDelivery]:
        """What else is in flight, except for commands that never end."""
        return self._in_flight.commands - {command} - self._slot_count.lost.keys()

    async def emptied(self, command: CommandDelivery) -> None:
        """Waits until nothing else is in flight."""
        quiet = 0
        while quiet < EMPTY_POLLS:
            quiet = quiet + 1 if not self.beside(command) else 0
            await asyncio.sleep(EMPTY_POLL_INTERVAL_S)

    def report_worker_crashes(self, command: CommandDelivery) -> None:
        """Fails the step before the broker's own delivery limit silently drops the command."""
        died = counted(command.deaths, "worker")
        message = f"{died} died while processing {command.message.type}, the last one running nothing else"
        error = StepError("WorkerCrashed", message, retryable=False)
        LOGGER.error("%s: not retrying", message, extra=command.failure_fields(error.type))
        outgoing = events.failed(command, error)
        self._reporter.add(CommandReport(outgoing, "failed", command, instead=(partial(events.unsendable, command),)))

    async def requeue_waiting(self, now: float) -> None:
        """Requeues what has waited for long, because other workers may have a free slot; all that waits if no slot is
        left here."""
        waiting = list(self._ready) if self._slot_count.gone else self._window.ahead(self._ready, now)
        for command in waiting:
            self._ready.remove(command)
        await self._in_flight.requeue(waiting)

    async def stop(self, timeout: float) -> None:
        """Requeues what has not started, and waits up to `timeout` seconds for the rest, which is then cancelled."""
        await self._redeliveries.stop()
        waiting, self._ready = list(self._ready), deque()
        await self._in_flight.requeue(waiting + self._redeliveries.take_waiting())
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            self.abandoned = len(self._busy)
            LOGGER.warning(
                "%s did not finish in time; requeueing",
                counted(self.abandoned, "command"),
                extra={"event": log_events.WORK_ABANDONED},
            )
        left = self.busy
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._in_flight.requeue(left + self._redeliveries.take_waiting())  # some may have arrived meanwhile

    async def _serve(self) -> None:
        while True:
            await self._arrived.acquire()
            if self._ready:  # else it was requeued meanwhile
                command = self._ready.popleft()
                self._take(command)
                await self._work(command)

    def _take(self, command: CommandDelivery) -> None:
        self._busy[command] = None
        self._quiet.clear()
        self._watch.wake()

    async def _work(self, command: CommandDelivery) -> None:
        task = asyncio.current_task()
        try:
            async with self._slots:
                await self._run(command)
        except BaseException as error:
            if ends_task(error, task):
                raise
            extra = command.log_fields(log_events.WORKER_ERROR)
            LOGGER.error(
                "internal error of the worker at %s", command.message.type, exc_info=printable(error), extra=extra
            )
            await self._in_flight.reject([command])
        finally:
            self._busy.pop(command, None)
            if not self._busy:
                self._quiet.set()
        await self._slot_count.back(command)

    async def _run(self, command: CommandDelivery) -> None:
        failures = 0
        try:
            while await self._due(command):
                crash.point("worker.after_guard")
                if await self._attempt(command, failures + 1):
                    return
                failures += 1
        finally:
            if failures:
                await self._outage.over(command.message.id)

    async def _due(self, command: CommandDelivery) -> bool:
        """Whether the work is to start now; if not, the command has been settled."""
        if self._in_flight.stopping.is_set():
            await self._in_flight.requeue([command])
            return False
        if not self._in_flight.alive(command):
            self._in_flight.forget(command, CHANNEL_LOST)
            return False
        if command.checked_at is not None and clock.monotonic() - command.checked_at <= GUARD_MAX_AGE_S:
            return True
        return bool(await self._admission.select_runnable([command]))

    async def _attempt(self, command: CommandDelivery, failures: int) -> bool:
        """Whether there is something to report; if not, the worker's own infrastructure is unavailable."""
        queue, command.begun, failed = command.message.type, clock.monotonic(), ""
        self._window.began(queue)
        try:
            context = Context.of(command.message, command.ends, self._handlers.settings.get(queue), self._groups)
            with _NOT_TRACED if command.span is NO_SPAN else tracing.active(command.span):
                outgoing, good = await invoke(self._handlers[queue], command, self._more, context)
            failed = "" if good else _STEP_FAILED
        except INFRASTRUCTURE_ERRORS as error:
            failed = type(error).__name__
            await self._outage.note(command.message.id, error)
            await self._in_flight.pause(backoff(failures))
            return False
        finally:
            begun, command.begun = command.begun, None
            seconds = clock.monotonic() - begun
            self._window.ended(queue, seconds)
            _processing.at(queue, failed).record(seconds, command.span.context)
        crash.point("worker.after_effect")
        self._reporter.add(
            CommandReport(
                outgoing, "done" if good else "failed", command, instead=(partial(events.unsendable, command),)
            )
        )
        return True
