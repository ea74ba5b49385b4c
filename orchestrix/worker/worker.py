"""How does a worker start, run and stop?"""

from __future__ import annotations

import asyncio
from functools import partial

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer
from orchestrix.broker.topology import saga_topology
from orchestrix.config import Settings
from orchestrix.errors import ConfigError
from orchestrix.lifecycle import Loop
from orchestrix.persistence.engine import Database
from orchestrix.persistence.versions import NoReader, Reader
from orchestrix.saga.catalog import Catalog

from .aside import Aside
from .began import Began
from .context import LOGGER
from .crashes import Crashes
from .desk import Counts, Desk
from .groups import Groups
from .guard import Guard
from .handlers import HandlerTable
from .intake import Intake
from .jobs.runner import JobRunner
from .outage import Outage
from .places import Places
from .reporter import Reporter
from .runners import Runners
from .suspects import Suspects
from .triage import Triage
from .version_reader import VersionReader
from .watch import Growth, Watch
from .window import Window

LAST_WORD = 1.0
"""Seconds that finished work gets at least to reach the broker, however long the work itself took."""


class Worker:
    """Serves the command queues of its handlers: look at the saga, do the work, publish the event, acknowledge.

    Beside them it runs `jobs`, if it has any. Holds nothing that another worker needs: it may end at any time. What
    `reader` finds are the versions of sagas that other processes have the code of.
    """

    def __init__(
        self,
        broker: Broker,
        database: Database,
        catalog: Catalog,
        handlers: HandlerTable,
        settings: Settings,
        jobs: JobRunner | None = None,
        reader: Reader | None = None,
    ) -> None:
        self._reader = reader or NoReader()
        self._broker = broker
        self._guard = Guard(database, catalog)
        self._groups = Groups(database)
        self._crashes = Crashes(database)
        self._catalog = catalog
        self._handlers = handlers
        self._settings = settings.worker
        self._parts: _Parts | None = None
        self._runners: Runners | None = None
        self.jobs = jobs
        self.counts = Counts()

    @property
    def queues(self) -> tuple[str, ...]:
        """The command queues that it serves."""
        return tuple(self._handlers)

    @property
    def held(self) -> int:
        """How many commands it works on, also while it stops."""
        return len(self._runners.busy) if self._runners is not None else 0

    async def start(self) -> None:
        """Begins to take commands as soon as the broker is there; returns at once.

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
            await self.jobs.start()

    async def _check(self) -> None:
        if any(self._catalog.command(command) is None for command in self._handlers):
            await self._reader.read_all()
        for command in self._handlers:
            if self._catalog.command(command) is None:
                helps = "add the module of its saga to ORCHESTRIX_SAGAS or orchestrix.toml"
                raise ConfigError(f"no saga has the command {command}: {helps}")

    async def stop(self) -> None:
        """Takes nothing new, gives back what has not begun, and waits up to `worker.stop_timeout` seconds for the rest
        to end and to be reported; see `JobRunner.stop` for jobs."""
        parts = [self._stop()] if self.jobs is None else [self._stop(), self.jobs.stop()]
        for error in await asyncio.gather(*parts, return_exceptions=True):
            if error is not None:
                raise error

    async def _stop(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.stop(self._settings.stop_timeout)


class _Parts:
    """The loops of a worker that runs."""

    def __init__(self, worker: Worker, consumer: Consumer) -> None:
        tuned, topology = worker._settings, partial(saga_topology, worker._catalog)
        broker, guard, places = worker._broker, worker._guard, tuned.concurrency
        self._desk = desk = Desk(consumer, worker.counts, Aside(broker, consumer, topology))
        self._outage = outage = Outage(consumer)
        self._reporter = reporter = Reporter(broker, desk, outage, topology)
        window = Window(consumer, worker.queues, places, tuned.window)
        suspects = Suspects(desk, broker, window, outage, worker._crashes, places, tuned.max_deliveries)
        self._places = Places(desk, guard, outage, places)
        self.runners = runners = Runners(
            desk,
            worker._handlers,
            reporter,
            outage,
            tuned,
            guard.time_left,
            window,
            suspects,
            self._places,
            worker._groups,
        )
        self._triage = Triage(desk, guard, reporter, outage, runners.put)
        versions = VersionReader(worker._reader, desk, outage)
        intake = Intake(desk, worker._catalog, reporter, self._triage, runners.put, versions)
        looks = (Began(reporter), window, Growth(consumer, desk), suspects, self._places)
        self._watch = Watch(lambda: runners.busy, looks, runners.ease)
        self._intake = Loop("worker intake", intake.round)
        self._waiting = Loop("early commands", self._triage.round)
        self._reports = Loop("worker reports", reporter.round)
        self._lanes = Loop("suspects", suspects.round)
        self._watching = Loop("what is at work", self._watch.round)

    async def start(self) -> None:
        self.runners.start(self._triage, self._watch)
        for loop in (self._reports, self._waiting, self._lanes, self._watching, self._intake):
            await loop.start()

    async def stop(self, timeout: float) -> None:
        ends = clock.monotonic() + timeout
        self._desk.stopping.set()
        await self._halt()
        await self._waiting.stop()
        await self._triage.give_back()
        await self._lanes.stop()
        await self.runners.stop(max(0.0, ends - clock.monotonic()))
        await self._watching.stop()
        self._places.stop()
        await self._report(max(LAST_WORD, ends - clock.monotonic()))
        await self._reports.stop()
        await self._intake.stop()
        await self._desk.consumer.close()

    async def _halt(self) -> None:
        try:
            async with asyncio.timeout(2.0):
                await self._outage.halt()
        except TimeoutError:
            LOGGER.warning("the broker does not answer; it will give the commands to others")

    async def _report(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._reporter.drained()
        except TimeoutError:
            LOGGER.warning("some finished work could not be reported; it will be done again, which changes nothing")
