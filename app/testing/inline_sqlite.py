"""How does the product's own SQL run on virtual time?  SQLite in a file, without the driver's thread.

A `SqliteFile` is what the processes of a simulation share: the file, its one place for a writer, and its bad days. Each
process opens it by a `SqliteClient` of its own, which dies with it.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from app.persistence.dialects import dialect_of
from app.persistence.engine import Database, parse_url

BUSY: Final = 10.0
"""Seconds that a writer waits for its turn: the product's own `busy_timeout`, here in virtual time."""
_POOL: Final = 10
_CLOSED: Final = "connection closed"
"""The words by which SQLAlchemy knows that a connection is lost."""
_INSTEAD: Final = {
    "PRAGMA busy_timeout = 10000": "PRAGMA busy_timeout = 0",  # the turn is waited for here; in SQLite all would stand
    "PRAGMA synchronous = FULL": "PRAGMA synchronous = OFF",  # no power is ever cut here
}


class SqliteFile:
    """One database. `pace` gives the seconds that an answer takes; `template` is a file to start from.

    While `up` is False nobody can connect, and whoever is connected has lost the connection. `commit_lost` says of each
    COMMIT whether its answer gets lost, and whether it was done (True) or not (False); None lets it pass. `prepare`
    gets each handle before its first use, for functions that triggers call. `committing` gets the handle that is about
    to commit, `committed` hears that it has; both may end the process whose it is.
    """

    def __init__(
        self,
        path: Path,
        *,
        template: Path | None = None,
        pace: Callable[[], float] = lambda: 0.0,
        prepare: Callable[[sqlite3.Connection], None] = lambda raw: None,
    ) -> None:
        self.path = path
        self.pace = pace
        self._prepare = prepare
        self.up = True
        self.commit_lost: Callable[[], bool | None] = lambda: None
        self.committing: Callable[[sqlite3.Connection], None] = lambda raw: None
        self.committed: Callable[[], None] = lambda: None
        self._open: dict[InlineConnection, None] = {}
        self._idle: list[sqlite3.Connection] = []
        self._writer: InlineConnection | None = None
        self._queue: deque[tuple[InlineConnection, asyncio.Future[None]]] = deque()
        if template is not None:
            shutil.copyfile(template, path)

    def look(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """What is committed, at once and on every day."""
        raw = self._raw()
        try:
            return raw.execute(sql, parameters).fetchall()
        finally:
            self._idle.append(raw)

    def fail(self) -> None:
        """The database goes away: every connection is lost, every open transaction undone."""
        self.up = False
        for connection in list(self._open):
            connection.lose()

    def recover(self) -> None:
        """It is there again."""
        self.up = True

    def close(self) -> None:
        """Closes the file."""
        self.fail()
        for raw in self._idle:
            raw.close()

    # What connections ask for.

    def open(self, client: SqliteClient) -> InlineConnection:
        """A connection. Raises what SQLite raises for a file that cannot be opened."""
        if not self.up or not client.alive:
            raise _error("unable to open database file", sqlite3.SQLITE_CANTOPEN)
        connection = InlineConnection(self, self._raw())
        self._open[connection] = None
        client.connections[connection] = None
        return connection

    async def turn(self, connection: InlineConnection) -> None:
        """Waits until the connection may write. Raises SQLITE_BUSY after ten seconds."""
        if self._writer is None:
            self._writer = connection
            return
        entry = connection, asyncio.get_running_loop().create_future()
        self._queue.append(entry)
        try:
            async with asyncio.timeout(BUSY):
                await entry[1]
        except TimeoutError:
            raise _error("database is locked", sqlite3.SQLITE_BUSY) from None
        finally:
            if entry in self._queue:
                self._queue.remove(entry)
            if self._writer is connection and not connection.is_open:
                self.release(connection)
        if not connection.is_open:
            raise _error(_CLOSED, sqlite3.SQLITE_IOERR)

    def release(self, connection: InlineConnection) -> None:
        """The connection writes no more: whoever has waited longest is next."""
        self._queue = deque(entry for entry in self._queue if entry[0] is not connection)
        if self._writer is not connection:
            return
        self._writer = None
        while self._queue and self._writer is None:
            following, future = self._queue.popleft()
            if following.is_open and not future.done():
                self._writer = following
                future.set_result(None)

    def forget(self, connection: InlineConnection, raw: sqlite3.Connection) -> None:
        """The connection is closed; its handle serves again."""
        self._open.pop(connection, None)
        if raw.in_transaction:
            raw.rollback()
        self._idle.append(raw)

    def _raw(self) -> sqlite3.Connection:
        if self._idle:
            return self._idle.pop()
        raw = sqlite3.connect(self.path, isolation_level=None, timeout=0, cached_statements=300)
        self._prepare(raw)
        return raw


class SqliteClient:
    """One process's way to the file. `sever` is the process's end."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.alive = True
        self.connections: dict[InlineConnection, None] = {}

    async def connect(self) -> InlineConnection:
        """A new connection."""
        await asyncio.sleep(self.file.pace())
        return self.file.open(self)

    def sever(self) -> None:
        """Every connection is lost; no new one will be made."""
        self.alive = False
        for connection in list(self.connections):
            connection.lose()

    def database(self) -> Database:
        """The product's database over this client."""
        url = f"sqlite+aiosqlite:///{self.file.path}"
        pool = AsyncAdaptedQueuePool(
            lambda: _DIALECT.dbapi.connect(async_creator_fn=self.connect),  # type: ignore[union-attr]
            pool_size=_POOL,
            max_overflow=0,
            timeout=5.0,
            use_lifo=True,
            dialect=_DIALECT,
        )
        engine = Engine(
            pool, _DIALECT, parse_url(url), hide_parameters=True, execution_options={"compiled_cache": _COMPILED}
        )
        dialect_of(parse_url(url)).listen(engine)
        return Database(url, engine=AsyncEngine(engine))


class InlineConnection:
    """What SQLAlchemy asks of a connection of aiosqlite, done at once and answered after a while."""

    def __init__(self, file: SqliteFile, raw: sqlite3.Connection) -> None:
        self._conn = raw  # by this name SQLAlchemy sets the isolation level
        self._connection = True  # without it SQLAlchemy takes every COMMIT for done
        self._file = file
        self._tx = _AtOnce()
        self.is_open = True

    @property
    def isolation_level(self) -> str | None:
        """Always None: the product begins its transactions itself."""
        return self._conn.isolation_level

    def cursor(self) -> InlineCursor:
        """A cursor."""
        return InlineCursor(self, self._conn.cursor())

    async def run(self, work: Callable[[], Any], writes: bool = False) -> Any:
        """What `work` returns; the caller is told a little later. Raises what SQLite raises, or that all is lost."""
        self.check()
        if writes:
            await self._file.turn(self)
        try:
            return work()
        finally:
            await asyncio.sleep(self._file.pace())
            self.check()

    def check(self) -> None:
        """Raises that the connection is lost."""
        if not self.is_open:
            raise _error(_CLOSED, sqlite3.SQLITE_IOERR)

    async def commit(self) -> None:
        """COMMIT. On a bad day nobody learns what became of it."""
        await asyncio.sleep(self._file.pace())
        self.check()
        if not self._conn.in_transaction:
            return
        self._file.committing(self._conn)
        if not self.is_open:
            await asyncio.sleep(0)  # the dead do not come back from here
            self.check()
        lost = self._file.commit_lost()
        if lost is not False:
            self._conn.commit()
            self._file.committed()
        if lost is not None:
            self.lose()
        self._file.release(self)
        await asyncio.sleep(self._file.pace())
        self.check()

    async def rollback(self) -> None:
        """ROLLBACK."""
        if self.is_open:
            self._conn.rollback()
            self._file.release(self)

    async def close(self) -> None:
        """Gives the handle back."""
        self.lose()

    def stop(self) -> None:
        """`close`, for whoever cannot wait."""
        self.lose()

    def lose(self) -> None:
        """The connection is gone, and what it has not committed is undone."""
        if self.is_open:
            self.is_open = False
            self._file.forget(self, self._conn)
            self._file.release(self)


class InlineCursor:
    """A cursor whose statements run at once."""

    def __init__(self, connection: InlineConnection, raw: sqlite3.Cursor) -> None:
        self._connection = connection
        self._raw = raw
        self._rows: list[Any] = []
        self.arraysize = 1

    async def __aenter__(self) -> InlineCursor:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> InlineCursor:
        """Runs one statement."""
        told = _INSTEAD.get(statement, statement)
        if told.startswith("PRAGMA"):
            self._connection.check()
            self._raw.execute(told)
        else:
            await self._connection.run(lambda: self._take(told, parameters), writes=told == "BEGIN IMMEDIATE")
        return self

    def _take(self, statement: str, parameters: Any) -> None:
        # With all its rows: half-read, it would keep its view of the file for the handle's next user.
        self._raw.execute(statement, parameters)
        self._rows = self._raw.fetchall() if self._raw.description else []

    async def executemany(self, statement: str, rows: Any) -> InlineCursor:
        """Runs one statement for each of the rows."""
        await self._connection.run(lambda: self._raw.executemany(statement, rows))
        return self

    async def fetchall(self) -> list[Any]:
        """All rows."""
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        """Frees it."""
        self._raw.close()

    @property
    def description(self) -> Any:
        """The columns of the answer."""
        return self._raw.description

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return self._raw.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The id of the last row inserted."""
        return self._raw.lastrowid


class _AtOnce:
    """Stands in for the queue of aiosqlite's thread."""

    def put_nowait(self, order: tuple[asyncio.Future[Any], Callable[[], Any]]) -> None:
        future, function = order
        future.set_result(function())


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


async def _nowhere() -> Any:
    raise _error("unable to open database file", sqlite3.SQLITE_CANTOPEN)


# Statements are compiled once for all simulations: that costs more than running them.
_DIALECT: Final = create_async_engine("sqlite+aiosqlite:////nowhere", async_creator=_nowhere).sync_engine.dialect
_COMPILED: Final[dict[Any, Any]] = {}
