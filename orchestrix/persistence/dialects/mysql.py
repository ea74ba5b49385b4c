"""MySQL dialect: the SQL and the settings of MySQL and MariaDB."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Select,
    Table,
    TextClause,
    and_,
    event,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    type_coerce,
)
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from orchestrix.errors import (
    ConfigError,
    ConflictError,
    Contention,
    Invalid,
    OrchestrixError,
    PermanentError,
    SchemaMismatch,
    Unavailable,
)
from orchestrix.persistence.dialects.bulk_values import ValueKind, documents, kind
from orchestrix.persistence.schema.column_types import CHARSET, COLLATION, UtcTime

from .explain import Explain
from .port import FULL, READ_ONLY, BulkInsert, BulkUpdate, Inserts, QueryExecutor, Row, StatementExecutor, Updates
from .tls import unverified, wanted, without

# Text out of a document has the charset of the database unless the statement names another one: `?` for what it lacks.
_LONGTEXT = f"LONGTEXT CHARACTER SET {CHARSET} COLLATE {COLLATION}"
_TYPES = {
    ValueKind.INT: "BIGINT",
    ValueKind.FLOAT: "DOUBLE",
    ValueKind.TEXT: _LONGTEXT,
    ValueKind.TIME: "DATETIME(6)",
    ValueKind.JSON: _LONGTEXT,
}
_SQL_MODE = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'"
# Everything that the server's configuration or the database could change about what a statement means.
_SESSION = (
    f"SET NAMES {CHARSET} COLLATE {COLLATION}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION innodb_lock_wait_timeout = 2, time_zone = '+00:00', completion_type = 'NO_CHAIN',"
    " sql_safe_updates = 0, sql_select_limit = 18446744073709551615,"
    " foreign_key_checks = 1, unique_checks = 1",
)
_MARIADB = (
    "SET SESSION idle_transaction_timeout = 5, max_statement_time = 0, check_constraint_checks = 1,"
    " max_recursive_iterations = 4294967295",
)
_MYSQL = ("SET SESSION max_execution_time = 0, cte_max_recursion_depth = 4294967295",)
_MEANINGS: dict[int, type[OrchestrixError]] = {
    1020: Contention,  # the row has changed since the snapshot
    1205: Contention,  # lock wait
    1213: Contention,  # deadlock
    1062: ConflictError,
    1054: SchemaMismatch,
    1146: SchemaMismatch,
    1064: PermanentError,
    1048: Invalid,
    1264: Invalid,
    1292: Invalid,
    1366: Invalid,
    1406: Invalid,
    1451: Invalid,
    1452: Invalid,
    3819: Invalid,  # CHECK, MySQL
    4025: Invalid,  # CHECK, MariaDB
}

_BLOCKERS = text(
    "SELECT DISTINCT p.id FROM sys.innodb_lock_waits w JOIN information_schema.processlist p ON p.id = w.blocking_pid"
    " WHERE w.waiting_pid = :session AND p.command = 'Sleep' AND p.time >= 1"
)
_PARAMETERS = frozenset({"charset", "unix_socket"})
_REFUSALS = {
    1021: FULL,
    1114: FULL,  # what InnoDB makes of it: the table
    1290: READ_ONLY,  # by an option of the server
    1792: READ_ONLY,  # the transaction, as the session began
    1836: READ_ONLY,  # InnoDB
}
_WRITE_ERRORS: Final = (3, 1026, 1030)
"""What the server says of a file that it could not write, with the number of the system's error."""
_NO_SPACE: Final = re.compile(r"\b(error|errno:|Errcode:) 28\b")
_HOPELESS = (1290, 1792, 1836, 1053, 1927)
"""Read-only; and a session that is being ended by the server."""


class MySql:
    """MySQL from version 8.0.19 and MariaDB from 10.6."""

    name = "mysql"
    single_writer = False

    def __init__(self, url: URL) -> None:
        self._tls = wanted(url)
        if self._tls.mode in ("allow", "prefer"):
            raise ConfigError(
                f"the MySQL driver cannot choose by itself whether to use TLS (sslmode={self._tls.mode}):"
                " write sslmode=require, verify-ca or verify-full, or disable"
            )

    def engine_options(self, url: URL, name: str, limit: float) -> dict[str, Any]:
        # Autocommit: reads take no transaction, and writers begin theirs explicitly.
        arguments = {
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": 5,
            "read_timeout": limit,
            "program_name": name,
            "binary_prefix": True,
            "init_command": _SQL_MODE,  # before SQLAlchemy looks how names are quoted
        }
        if self._tls.needed:
            arguments["ssl"] = self._tls.context or unverified()
        return {"pool_pre_ping": True, "connect_args": arguments}

    def address(self, url: URL) -> URL:
        return without(url, _PARAMETERS).difference_update_query(["charset"])

    def make(self) -> None:
        """A database is made by whoever runs the server."""

    def listen(self, engine: Engine) -> None:
        event.listen(engine, "connect", _connected)
        if self._tls.needed:
            event.listen(engine, "connect", lambda connection, _: self._tls.found(_is_encrypted(connection)))
        event.listen(engine, "begin", _begun)

    def reading(self) -> dict[str, Any]:
        return {}

    def lock_for_migration(self, connection: Connection) -> None:
        # Ends with the session. The names of locks are the server's, so that of the database is part of it.
        name = "CONCAT('orchestrix.', SHA1(DATABASE()))"
        got = connection.exec_driver_sql(f"SELECT GET_LOCK({name}, 600)").scalar()
        if got != 1:
            raise Unavailable("another migration has been running for 10 minutes: wait for it, then run this again")

    def meaning(self, error: DBAPIError) -> type[OrchestrixError] | None:
        return _MEANINGS.get(_code(error), Unavailable)

    def refusal(self, error: DBAPIError) -> str | None:
        if _code(error) in _WRITE_ERRORS and _NO_SPACE.search(str(error.orig)):
            return FULL
        return _REFUSALS.get(_code(error))

    def needs_new_session(self, error: DBAPIError) -> bool:
        return _code(error) in _HOPELESS

    def clock(self, now: datetime) -> ColumnElement[datetime]:
        return type_coerce(literal_column("UTC_TIMESTAMP(6)"), UtcTime())

    def ms_until(self, at: ColumnElement[datetime], now: datetime) -> ColumnElement[float]:
        passed = func.timestampdiff(literal_column("MICROSECOND"), literal(now, UtcTime()), at, type_=Float())
        return passed / 1000.0

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        return column.in_(values)

    def begins_with(self, column: ColumnElement[str], prefix: str) -> Sequence[ColumnElement[bool]]:
        # Comparisons pad with spaces, so that 'x' >= 'x '. Not LIKE: its own range over the index ends at U+FFFF.
        return (func.locate(prefix, column) == 1,)

    async def about(self, connection: QueryExecutor, query: Select[Any]) -> int | None:
        plan = (await connection.execute(Explain(query))).mappings().first()
        return None if plan is None or plan["rows"] is None else int(plan["rows"])

    async def session(self, tx: StatementExecutor) -> int | None:
        return int((await tx.execute(select(func.connection_id()))).scalar_one())

    async def end_blockers(self, connection: QueryExecutor, session: int) -> int:
        idle = [int(one) for one in (await connection.execute(_BLOCKERS, {"session": session})).scalars()]
        for one in idle:
            await connection.execute(text(f"KILL CONNECTION {one}"))
        return len(idle)

    async def heads(self, tx: StatementExecutor, table: Table, locked: Sequence[Any]) -> Sequence[Any]:
        # A locking read sees newer rows than the sub-query beside it, which could miss an older row of its instance.
        if not locked:
            return locked
        older, row = table.alias("older"), table.alias("row_")
        same = and_(older.c.saga == row.c.saga, older.c.instance_id == row.c.instance_id)
        before = or_(older.c.version < row.c.version, and_(older.c.version == row.c.version, older.c.n < row.c.n))
        ids = [found.id for found in locked]
        behind = await tx.execute(select(row.c.id).join(older, and_(same, before)).where(row.c.id.in_(ids)))
        blocked = set(behind.scalars())
        return [found for found in locked if found.id not in blocked]

    async def update(self, tx: StatementExecutor, bulk: BulkUpdate, rows: Sequence[Row]) -> set[int]:
        moved: set[int] = set()
        place = bulk.match.index("id") if "id" in bulk.match else None
        for document, part in documents([kind(column) for _, column in bulk.fields], rows):
            result = await tx.execute(_update(bulk), {"doc": document})
            if place is None:
                continue
            if result.rowcount == len(part):
                moved.update(row[place] for row in part)
            else:
                # No RETURNING here. Another writer's row that equals ours in every changed column would count as ours;
                # the unique key of the history is behind that.
                moved.update((await tx.execute(_updated(bulk), {"doc": document})).scalars())
        return moved

    async def insert(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        await tx.execute(insert(bulk.table), bulk.mapped(rows))

    async def insert_absent(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        # Not INSERT IGNORE, which would also store what does not fit.
        unchanged = {bulk.key[0]: bulk.table.c[bulk.key[0]]}
        await tx.execute(insert(bulk.table).on_duplicate_key_update(unchanged), bulk.mapped(rows))

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
        # A plain insert that meets a taken key undoes its other rows, whose waiters then deadlock. This one undoes
        # nothing, but does not say which rows are new: those that were not there before and carry our command's id.
        before = await self._present(tx, bulk, rows)
        new = [row for row in rows if bulk.key_of(row) not in before]
        if not new:
            return {}
        await self.insert_absent(tx, bulk, new)
        ours = {bulk.key_of(row): row[bulk.columns.index(bulk.marker)] for row in new}
        found = await self._present(tx, bulk, new)
        return {key: id for key, (id, marker) in found.items() if ours[key] == marker}

    async def _present(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]
    ) -> dict[tuple[Any, ...], tuple[int, Any]]:
        columns = [bulk.table.c[name] for name in bulk.key]
        keys = [bulk.key_of(row) for row in rows]
        wanted = columns[0].in_([key[0] for key in keys]) if len(columns) == 1 else tuple_(*columns).in_(keys)
        result = await tx.execute(select(bulk.table.c.id, bulk.table.c[bulk.marker], *columns).where(wanted))
        return {tuple(key): (id, marker) for id, marker, *key in result}

    async def insert_one(self, tx: StatementExecutor, table: Table, row: Mapping[str, Any]) -> bool:
        return await tx.attempt(insert(table).values(row)) is not None

    async def increment(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        new = insert(bulk.table)
        counted = {"count": bulk.table.c.count + new.inserted.count, "last_at": new.inserted.last_at}
        await tx.execute(new.on_duplicate_key_update(counted), bulk.mapped(rows))

    async def upsert(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row], replace: Sequence[str]
    ) -> None:
        new = insert(bulk.table)
        values = {name: new.inserted[name] for name in replace}
        await tx.execute(new.on_duplicate_key_update(values), bulk.mapped(rows))


def _code(error: DBAPIError) -> int:
    code = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return code if isinstance(code, int) else 0


def _connected(connection: Any, record: object) -> None:
    maria = "MariaDB" in connection.driver_connection.get_server_info()
    cursor = connection.cursor()
    for statement in (*_SESSION, *(_MARIADB if maria else _MYSQL)):
        cursor.execute(statement)
    cursor.close()


def _is_encrypted(connection: Any) -> bool:
    cursor = connection.cursor()
    cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    row = cursor.fetchone()
    cursor.close()
    return row is not None and bool(row[1])


def _begun(connection: Connection) -> None:
    if connection.get_execution_options().get("writing"):
        connection.exec_driver_sql("BEGIN")


@cache
def _update(bulk: BulkUpdate) -> TextClause:
    sets = ", ".join(f"a.`{column.name}` = v.{name}" for name, column in bulk.changed)
    where = " AND ".join([f"({bulk.guard})", *(f"a.`{column.name}` <= v.{name}" for name, column in bulk.risen)])
    return text(f"UPDATE {_joined(bulk)} SET {sets} WHERE {where}")


@cache
def _updated(bulk: BulkUpdate) -> TextClause:
    same = " AND ".join(
        f"a.`{column.name}` <=> {_text(name, column)}"
        for name, column in bulk.changed
        if kind(column) is not ValueKind.JSON
    )
    return text(f"SELECT a.id FROM {_joined(bulk, ('id',))} WHERE {same}")


def _joined(bulk: BulkUpdate, match: Sequence[str] = ()) -> str:
    columns = ", ".join(
        f"{name} {_TYPES[kind(column)]} PATH '$[{place}]'" for place, (name, column) in enumerate(bulk.fields)
    )
    pairs = [(name, column) for name, column in bulk.matched if not match or column.name in match]
    on = " AND ".join(f"a.`{column.name}` = {_text(name, column)}" for name, column in pairs)
    # STRAIGHT_JOIN: from the few values to their rows by key; the other way round would lock other rows.
    return f"JSON_TABLE(:doc, '$[*]' COLUMNS ({columns})) AS v STRAIGHT_JOIN {bulk.table.name} AS a ON {on}"


def _text(name: str, column: Column[Any]) -> str:
    return f"v.{name} COLLATE {COLLATION}" if kind(column) is ValueKind.TEXT else f"v.{name}"
