"""Worker: starts, runs and stops the consumers of commands and of jobs in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer
from orchestrix.broker.topology import WORKER_HEARTBEATS, saga_topology
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.lifecycle import Loop
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.saga.catalog import Catalog
from orchestrix.telemetry import log_events
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.admission import CommandAdmission
from orchestrix.worker.commands.consumer import CommandConsumer
from orchestrix.worker.commands.in_flight import CommandCounts, InFlightCommands
from orchestrix.worker.commands.prefetch import PrefetchWindow
from orchestrix.worker.commands.redelivery.crash_notes import CrashNotes
from orchestrix.worker.commands.redelivery.republisher import CommandRepublisher
from orchestrix.worker.commands.redelivery.scheduler import RedeliveryScheduler
from orchestrix.worker.commands.reporter import CommandReporter
from orchestrix.worker.commands.slot_monitor import PrefetchGrowth, SlotMonitor
from orchestrix.worker.commands.slots import CommandSlots
from orchestrix.worker.commands.start_reporter import StartReporter
from orchestrix.worker.commands.state_guard import StateGuard
from orchestrix.worker.commands.stuck_slots import StuckSlots
from orchestrix.worker.commands.version_reader import VersionReader
from orchestrix.worker.executor_groups import ExecutorGroups

from .context import LOGGER
from .handlers import HandlerTable
from .heartbeat import HeartbeatPublisher, ProcessIdentity
from .jobs.runner import JobRunner

FINAL_REPORT_TIMEOUT_S = 1.0
"""Seconds that the final events get at least to be confirmed, however long the work itself took."""


class Worker:
    """Serves the command queues of its handlers: read the saga's row, execute the command, publish the event,
    acknowledge.

    It also runs `jobs`, if it has any. It holds nothing that another worker needs, so it may end at any time. `reader`
    finds the versions of sagas whose code other processes have. Its heartbeats describe its `process`; a worker
    without jobs sends none if there is no such description.
    """

    def __init__(
        self,
        broker: Broker,
        database: Database,
        catalog: Catalog,
        handlers: HandlerTable,
        settings: Settings,
        jobs: JobRunner | None = None,
        reader: DefinitionReader | None = None,
        process: ProcessIdentity | None = None,
    ) -> None:
        self._process = process
        self._heartbeat: HeartbeatPublisher | None = None
        self._heartbeat_s = settings.jobs.beat
        self._reader = reader or NullDefinitionReader()
        self._broker = broker
        self._guard = StateGuard(database, catalog)
        self._groups = ExecutorGroups(database)
        self._crashes = CrashNotes(database)
        self._catalog = catalog
        self._handlers = handlers
        self._settings = settings.worker
        self._parts: _Parts | None = None
        self._runners: CommandSlots | None = None
        self.jobs = jobs
        self.counts = CommandCounts()

    @property
    def queues(self) -> tuple[str, ...]:
        """The command queues that it serves."""
        return tuple(self._handlers)

    @property
    def commands_in_flight(self) -> int:
        """How many commands are in flight, also while it stops."""
        return len(self._runners.busy) if self._runners is not None else 0

    @property
    def abandoned(self) -> int:
        """How many commands and jobs had not ended when its time to stop was over."""
        jobs = self.jobs.abandoned if self.jobs is not None else 0
        return jobs + (self._runners.abandoned if self._runners is not None else 0)

    def problem(self) -> str | None:
        """Which of its queues it does not read, in a sentence; None while it reads all. A health probe."""
        unread = list(self._parts.unread if self._parts is not None else self.queues)
        if self.jobs is not None:
            unread += self.jobs.unread
        return f"it does not read {', '.join(unread)}" if unread else None

    async def start(self) -> None:
        """Consumes commands as soon as the broker is reachable; returns at once.

        Raises `ConfigError` for a handler whose command belongs to no saga, of the code or of the stored definitions,
        and `Unavailable` where those cannot be read.
        """
        await self._check()
        if self._parts is None and self._handlers:
            consumer = await self._broker.consume(self.queues, self._settings.window)
            self._parts = _Parts(self, consumer)
            self._runners = self._parts.runners
            await self._parts.start()
        if self.jobs is not None:
            await self.jobs.start(self._describe if self._process is not None else None)
        elif self._process is not None and self._handlers and self._heartbeat is None:
            self._heartbeat = HeartbeatPublisher(
                self._broker, WORKER_HEARTBEATS, self._process.id, (), None, self._heartbeat_s, self._describe
            )
            await self._heartbeat.start()

    def _describe(self, draining: bool) -> Mapping[str, Any]:
        """What its heartbeats say of it, besides its job queues and jobs."""
        assert self._process is not None, "it has something to say"
        return {
            "host": self._process.host,
            "version": self._process.version,
            "commandQueues": [] if draining else list(self.queues),
            "commands": self.commands_in_flight,
            "handlers": list(self.jobs.handlers) if self.jobs is not None else [],
        }

    async def _check(self) -> None:
        if any(self._catalog.command(command) is None for command in self._handlers):
            await self._reader.read_all()
        for command in self._handlers:
            if self._catalog.command(command) is None:
                helps = "add the module of its saga to ORCHESTRIX_SAGAS or orchestrix.toml"
                raise ConfigError(f"no saga has the command {command}: {helps}")

    async def stop(self) -> None:
        """Takes nothing new, requeues what has not started, and waits up to `worker.stop_timeout` seconds for the rest
        to end and to be reported; see `JobRunner.stop` for jobs."""
        commands = asyncio.ensure_future(self._stop())
        parts = [commands] if self.jobs is None else [commands, self.jobs.stop(commands)]
        for error in await asyncio.gather(*parts, return_exceptions=True):
            if error is not None:
                raise error

    async def _stop(self) -> None:
        parts, self._parts = self._parts, None
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.begin_drain()
        if parts is not None:
            await parts.stop(self._settings.stop_timeout)
        if heartbeat is not None:
            await heartbeat.stop()


class _Parts:
    """The loops of a running worker."""

    def __init__(self, worker: Worker, consumer: Consumer) -> None:
        tuned, topology = worker._settings, partial(saga_topology, worker._catalog)
        broker, guard, slots = worker._broker, worker._guard, tuned.concurrency
        worker_id = worker._process.id if worker._process is not None else None
        self._in_flight = in_flight = InFlightCommands(
            consumer, worker.counts, CommandRepublisher(broker, consumer, topology), worker_id
        )
        self._outage = outage = Backpressure(consumer)
        self._reporter = reporter = CommandReporter(broker, in_flight, outage, topology)
        window = PrefetchWindow(consumer, worker.queues, slots, tuned.window)
        suspects = RedeliveryScheduler(in_flight, broker, window, outage, worker._crashes, slots, tuned.max_deliveries)
        self._stuck_slots = StuckSlots(in_flight, guard, outage, slots)
        self.runners = runners = CommandSlots(
            in_flight,
            worker._handlers,
            reporter,
            outage,
            tuned,
            guard.time_left,
            window,
            suspects,
            self._stuck_slots,
            worker._groups,
        )
        self._admission = CommandAdmission(in_flight, guard, reporter, outage, runners.put)
        versions = VersionReader(worker._reader, in_flight, outage)
        intake = CommandConsumer(in_flight, worker._catalog, reporter, self._admission, runners.put, versions)
        looks = (StartReporter(reporter), window, PrefetchGrowth(consumer, in_flight), suspects, self._stuck_slots)
        self._watch = SlotMonitor(lambda: runners.busy, looks, runners.requeue_waiting)
        self._intake = Loop("command consumer", intake.round)
        self._waiting = Loop("command admission", self._admission.round)
        self._reports = Loop("event reporter", reporter.round)
        self._redelivery_loop = Loop("redelivered commands", suspects.round)
        self._watching = Loop("slot monitor", self._watch.round)

    @property
    def unread(self) -> Sequence[str]:
        """The command queues that it does not read."""
        return self._in_flight.consumer.unread

    async def start(self) -> None:
        self.runners.start(self._admission, self._watch)
        for loop in (self._reports, self._waiting, self._redelivery_loop, self._watching, self._intake):
            await loop.start()

    async def stop(self, timeout: float) -> None:
        ends = clock.monotonic() + timeout
        self._in_flight.stopping.set()
        await self._stop_receiving()
        await self._waiting.stop()
        await self._admission.requeue()
        await self._redelivery_loop.stop()
        await self.runners.stop(max(0.0, ends - clock.monotonic()))
        await self._watching.stop()
        self._stuck_slots.stop()
        await self._report(max(FINAL_REPORT_TIMEOUT_S, ends - clock.monotonic()))
        await self._reports.stop()
        await self._intake.stop()
        self._reporter.abandon()
        self._in_flight.abandon()
        await self._in_flight.consumer.close()

    async def _stop_receiving(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self._outage.stop_receiving()
        except TimeoutError:
            LOGGER.warning(
                "the broker does not answer; it will redeliver the commands to other workers",
                extra={"event": log_events.WORK_ABANDONED},
            )

    async def _report(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._reporter.all_confirmed()
        except TimeoutError:
            LOGGER.warning(
                "some finished work could not be reported; its commands are redelivered",
                extra={"event": log_events.WORK_ABANDONED},
            )
