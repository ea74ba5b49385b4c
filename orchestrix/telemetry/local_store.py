"""Local store: keeps the recent spans of all processes of a folder in one SQLite file, so that `dev` needs no backend.

It never holds more than `MAX_BYTES`: the oldest spans make room. It is no part of anything that must last: whatever is
wrong with the file costs spans, never work.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrix import clock
from orchestrix.telemetry.conventions import SAGA_ID, SAGA_NAME

log = logging.getLogger("orchestrix.telemetry")

FILE_NAME: Final = "traces.db"
FILE_MODE: Final = 0o600
MAX_BYTES: Final = 20 * 1024 * 1024
WAL_BYTES: Final = 1024 * 1024
"""The file beside it may grow to about this before its content is moved."""
BUSY_TIMEOUT_S: Final = 1.0
WAL_RETRY_S: Final = 0.01
MAX_INTEGER: Final = 2**63 - 1
"""The greatest that SQLite stores."""
_FORMAT: Final = 1
_PAGE_BYTES: Final = 4096
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS spans (id INTEGER PRIMARY KEY AUTOINCREMENT, trace_id TEXT NOT NULL,"
    " start_ns INTEGER NOT NULL, saga_name TEXT, saga_id INTEGER, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS spans_by_trace ON spans (trace_id)",
    "CREATE INDEX IF NOT EXISTS spans_by_saga ON spans (saga_name, saga_id) WHERE saga_id IS NOT NULL",
    f"PRAGMA user_version = {_FORMAT}",
)


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A span: `start_ns` is in nanoseconds since 1970; `body` is what `TraceReader.spans` returns of it."""

    trace_id: str
    start_ns: int
    body: Mapping[str, Any]


class LocalStore:
    """Writes spans into the file at `path`. Used by one thread at a time; other processes may write to it as well."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_pages = max_bytes // _PAGE_BYTES
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def write(self, spans: Sequence[StoredSpan]) -> None:
        """Stores them. Raises `OSError` or `sqlite3.Error` if they are lost; the next call tries again.

        A file that is damaged, or no store of this form, is set aside, and replaced by a new one.
        """
        rows = [_row(one) for one in spans]
        try:
            self._write(rows)
        except sqlite3.DatabaseError as error:
            self.close()
            if not _is_damage(error):
                raise
            self._set_aside(error)
            self._write(rows)

    def close(self) -> None:
        """Closes the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        connection = self._opened()
        try:
            self._insert(connection, rows)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            with _transaction(connection):  # by this limit, or by that of the disk
                self._make_room(connection, self._max_pages // 2)
            self._insert(connection, rows)

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        with _transaction(connection):
            connection.executemany(
                "INSERT INTO spans (trace_id, start_ns, saga_name, saga_id, body) VALUES (?, ?, ?, ?, ?)", rows
            )
            if _used_pages(connection) > self._max_pages * 9 // 10:
                self._make_room(connection, self._max_pages * 8 // 10)

    def _make_room(self, connection: sqlite3.Connection, pages: int) -> None:
        """Deletes the oldest spans until no more than so many pages are in use; these are used again."""
        while _used_pages(connection) > pages:
            oldest, newest = connection.execute("SELECT min(id), max(id) FROM spans").fetchone()
            if oldest is None:
                return
            connection.execute("DELETE FROM spans WHERE id <= ?", (oldest + (newest - oldest) // 10,))

    def _opened(self) -> sqlite3.Connection:
        """The connection to the file that has this name now: a user may have deleted the one that had it."""
        if self._connection is not None and self._inode == _inode(self._path):
            return self._connection
        self.close()
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        if os.stat(self._path).st_mode & 0o077:
            os.chmod(self._path, FILE_MODE)
        self._inode = _inode(self._path)
        connection = self._connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        _keep_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_BYTES // _PAGE_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {self._max_pages}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _FORMAT):
            raise _OtherForm(f"it is of form {version}, not {_FORMAT}")
        if version == 0:
            with _transaction(connection):
                for statement in _TABLES:
                    connection.execute(statement)
        return connection

    def _set_aside(self, error: Exception) -> None:
        """The file gets another name, unless another process has just begun a new one."""
        if self._inode != _inode(self._path):
            return
        aside = self._path.with_name(f"{self._path.name}.damaged")
        log.warning(
            "%s cannot be used (%s): it is now %s, and a new file keeps the traces from now on",
            self._path,
            error,
            aside.name,
        )
        os.replace(self._path, aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")


class LocalTraces:
    """Reads the spans in the file at `path`. Without a file that can be read there are none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace in the order of their start, each with `spanId`, `parentSpanId`, `name`, `kind`,
        `service`, `node`, `startTime` and `endTime` (RFC 3339), `durationMs`, `status`, `attributes`, `links`
        and `events`.
        """
        question = "SELECT body FROM spans WHERE trace_id = ? ORDER BY start_ns, id"
        return [json.loads(body) for (body,) in self._answers(question, (trace_id,))]

    def traces_of(self, saga: str, instance_id: int) -> list[str]:
        """The ids of all traces in which that instance of a saga has a span, by their first one."""
        question = (
            "SELECT trace_id FROM spans WHERE saga_name = ? AND saga_id = ? GROUP BY trace_id ORDER BY min(start_ns)"
        )
        return [trace_id for (trace_id,) in self._answers(question, (saga, instance_id))]

    def _answers(self, question: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            address = f"{self.path.resolve().as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, timeout=BUSY_TIMEOUT_S, uri=True)) as connection:
                connection.execute("PRAGMA query_only = ON")
                return connection.execute(question, values).fetchall()
        except (OSError, sqlite3.Error) as error:
            log.debug("the recent traces cannot be read: %s", error)
            return []


class _OtherForm(sqlite3.DatabaseError):
    """The file was written by another release."""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is no store; a disk that is full, or a lock, is not its fault."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    missing_table = "no such table" in str(error) or "no such column" in str(error) or "has no column" in str(error)
    damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return isinstance(error, _OtherForm) or missing_table or (code is not None and code & 0xFF in damaged)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _used_pages(connection: sqlite3.Connection) -> int:
    """Pages of the file that hold something."""
    pages: Callable[[str], int] = lambda name: connection.execute(f"PRAGMA {name}").fetchone()[0]  # noqa: E731
    return pages("page_count") - pages("freelist_count")


def _keep_write_ahead_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for the lock by which a new file gets its log: another process may be at it."""
    until = clock.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock.monotonic() > until:
                raise
            time.sleep(WAL_RETRY_S)
        else:
            return


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _row(span: StoredSpan) -> tuple[Any, ...]:
    attributes = span.body["attributes"]
    saga_id = attributes.get(SAGA_ID)
    return (
        span.trace_id,
        span.start_ns,
        attributes.get(SAGA_NAME),
        saga_id if isinstance(saga_id, int) and abs(saga_id) <= MAX_INTEGER else None,
        json.dumps(span.body, separators=(",", ":")),
    )
