"""PostgreSQL dialect: its SQL and its settings."""

from __future__ import annotations

import json
import math
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
    Interval,
    Select,
    Table,
    TextClause,
    any_,
    bindparam,
    event,
    func,
    literal,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql import ColumnElement

from orchestrix import clock
from orchestrix.errors import (
    ConflictError,
    Contention,
    Invalid,
    OrchestrixError,
    PermanentError,
    SchemaMismatch,
    Unavailable,
)
from orchestrix.persistence.dialects.bulk_values import ValueKind, columns_of_values, kind
from orchestrix.persistence.schema.column_types import UtcTime

from .explain import Explain
from .port import FULL, READ_ONLY, BulkInsert, BulkUpdate, Inserts, QueryExecutor, Row, StatementExecutor, Updates
from .tls import Tls, wanted, without

_ARRAYS = {
    ValueKind.INT: "bigint[]",
    ValueKind.FLOAT: "double precision[]",
    ValueKind.TEXT: "text[]",
    ValueKind.TIME: "timestamptz[]",
    ValueKind.JSON: "text[]",
    ValueKind.BYTES: "bytea[]",
}
_MEANINGS: dict[str, type[OrchestrixError]] = {
    "40001": Contention,
    "40P01": Contention,
    "55P03": Contention,
    "0A000": Contention,  # a cached plan that a migration made void; the next try makes another plan
    "23505": ConflictError,
    "42P01": SchemaMismatch,
    "42703": SchemaMismatch,
    "42501": Unavailable,  # permissions are granted without a new release
}
_REFUSALS = {"53100": FULL, "25006": READ_ONLY}
_HOPELESS = ("25006", "26000")
"""Read-only, as the session began or as its server is now; and a statement that was prepared in another session."""
_PARAMETERS = frozenset({"host", "port", "passfile", "target_session_attrs", "prepared_statement_cache_size"})
_PREFIXES = ("a", "b", "c", "d")
_LAST_USE = "orchestrix used"
_END_BLOCKERS = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = ANY(pg_blocking_pids(:session))"
    " AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 second'"
)
RECENT_USE_S = 1.0
"""Seconds after its last use for which a connection is assumed to be open."""
_MIGRATION = 0x6F72636865737478  # "orchestx": no other lock of the database has this number
_CLASSES: dict[str, type[OrchestrixError]] = {"22": Invalid, "23": Invalid, "42": PermanentError}


class PostgreSql:
    """PostgreSQL from version 15."""

    name = "postgresql"
    single_writer = False

    def __init__(self, url: URL) -> None:
        self._tls = wanted(url)

    def engine_options(self, url: URL, name: str, limit: float) -> dict[str, Any]:
        # All that the server, the database or the role could set otherwise and that changes what a statement means.
        # Not whether they take writes: who forbids them means it.
        settings = {
            "application_name": name,
            "timezone": "UTC",
            "default_transaction_isolation": "read committed",
            "default_transaction_deferrable": "off",
            "datestyle": "ISO, YMD",
            "standard_conforming_strings": "on",
            "transform_null_equals": "off",
            "statement_timeout": str(int(limit * 1000)),
            "idle_in_transaction_session_timeout": "5000",
            "lock_timeout": "2000",
            # No statement here gains by it, and asyncpg would switch it off and on again around each of its questions.
            "jit": "off",
            # A plan that was kept since a table was small reads all of it, until the server next counts its rows.
            "plan_cache_mode": "force_custom_plan",
        }
        arguments = {"timeout": 5, "command_timeout": limit, "server_settings": settings, "ssl": _ssl(self._tls)}
        return {"connect_args": arguments}

    def address(self, url: URL) -> URL:
        return without(url, _PARAMETERS)

    def make(self) -> None:
        """A database is made by whoever runs the server."""

    def listen(self, engine: Engine) -> None:
        """The settings travel with the connection, and the driver begins transactions."""
        event.listen(engine, "checkout", _still_open)
        event.listen(engine, "checkin", _used)
        event.listen(engine, "connect", lambda connection, _: self._tls.found(_is_encrypted(connection)))

    def reading(self) -> dict[str, Any]:
        return {"isolation_level": "AUTOCOMMIT"}

    def lock_for_migration(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION})")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")  # a table in use is not worth stopping everybody

    def meaning(self, error: DBAPIError) -> type[OrchestrixError] | None:
        if isinstance(getattr(error.orig, "__cause__", None), ValueError):
            return Invalid  # a value that the driver could not even encode
        if type(error.orig).__name__ == "InvalidCachedStatementError":
            return Contention
        state = getattr(error.orig, "sqlstate", None)
        return _MEANINGS.get(state) or _CLASSES.get(state[:2], Unavailable) if state else Unavailable

    def refusal(self, error: DBAPIError) -> str | None:
        return _REFUSALS.get(getattr(error.orig, "sqlstate", None) or "")

    def needs_new_session(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _HOPELESS

    def clock(self, now: datetime) -> ColumnElement[datetime]:
        # now() would be the transaction's start; a sub-select makes the clock one value, so that an index can be used.
        return type_coerce(select(func.clock_timestamp()).scalar_subquery(), UtcTime())

    def ms_until(self, at: ColumnElement[datetime], now: datetime) -> ColumnElement[float]:
        passed = at.op("-", return_type=Interval())(literal(now, UtcTime()))
        return func.date_part("epoch", passed, type_=Float()) * 1000.0

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        # One parameter, so that every batch size is the same prepared statement.
        return column == any_(bindparam(None, list(values), type_=ARRAY(column.type)))

    def begins_with(self, column: ColumnElement[str], prefix: str) -> Sequence[ColumnElement[bool]]:
        return ()

    async def about(self, connection: QueryExecutor, query: Select[Any]) -> int | None:
        plan = (await connection.execute(Explain(query))).scalar_one()
        return int((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]["Plan Rows"])

    async def session(self, tx: StatementExecutor) -> int | None:
        return int((await tx.execute(select(func.pg_backend_pid()))).scalar_one())

    async def end_blockers(self, connection: QueryExecutor, session: int) -> int:
        return int((await connection.execute(_END_BLOCKERS, {"session": session})).scalar_one())

    async def heads(self, tx: StatementExecutor, table: Table, locked: Sequence[Any]) -> Sequence[Any]:
        return locked

    async def update(self, tx: StatementExecutor, bulk: BulkUpdate, rows: Sequence[Row]) -> set[int]:
        result = await tx.execute(_update(bulk), _parameters(bulk.fields, rows))
        return set(result.scalars())

    async def insert(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        await tx.execute(_insert(bulk), _parameters(bulk.fields, rows))

    async def insert_absent(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        await tx.execute(_insert(bulk, "ON CONFLICT DO NOTHING"), _parameters(bulk.fields, rows))

    async def update_and_insert(
        self, tx: StatementExecutor, update: Updates | None, inserts: Sequence[Inserts]
    ) -> set[int]:
        parts: list[Updates | Inserts] = [*([update] if update is not None else []), *inserts]
        values: dict[str, Any] = {}
        for name, (bulk, rows) in zip(_PREFIXES, parts, strict=False):
            values |= _parameters(bulk.fields, rows, name)
        result = await tx.execute(_together(tuple(bulk for bulk, _ in parts)), values)
        return set(result.scalars()) if update is not None else set()

    async def insert_numbered(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]
    ) -> dict[tuple[Any, ...], int]:
        ending = f"ON CONFLICT ({_names(bulk.key)}) DO NOTHING RETURNING id, {_names(bulk.key)}"
        result = await tx.execute(_insert(bulk, ending), _parameters(bulk.fields, rows))
        return {tuple(key): id_ for id_, *key in result}

    async def insert_one(self, tx: StatementExecutor, table: Table, row: Mapping[str, Any]) -> bool:
        result = await tx.execute(insert(table).values(row).on_conflict_do_nothing())
        return result.rowcount == 1

    async def increment(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        table = bulk.table.name
        ending = (
            f"ON CONFLICT ({_names(bulk.key)}) DO UPDATE"
            f" SET count = {table}.count + excluded.count, last_at = excluded.last_at"
        )
        await tx.execute(_insert(bulk, ending), _parameters(bulk.fields, rows))

    async def upsert(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row], replace: Sequence[str]
    ) -> None:
        values = ", ".join(f'"{name}" = excluded."{name}"' for name in replace)
        ending = f"ON CONFLICT ({_names(bulk.key)}) DO UPDATE SET {values}"
        await tx.execute(_insert(bulk, ending), _parameters(bulk.fields, rows))


def _ssl(tls: Tls) -> Any:
    """What the driver takes; without it, it would read the environment."""
    return tls.context or (False if tls.mode == "disable" else tls.mode or "prefer")


def _is_encrypted(connection: Any) -> bool:
    transport = getattr(connection.driver_connection, "_transport", None)
    return transport is not None and transport.get_extra_info("ssl_object") is not None


def _used(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_LAST_USE] = clock.monotonic()


def _still_open(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
    """Lets the pool replace its connections once the server has closed one.

    The loop learns of that by itself, but a query is certain. The pool's own costs three round trips, also where the
    connection was in use a moment ago.
    """
    if connection.driver_connection.is_closed():
        raise InvalidatePoolError("the server has closed the connection")
    if clock.monotonic() - record.info.get(_LAST_USE, math.inf) > RECENT_USE_S:
        try:
            connection.run_async(lambda driver: driver.execute("SELECT 1"))  # at an empty one asyncpg itself fails
        except Exception as error:
            raise InvalidatePoolError("the server does not answer on the connection") from error


@cache
def _update(bulk: BulkUpdate) -> TextClause:
    return text(_update_sql(bulk))


@cache
def _insert(bulk: BulkInsert, ending: str = "") -> TextClause:
    return text(_insert_sql(bulk, ending))


@cache
def _together(parts: tuple[BulkUpdate | BulkInsert, ...]) -> TextClause:
    """All statements as one; each sees the tables as they were before, which is why they must not meet."""
    named = [(f"w{name}", _sql(bulk, name)) for name, bulk in zip(_PREFIXES, parts, strict=False)]
    first = f"SELECT id FROM w{_PREFIXES[0]}" if isinstance(parts[0], BulkUpdate) else "SELECT 1"
    return text(f"WITH {', '.join(f'{name} AS ({sql})' for name, sql in named)} {first}")


def _sql(bulk: BulkUpdate | BulkInsert, prefix: str) -> str:
    if isinstance(bulk, BulkUpdate):
        return _update_sql(bulk, prefix)
    return _insert_sql(bulk, "ON CONFLICT DO NOTHING" if bulk.key else "", prefix)


def _update_sql(bulk: BulkUpdate, prefix: str = "p") -> str:
    sets = ", ".join(f'"{column.name}" = {_value(name, column)}' for name, column in bulk.changed)
    same = [f'a."{column.name}" = v.{name}' for name, column in bulk.matched]
    where = " AND ".join([*same, *(f'a."{column.name}" <= v.{name}' for name, column in bulk.risen)])
    return (
        f"UPDATE {bulk.table.name} AS a SET {sets} FROM {_source(bulk.fields, prefix)}"
        f" WHERE {where} AND ({bulk.guard}) RETURNING a.id"
    )


def _insert_sql(bulk: BulkInsert, ending: str, prefix: str = "p") -> str:
    values = ", ".join(_value(f"v_{name}", column) for name, column in bulk.fields)
    source = _source([(f"v_{name}", column) for name, column in bulk.fields], prefix)
    return f"INSERT INTO {bulk.table.name} ({_names(bulk.columns)}) SELECT {values} FROM {source} {ending}"


def _source(fields: Sequence[tuple[str, Column[Any]]], prefix: str) -> str:
    arrays = ", ".join(f"CAST(:{prefix}{place} AS {_ARRAYS[kind(column)]})" for place, (_, column) in enumerate(fields))
    return f"unnest({arrays}) AS v({', '.join(name for name, _ in fields)})"


def _value(name: str, column: Column[Any]) -> str:
    return f"CAST(v.{name} AS jsonb)" if kind(column) is ValueKind.JSON else f"v.{name}"


def _parameters(fields: Sequence[tuple[str, Column[Any]]], rows: Sequence[Row], prefix: str = "p") -> dict[str, Any]:
    lists = columns_of_values([kind(column) for _, column in fields], rows)
    return {f"{prefix}{place}": values for place, values in enumerate(lists)}


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
