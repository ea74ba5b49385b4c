"""Inline SQLite: runs the product's own SQL on virtual time, over a file without the driver's thread.

A `SqliteFile` is what the processes of a simulation share: the file, its write lock, and its injected faults. Each
process opens it by a `SqliteClient` of its own, which ends with it. Statements run at once, their results come later.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrix.config.urls import sqlite_url
from orchestrix.persistence.engine import Database
from orchestrix.testing.simulation.inline_engine import CLOSED, engine

BUSY_TIMEOUT_S: Final = 10.0
"""Seconds that a writer waits for the write lock: the product's own `busy_timeout`, here in virtual time."""
_INSTEAD: Final = {
    "PRAGMA busy_timeout = 10000": "PRAGMA busy_timeout = 0",  # the wait is simulated: in SQLite it would block all
    "PRAGMA synchronous = FULL": "PRAGMA synchronous = OFF",  # power failures are not simulated
}


class SqliteFile:
    """One database. `delay` gives the seconds that a result takes; `template` is a file to start from.

    While `up` is False no connection can be opened, and open ones are lost. `commit_lost` says of each COMMIT whether
    its result is lost, and whether it was done (True) or not (False); None lets it pass. `prepare` gets each handle
    before its first use, for functions that triggers call. `committing` gets the handle that is about to commit,
    `committed` is called after it; both may kill the process that it belongs to.
    """

    def __init__(
        self,
        path: Path,
        *,
        template: Path | None = None,
        delay: Callable[[], float] = lambda: 0.0,
        prepare: Callable[[sqlite3.Connection], None] = lambda raw: None,
    ) -> None:
        self.path = path
        self.delay = delay
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

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """What is committed, at once and without faults."""
        raw = self._raw()
        try:
            return raw.execute(sql, parameters).fetchall()
        finally:
            self._idle.append(raw)

    def fail(self) -> None:
        """The database becomes unavailable: every connection is lost, every open transaction rolled back."""
        self.up = False
        for connection in list(self._open):
            connection.lose()

    def recover(self) -> None:
        """It is available again."""
        self.up = True

    def close(self) -> None:
        """Closes the file."""
        self.fail()
        for raw in self._idle:
            raw.close()

    # Calls of connections.

    def open(self, client: SqliteClient) -> InlineConnection:
        """A connection. Raises what SQLite raises for a file that cannot be opened."""
        if not self.up or not client.alive:
            raise _error("unable to open database file", sqlite3.SQLITE_CANTOPEN)
        connection = InlineConnection(self, self._raw())
        self._open[connection] = None
        client.connections[connection] = None
        return connection

    async def wait_for_write(self, connection: InlineConnection) -> None:
        """Waits until the connection may write. Raises SQLITE_BUSY after ten seconds."""
        if self._writer is None:
            self._writer = connection
            return
        entry = connection, asyncio.get_running_loop().create_future()
        self._queue.append(entry)
        try:
            async with asyncio.timeout(BUSY_TIMEOUT_S):
                await entry[1]
        except TimeoutError:
            raise _error("database is locked", sqlite3.SQLITE_BUSY) from None
        finally:
            if entry in self._queue:
                self._queue.remove(entry)
            if self._writer is connection and not connection.is_open:
                self.release(connection)
        connection.check()

    def release(self, connection: InlineConnection) -> None:
        """Releases the write lock: the longest-waiting connection is next."""
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
        """The connection is closed; its handle is reused."""
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
    """One process's access to the file. `disconnect` is called when the process ends."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.alive = True
        self.connections: dict[InlineConnection, None] = {}

    def connect(self) -> InlineConnection:
        """A new connection. Raises what SQLite raises for a file that cannot be opened."""
        return self.file.open(self)

    def disconnect(self) -> None:
        """Every connection is lost; no new one can be opened."""
        self.alive = False
        for connection in list(self.connections):
            connection.lose()

    def database(self) -> Database:
        """The product's database over this client."""
        url = sqlite_url(self.file.path)
        return Database(url, engine=engine(url, self))


class InlineConnection:
    """The part of a `sqlite3` connection that SQLAlchemy uses, until it is lost."""

    isolation_level: str | None = None

    def __init__(self, file: SqliteFile, raw: sqlite3.Connection) -> None:
        self.file = file
        self.raw = raw
        self.is_open = True

    def cursor(self) -> InlineCursor:
        """A cursor. Raises if the connection is lost."""
        self.check()
        return InlineCursor(self.raw.cursor())

    def check(self) -> None:
        """Raises if the connection is lost."""
        if not self.is_open:
            raise sqlite3.ProgrammingError(CLOSED)

    def commit(self) -> None:
        """COMMIT."""
        self.check()
        self.raw.commit()

    def rollback(self) -> None:
        """ROLLBACK."""
        if self.is_open:
            if self.raw.in_transaction:
                self.raw.rollback()
            self.file.release(self)

    def close(self) -> None:
        """Returns the handle for reuse."""
        self.lose()

    def lose(self) -> None:
        """The connection is lost, and what it has not committed is rolled back."""
        if self.is_open:
            self.is_open = False
            self.file.forget(self, self.raw)
            self.file.release(self)


class InlineCursor:
    """A cursor that reads all its rows at once: half-read, it would keep its view of the file for the next user."""

    def __init__(self, raw: sqlite3.Cursor) -> None:
        self._raw = raw
        self._rows: list[Any] = []
        self.arraysize = 1
        self.executemany = raw.executemany
        self.close = raw.close

    def execute(self, statement: str, parameters: Any = ()) -> None:
        """Runs one statement."""
        self._raw.execute(_INSTEAD.get(statement, statement), parameters)
        self._rows = self._raw.fetchall() if self._raw.description else []

    def fetchall(self) -> list[Any]:
        """All rows."""
        rows, self._rows = self._rows, []
        return rows

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._rows.pop(0) if self._rows else None

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows."""
        rows, self._rows = self._rows[:size], self._rows[size:]
        return rows

    @property
    def description(self) -> Any:
        """The columns of the result."""
        return self._raw.description

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return self._raw.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The id of the last row inserted."""
        return self._raw.lastrowid


def _error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
