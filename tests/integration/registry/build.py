"""How does a test see what the registry writes, and how does it get in between?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import event

from orchestrix.persistence.dialects.port import Result
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.persistence.registry.registrations import Executor, Heartbeat, RegisteredExecutor, Removal
from orchestrix.registry.registrar import Registrar

SHOP = "shop"
ONE, TWO, THREE = (f"http://10.0.0.{place}:9999" for place in (1, 2, 3))


@dataclass
class Sent:
    """What was sent to the database."""

    statements: list[str] = field(default_factory=list)
    commits: int = 0

    def to(self, table: str) -> list[str]:
        """The first words of the statements that write to the table."""
        return [sql for sql in self.statements if table in sql and not sql.lstrip().upper().startswith("SELECT")]


@contextmanager
def watched(database: Database) -> Iterator[Sent]:
    """What is sent meanwhile."""
    sent = Sent()
    engine = database._engine.sync_engine

    def statement(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        sent.statements.append(sql)

    def commit(_connection: Any) -> None:
        sent.commits += 1

    event.listen(engine, "before_cursor_execute", statement)
    event.listen(engine, "commit", commit)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", statement)
        event.remove(engine, "commit", commit)


@asynccontextmanager
async def registrar_of(database: Database, *, gather_s: float = 0.0) -> AsyncIterator[Registrar]:
    """One that takes heartbeats."""
    made = Registrar(database, gather_s=gather_s)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def group_of(database: Database, addresses: list[str] | None = None, app: str = SHOP) -> None:
    """The app has a group: MANUAL with addresses, AUTO without."""
    async with database.begin() as tx:
        await groups.set_addresses(tx, app, addresses, tx.now())


async def listed(database: Database, app: str = SHOP) -> ExecutorGroup:
    """The group of the app."""
    async with database.read() as connection:
        group = await groups.get(connection, app)
    assert group is not None
    return group


async def registered(database: Database, app: str = SHOP) -> dict[str, RegisteredExecutor]:
    """The app's executors by address."""
    async with database.read() as connection:
        return {one.address: one for one in await registrations.of_apps(connection, [app])}


async def removals(database: Database) -> list[Removal]:
    """Who was removed, the latest first."""
    async with database.read() as connection:
        return await registrations.removals(connection, connection.now().replace(year=2020))


async def record(database: Database, *heartbeats: Heartbeat) -> None:
    """Heartbeats that a node notes now."""
    async with database.begin() as tx:
        await registrations.record(tx, heartbeats, tx.now())


async def drain(database: Database, executor: Executor) -> None:
    """A person excludes the executor."""
    async with database.begin() as tx:
        assert await registrations.set_drained(tx, [executor], tx.now()) == 1
        await groups.refresh(tx, [executor[0]], tx.now())


class Pause:
    """Stops the transactions of one node before their statement number `place`, from 0, the first time only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, database: Database, place: int) -> None:
        self.reached, self._resumed, self._over = asyncio.Event(), asyncio.Event(), False
        passed = 0
        execute = Transaction.execute

        async def stopped(tx: Transaction, statement: Any, parameters: Any = None) -> Result:
            nonlocal passed
            if tx.database is database and not self._over:
                if passed == place:
                    self._over = True
                    self.reached.set()
                    await self._resumed.wait()
                passed += 1
            return await execute(tx, statement, parameters)

        monkeypatch.setattr(Transaction, "execute", stopped)

    async def during(self, first: asyncio.Task[Any]) -> bool:
        """Waits until `first` is stopped; False if it has ended before."""
        reached = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait({first, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        return self.reached.is_set()

    def resume(self) -> None:
        """It goes on."""
        self._resumed.set()
