"""Inline engine: runs SQLAlchemy synchronously on virtual time, with delayed results."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from orchestrix.persistence.dialects import dialect_of
from orchestrix.persistence.engine import parse_url

if TYPE_CHECKING:
    from orchestrix.testing.simulation.inline_sqlite import InlineConnection, SqliteClient

T = TypeVar("T")

CLOSED: Final = "Cannot operate on a closed database."
"""The text by which SQLAlchemy detects that a connection is lost."""
_POOL: Final = 10
_POOL_LIMIT: Final = 5.0
"""Seconds to wait for a free connection of the pool."""


def engine(url: str, client: SqliteClient) -> AsyncEngine:
    """A replacement of SQLAlchemy's engine for the product's database; `client` connects."""
    pool = QueuePool(client.connect, pool_size=_POOL, max_overflow=0, use_lifo=True, dialect=_DIALECT)  # type: ignore[arg-type]
    parsed = parse_url(url)
    made = Engine(pool, _DIALECT, parsed, hide_parameters=True, execution_options={"compiled_cache": _COMPILED})
    dialect_of(parsed).listen(made)
    return cast(AsyncEngine, InlineEngine(made, client))


class InlineEngine:
    """The part of `AsyncEngine` that the product uses."""

    def __init__(self, sync: Engine, client: SqliteClient) -> None:
        self.sync = sync
        self.delay = client.file.delay
        self.places = asyncio.Semaphore(_POOL)

    def connect(self) -> InlineAsyncConnection:
        """A connection that is not opened yet."""
        return InlineAsyncConnection(self)

    async def place(self) -> None:
        """Acquires a slot of the pool. Raises what SQLAlchemy raises where none becomes free."""
        if not self.places.locked():
            await self.places.acquire()
            return
        try:
            async with asyncio.timeout(_POOL_LIMIT):
                await self.places.acquire()
        except TimeoutError as late:
            raise NoFreeConnection("no connection became free") from late

    async def dispose(self) -> None:
        """Closes all connections that are not in use."""
        self.sync.dispose()


class InlineAsyncConnection:
    """The part of `AsyncConnection` that the product uses."""

    _sync: Connection
    _raw: InlineConnection

    def __init__(self, engine: InlineEngine) -> None:
        self._engine = engine
        self.closed = True

    async def start(self) -> None:
        """Connects. Raises what SQLAlchemy raises."""
        await self._engine.place()
        try:
            if not cast(QueuePool, self._engine.sync.pool).checkedin():
                await self._answer()
            self._sync = self._engine.sync.connect()
        except BaseException:
            self._engine.places.release()
            raise
        self._raw = cast("InlineConnection", self._sync.connection.dbapi_connection)
        self.closed = False

    async def execution_options(self, **options: Any) -> None:
        """Sets options."""
        self._sync.execution_options(**options)

    async def begin(self) -> None:
        """Begins a write transaction, once no other is open. Raises what SQLAlchemy raises."""
        self._check()
        try:
            await self._raw.file.wait_for_write(self._raw)
        except sqlite3.OperationalError as busy:
            raise OperationalError("BEGIN IMMEDIATE", None, busy) from busy
        except sqlite3.ProgrammingError:
            self._check()  # it was lost meanwhile
        self._sync.begin()
        await self._answer()
        self._check()

    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Runs one statement. Raises what SQLAlchemy raises."""
        try:
            return self._sync.execute(statement, parameters)
        finally:
            await self._answer()
            self._check()

    async def run_sync(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns."""
        return work(self._sync)

    async def commit(self) -> None:
        """COMMIT. With an injected fault its outcome is unknown. Raises what SQLAlchemy raises."""
        await self._answer()
        self._check()
        file, raw = self._raw.file, self._raw
        file.committing(raw.raw)
        if not raw.is_open:
            await asyncio.sleep(0)  # a killed process does not return from here
            self._check()
        lost = file.commit_lost()
        if lost is not False:
            self._sync.commit()
            file.committed()
        if lost is not None:
            raw.lose()
        file.release(raw)
        await self._answer()
        self._check()

    async def close(self) -> None:
        """Returns the connection to the pool; what is not committed is rolled back."""
        if not self.closed:
            self.closed = True
            self._engine.places.release()
            self._sync.close()

    async def invalidate(self) -> None:
        """Discards the connection."""
        self._raw.lose()
        await self.close()

    async def _answer(self) -> None:
        await asyncio.sleep(self._engine.delay())

    def _check(self) -> None:
        if not self._raw.is_open:
            self._sync.exec_driver_sql("SELECT 1")  # by which SQLAlchemy detects that the connection is lost


def _cannot_open() -> Any:
    raise sqlite3.OperationalError("unable to open database file")


# Statements are compiled once for all simulations: compiling costs more than running them.
_DIALECT: Final = create_engine("sqlite+pysqlite:////nowhere", creator=_cannot_open).dialect
_COMPILED: Final[dict[Any, Any]] = {}
