"""Factories: make the database, the broker and the sagas of a process from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from typing import Any, Final, Protocol

from orchestrix import clock
from orchestrix.bootstrap.write_probe import WriteProbe
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Broker, LinkState, WantedTopology
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError, RetryableError, SchemaMismatch, Unavailable
from orchestrix.lifecycle import Health, ended
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import migrator
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.telemetry import sinks
from orchestrix.worker.module_loader import load_resources, load_sagas

log = logging.getLogger("orchestrix")

CONNECTION_HEARTBEAT_S: Final = 10
"""Seconds between two heartbeats of an idle connection."""
FLUSH_TIMEOUT_S: Final = 0.5
"""Seconds that a process that is cut off has to write its last output."""


def open_database(settings: Settings) -> Database:
    """The database of `settings`; nothing is connected yet. Raises `ConfigError` if none is named."""
    if settings.database_url is None:
        raise ConfigError("no database given: set ORCHESTRIX_DATABASE_URL, or run `orchestrix dev` in this folder")
    return Database(settings.database_url, pool_size=settings.database.pool_size)


class Connect(Protocol):
    """Makes a connection to the broker under a name, with a topology that is declared at each connect."""

    def __call__(
        self, name: str, topology: WantedTopology | None = None, *, heartbeat: int = CONNECTION_HEARTBEAT_S
    ) -> Broker:
        """`heartbeat` is in seconds: a peer that is silent for two of them is gone."""


def open_broker(
    url: str | Callable[[], str],
    name: str,
    topology: WantedTopology | None = None,
    *,
    heartbeat: int = CONNECTION_HEARTBEAT_S,
    log_name: str | None = None,
) -> Broker:
    """The broker at `url`; nothing is connected yet. A callable is asked before each connect. See `Connect`.

    `log_name` stands for `name` in logs that have the process's id in a field.
    """
    return AmqpBroker(url, name=name, topology=topology, heartbeat=heartbeat, log_name=log_name)


def load_catalog(settings: Settings) -> Catalog:
    """The sagas of the author's modules, and those of his resources. Raises `ConfigError` or `DefinitionError`."""
    sagas = load_sagas(settings.sagas, settings.origin.folder)
    by_resource = [one.saga for one in resources_of(settings)]
    return Catalog([*sagas, *(saga for saga in by_resource if not any(saga is one for one in sagas))])


def resources_of(settings: Settings) -> list[Resource]:
    """The author's resources: the sagas with paths of their own. Raises `ConfigError` or `DefinitionError`."""
    return load_resources(settings.resources, settings.origin.folder)


def unique_name(settings: Settings) -> str:
    """The id in messages: the node's name and a mark of this start."""
    return clock.unique_name(settings.node_id)


def broker_problem(broker: Broker) -> Callable[[], str | None]:
    """The health probe of `broker`."""

    def probe() -> str | None:
        if broker.state is not LinkState.UP:
            return broker.problem or f"the broker is {broker.state.value}"
        return f"the broker is blocked and takes no messages: {broker.blocked}" if broker.blocked else broker.mismatch

    return probe


async def check_schema(database: Database) -> None:
    """Raises `SchemaMismatch` with the command to run, or `Unavailable`. Reads what this process has to know of it."""
    await check_revision(database)
    async with database.read() as connection:
        await installation.known(connection)


async def check_revision(database: Database) -> None:
    """Raises `SchemaMismatch` with the command to run, or `Unavailable`."""
    current = await migrator.current(database)
    if current == migrator.HEAD:
        return
    if current is None or current < migrator.HEAD:
        have = f"is at revision {current}" if current else "has no schema"
        raise SchemaMismatch(f"the database {have}, this version needs {migrator.HEAD}: run `orchestrix db upgrade`")
    newer = f"the database is at revision {current}, newer than this version ({migrator.HEAD})"
    raise SchemaMismatch(f"{newer}: upgrade Orchestrix")


class DatabaseWatch:
    """Pings the database every two seconds, and keeps the estimate of its clock fresh.

    With the `name` of this process it also probes whether the database takes writes, as soon as the tables exist.
    """

    def __init__(self, database: Database, name: str | None = None, interval_s: float = 2.0) -> None:
        self._database = database
        self._interval_s = interval_s
        self._writes = WriteProbe(database, name) if name is not None else None
        self._problem: str | None = "the database has not answered yet"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to ping."""
        self._task = asyncio.create_task(self._run(), name="database monitor")

    async def stop(self) -> None:
        """Stops pinging."""
        try:
            if self._writes is not None:
                await self._writes.stop()
        finally:
            if self._task is not None:
                await ended(self._task)

    def problem(self) -> str | None:
        """The health probe."""
        return self._problem or (self._writes.problem if self._writes is not None else None)

    async def wait_for_schema(self) -> None:
        """Waits until the database answers; raises `SchemaMismatch` if its schema is another one."""
        logged = False
        while True:
            try:
                await check_schema(self._database)
                break
            except RetryableError as error:
                if not logged:
                    log.warning("waiting for the database: %s", error)
                logged = True
                await asyncio.sleep(clock.uniform(0.2, 1.0))
        if self._writes is not None:
            await self._writes.start()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(5.0):
                    await self._database.ping()
                self._problem = None
            except (Unavailable, TimeoutError) as away:
                self._problem = str(away) or "the database does not answer"
            except Exception as error:
                self._problem = f"the database check failed: {type(error).__name__}"
                log.debug("ping failed", exc_info=error)
            await asyncio.sleep(self._interval_s)


class StopSignals:
    """Waits for a stop signal: SIGINT or SIGTERM; a second one ends the process at once, whatever it is doing.

    `last` is called before that, to log what is cut off; it has no time for more. The event loop's own handlers would
    not do: they wait for a function that blocks the loop.
    """

    def __init__(self, last: Callable[[], None] = lambda: None) -> None:
        self.stop = asyncio.Event()
        self._last = last
        self._logged = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before or signal.SIG_DFL)

    def _received(self, number: int, _: object) -> None:
        if self._logged:
            for one in self._before:
                signal.signal(one, signal.SIG_DFL)  # an exception would wait for tasks and threads, which may hang
            with contextlib.suppress(Exception):  # whatever it is, the process is to end
                self._last()
                sinks.flush(FLUSH_TIMEOUT_S)
            signal.raise_signal(number)
        self._logged = True
        self._loop.call_soon_threadsafe(self.stop.set)


async def first_of(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Waits for the stop signal or for `task` to fail; raises what the task raised."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            await waiting
    finally:
        waiting.cancel()


async def given_up(beginning: asyncio.Task[None]) -> None:
    """Waits until it has ended. Its error was raised by `first_of`, or results from the cancellation."""
    with contextlib.suppress(Exception):
        await ended(beginning)


def watched(health: Health, database: DatabaseWatch, broker: Broker) -> None:
    """Puts the database and the broker on the health page."""
    health.watch("Database", database.problem)
    health.watch("Broker", broker_problem(broker))
