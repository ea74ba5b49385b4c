"""Health checks: ping the database and read the state of the broker, for the health page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from orchestrix import clock
from orchestrix.bootstrap.factories import check_schema
from orchestrix.bootstrap.write_probe import WriteProbe
from orchestrix.broker.port import Broker, LinkState
from orchestrix.errors import RetryableError, Unavailable
from orchestrix.lifecycle import Health, ended
from orchestrix.persistence.engine import Database

log = logging.getLogger("orchestrix")


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


def broker_problem(broker: Broker) -> Callable[[], str | None]:
    """The health probe of `broker`."""

    def probe() -> str | None:
        if broker.state is not LinkState.UP:
            return broker.problem or f"the broker is {broker.state.value}"
        return f"the broker is blocked and takes no messages: {broker.blocked}" if broker.blocked else broker.mismatch

    return probe


def watched(health: Health, database: DatabaseWatch, broker: Broker) -> None:
    """Puts the database and the broker on the health page."""
    health.watch("Database", database.problem)
    health.watch("Broker", broker_problem(broker))
