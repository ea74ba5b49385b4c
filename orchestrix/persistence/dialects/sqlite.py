"""SQLite dialect: its SQL and its settings."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Select,
    Table,
    TextClause,
    event,
    func,
    literal,
    text,
)
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from orchestrix.errors import (
    ConfigError,
    ConflictError,
    Invalid,
    OrchestrixError,
    PermanentError,
    SchemaMismatch,
    Unavailable,
)
from orchestrix.persistence.dialects.bulk_values import document, kind
from orchestrix.persistence.dialects.sqlite_connection import connection
from orchestrix.persistence.dialects.sqlite_file import DatabaseFile
from orchestrix.persistence.schema.column_types import UtcTime

from .port import FULL, LOCKED, BulkInsert, BulkUpdate, Inserts, QueryExecutor, Row, StatementExecutor, Updates

_PRAGMAS = (
    "PRAGMA busy_timeout = 10000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
)
_SET_TRIES, _SET_DELAY_S = 20, 0.01
_TAKEN = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
_PRIMARY = 0xFF
_PARAMETERS = frozenset({"timeout", "cached_statements", "uri"})
_HOPELESS = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
)
"""An error of these kinds lasts as long as a connection has the file open; a new one may work."""
_MEANINGS: dict[int, type[OrchestrixError]] = {
    sqlite3.SQLITE_CONSTRAINT: Invalid,
    sqlite3.SQLITE_MISMATCH: Invalid,
    sqlite3.SQLITE_TOOBIG: Invalid,
    sqlite3.SQLITE_MISUSE: PermanentError,
    sqlite3.SQLITE_RANGE: PermanentError,
}


class Sqlite:
    """SQLite from version 3.38, in a file on a disk of this machine."""

    name = "sqlite"
    single_writer = True

    def __init__(self, url: URL) -> None:
        self._file = DatabaseFile.of(url)

    def engine_options(self, url: URL, name: str, limit: float) -> dict[str, Any]:
        return {"connect_args": {"timeout": 10, "async_creator_fn": connection}}

    def address(self, url: URL) -> URL:
        unknown = sorted(set(url.query) - _PARAMETERS)
        if unknown and not (url.database or "").startswith("file:"):
            known = ", ".join(sorted(_PARAMETERS))
            raise ConfigError(
                f"the database URL has the unknown parameter {unknown[0]!r}; known are {known}"
                " (a ? in the name of a file is written %3F)"
            )
        return url

    def make(self) -> None:
        if self._file is not None:
            self._file.make()

    def listen(self, engine: Engine) -> None:
        event.listen(engine, "connect", _connected)
        event.listen(engine, "begin", _begun)
        if self._file is not None:
            self._file.watch(engine)

    def reading(self) -> dict[str, Any]:
        return {}

    def lock_for_migration(self, connection: Connection) -> None:
        """Nothing to add: there is one writer at a time, and the transaction is it."""

    def meaning(self, error: DBAPIError) -> type[OrchestrixError] | None:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:
            return None
        if code in _TAKEN:
            return ConflictError
        if code & _PRIMARY == sqlite3.SQLITE_ERROR:
            missing = "no such table" in str(error.orig) or "no such column" in str(error.orig)
            return SchemaMismatch if missing else PermanentError
        return _MEANINGS.get(code & _PRIMARY, Unavailable)

    def refusal(self, error: DBAPIError) -> str | None:
        code = (getattr(error.orig, "sqlite_errorcode", None) or 0) & _PRIMARY
        if code == sqlite3.SQLITE_FULL:
            return FULL
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LOCKED
        return self._file.refusal(code, str(error.orig)) if self._file is not None else None

    def needs_new_session(self, error: DBAPIError) -> bool:
        return (getattr(error.orig, "sqlite_errorcode", None) or 0) & _PRIMARY in _HOPELESS

    def clock(self, now: datetime) -> ColumnElement[datetime]:
        # SQLite's own clock has milliseconds, and it is this machine's clock anyway.
        return literal(now, UtcTime())

    def ms_until(self, at: ColumnElement[datetime], now: datetime) -> ColumnElement[float]:
        days = func.julianday(at, type_=Float()) - func.julianday(literal(now, UtcTime()), type_=Float())
        return days * 86_400_000.0

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        return column.in_(values)

    def begins_with(self, column: ColumnElement[str], prefix: str) -> Sequence[ColumnElement[bool]]:
        return ()

    async def about(self, connection: QueryExecutor, query: Select[Any]) -> int | None:
        return None

    async def session(self, tx: StatementExecutor) -> int | None:
        return None

    async def end_blockers(self, connection: QueryExecutor, session: int) -> int:
        return 0

    async def heads(self, tx: StatementExecutor, table: Table, locked: Sequence[Any]) -> Sequence[Any]:
        return locked

    async def update(self, tx: StatementExecutor, bulk: BulkUpdate, rows: Sequence[Row]) -> set[int]:
        result = await tx.execute(_update(bulk), _parameters(bulk.fields, rows))
        return set(result.scalars())

    async def insert(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        await tx.execute(insert(bulk.table), bulk.mapped(rows))

    async def insert_absent(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        await tx.execute(_insert_absent(bulk.table), bulk.mapped(rows))

    async def update_and_insert(
        self, tx: StatementExecutor, update: Updates | None, inserts: Sequence[Inserts]
    ) -> set[int]:
        updated = await self.update(tx, *update) if update is not None else set()
        for bulk, rows in inserts:
            await (self.insert_absent if bulk.key else self.insert)(tx, bulk, rows)
        return updated

    async def insert_numbered(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]
    ) -> dict[tuple[Any, ...], int]:
        result = await tx.execute(_insert_numbered(bulk), _parameters(bulk.fields, rows))
        return {tuple(key): id_ for id_, *key in result}

    async def insert_one(self, tx: StatementExecutor, table: Table, row: Mapping[str, Any]) -> bool:
        result = await tx.execute(insert(table).values(row).on_conflict_do_nothing())
        return result.rowcount == 1

    async def increment(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        new = insert(bulk.table)
        counted = {"count": bulk.table.c.count + new.excluded.count, "last_at": new.excluded.last_at}
        await tx.execute(new.on_conflict_do_update(index_elements=bulk.key, set_=counted), bulk.mapped(rows))

    async def upsert(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row], replace: Sequence[str]
    ) -> None:
        new = insert(bulk.table)
        values = {name: new.excluded[name] for name in replace}
        await tx.execute(new.on_conflict_do_update(index_elements=bulk.key, set_=values), bulk.mapped(rows))


def _connected(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver would begin transactions by itself, and too late
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        _set(cursor, pragma)
    cursor.close()


def _set(cursor: Any, pragma: str) -> None:
    """A new file becomes one with a write-ahead log under a lock for which SQLite does not wait: others may make it so
    at the same moment.
    """
    for _ in range(_SET_TRIES - 1):
        try:
            cursor.execute(pragma)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_SET_DELAY_S)
        else:
            return
    cursor.execute(pragma)


def _begun(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once if another one wrote in between: lock at the start.
    if connection.get_execution_options().get("writing"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@cache
def _update(bulk: BulkUpdate) -> TextClause:
    table = bulk.table.name
    sets = ", ".join(f'"{column.name}" = v.{name}' for name, column in bulk.changed)
    same = [f'{table}."{column.name}" = v.{name}' for name, column in bulk.matched]
    where = " AND ".join([*same, *(f'{table}."{column.name}" <= v.{name}' for name, column in bulk.risen)])
    return text(
        f"UPDATE {table} SET {sets} FROM ({_source(bulk.fields)}) AS v WHERE {where} AND ({bulk.guard}) RETURNING id"
    )


@cache
def _insert_absent(table: Table) -> Insert:
    return insert(table).on_conflict_do_nothing()


@cache
def _insert_numbered(bulk: BulkInsert) -> TextClause:
    key = _names(bulk.key)
    # Without WHERE the parser would take ON CONFLICT for the condition of a join.
    return text(
        f"INSERT INTO {bulk.table.name} ({_names(bulk.columns)}) {_source(bulk.fields)} WHERE true"
        f" ON CONFLICT ({key}) DO NOTHING RETURNING id, {key}"
    )


def _source(fields: Sequence[tuple[str, Column[Any]]]) -> str:
    picks = ", ".join(f"json_extract(value, '$[{place}]') AS \"{name}\"" for place, (name, _) in enumerate(fields))
    return f"SELECT {picks} FROM json_each(:doc)"


def _parameters(fields: Sequence[tuple[str, Column[Any]]], rows: Sequence[Row]) -> dict[str, str]:
    return {"doc": document([kind(column) for _, column in fields], rows)}


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
