"""Dialect port: the SQL and the settings in which the databases differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from sqlalchemy import URL, Column, Connection, CursorResult, Engine, Executable, Select, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from orchestrix.errors import OrchestrixError

Row = Sequence[Any]
Result = CursorResult[*tuple[Any, ...]]
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
FULL: Final = "the disk of the database is full; nothing was changed. Free some space there"
LOCKED: Final = (
    "the database is locked by another program; nothing was changed. End what holds the lock: a shell, a backup, a copy"
)
READ_ONLY: Final = (
    "the database does not accept writes: it, this user or this session is read-only; nothing was changed"
)


class QueryExecutor(Protocol):
    """A connection, as far as a dialect needs it."""

    async def execute(self, statement: Executable, parameters: Parameters = None) -> Result:
        """Runs one statement; raises translated errors, after which an open transaction cannot continue."""


class StatementExecutor(QueryExecutor, Protocol):
    """An open transaction, as far as a dialect needs it."""

    async def attempt(self, statement: Executable, parameters: Parameters = None) -> Result | None:
        """Like `execute`, but None where a key is taken; for databases that undo only the statement then."""


@dataclass(frozen=True, slots=True)
class BulkUpdate:
    """One update of many rows, each with values of its own.

    A row of values is first those that must match (`match`), then the new ones (`change`). `guard` is a condition on
    the table's own columns, in SQL that all databases read. A row in which a column of `rising` has a higher value than
    the new one does not match.
    """

    table: Table
    match: tuple[str, ...]
    change: tuple[str, ...]
    guard: str = "1 = 1"
    rising: tuple[str, ...] = ()

    @property
    def matched(self) -> list[tuple[str, Column[Any]]]:
        """The names under which the values to match travel, and their columns."""
        return [(f"m_{name}", self.table.c[name]) for name in self.match]

    @property
    def changed(self) -> list[tuple[str, Column[Any]]]:
        """The names under which the new values travel, and their columns."""
        return [(f"s_{name}", self.table.c[name]) for name in self.change]

    @property
    def risen(self) -> list[tuple[str, Column[Any]]]:
        """Those of the new values that must not be lower than the stored ones."""
        return [(name, column) for name, column in self.changed if column.name in self.rising]

    @property
    def fields(self) -> list[tuple[str, Column[Any]]]:
        """All values of one row, in their order."""
        return self.matched + self.changed


@dataclass(frozen=True, slots=True)
class BulkInsert:
    """One insert of many rows; a row of values follows `columns`.

    `key` is the unique key that may be taken; `marker` a column whose value no other command writes.
    """

    table: Table
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    marker: str = ""

    @property
    def fields(self) -> list[tuple[str, Column[Any]]]:
        """The columns, in the order of a row's values."""
        return [(name, self.table.c[name]) for name in self.columns]

    def mapped(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The rows with the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def key_of(self, row: Row) -> tuple[Any, ...]:
        """The values of the unique key in a row of values."""
        return tuple(row[self.columns.index(name)] for name in self.key)


Updates = tuple[BulkUpdate, Sequence[Row]]
Inserts = tuple[BulkInsert, Sequence[Row]]


class Dialect(Protocol):
    """The SQL and the settings in which the databases differ."""

    name: str
    single_writer: bool
    """Whether writers wait for each other anyway, so that they should queue in this process."""

    def engine_options(self, url: URL, name: str, limit: float) -> dict[str, Any]:
        """Arguments for `create_async_engine`.

        `name` is how the server shows the connection, `limit` the seconds that a statement may take.
        """

    def address(self, url: URL) -> URL:
        """The URL as the driver takes it: without what `engine_options` passes in another form.

        Raises `ConfigError` for a parameter that is not known.
        """

    def make(self) -> None:
        """Creates the database where that needs no server. Raises `ConfigError`."""

    def listen(self, engine: Engine) -> None:
        """Sets the limits and modes of each new connection, and how a transaction begins."""

    def reading(self) -> dict[str, Any]:
        """Execution options of a connection that reads without a transaction."""

    def lock_for_migration(self, connection: Connection) -> None:
        """Waits inside a transaction until no other migration runs, and blocks others while it is open."""

    def meaning(self, error: DBAPIError) -> type[OrchestrixError] | None:
        """What a driver's error means to the caller; None where only its class can say it."""

    def refusal(self, error: DBAPIError) -> str | None:
        """The error text, with what to do, where a driver's error proves that nothing was changed, even by a COMMIT."""

    def needs_new_session(self, error: DBAPIError) -> bool:
        """Whether a driver's error says that its session can never do its work, though a new one may."""

    def clock(self, now: datetime) -> ColumnElement[datetime]:
        """The database's own clock in SQL; `now` where it has none that is fine enough."""

    def ms_until(self, at: ColumnElement[datetime], now: datetime) -> ColumnElement[float]:
        """The milliseconds from `now` to a stored time; to a tenth of one."""

    def among(self, column: ColumnElement[Any], values: Sequence[Any]) -> ColumnElement[bool]:
        """Whether the column has one of the values."""

    def begins_with(self, column: ColumnElement[str], prefix: str) -> Sequence[ColumnElement[bool]]:
        """The conditions for a prefix beyond a range over the column's index."""

    async def about(self, connection: QueryExecutor, query: Select[Any]) -> int | None:
        """How many rows the query finds, by the server's estimate; None where it has none."""

    async def session(self, tx: StatementExecutor) -> int | None:
        """By which number the server knows the transaction's connection; None where it could not be ended anyway."""

    async def end_blockers(self, connection: QueryExecutor, session: int) -> int:
        """Ends the sessions that are idle for a second and hold the locks that `session` waits for; how many.

        A client that stalls in the middle of a transaction may hold its locks for any time.
        """

    async def heads(self, tx: StatementExecutor, table: Table, locked: Sequence[Any]) -> Sequence[Any]:
        """Of outbox rows that were selected and locked as first of their saga, those that still are."""

    async def update(self, tx: StatementExecutor, bulk: BulkUpdate, rows: Sequence[Row]) -> set[int]:
        """Updates the rows that match; the ids of those that did, where `id` is one of the values to match."""

    async def insert(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        """Inserts all rows."""

    async def insert_absent(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        """Inserts the rows whose key is free; the others stay as they are."""

    async def update_and_insert(
        self, tx: StatementExecutor, update: Updates | None, inserts: Sequence[Inserts]
    ) -> set[int]:
        """One update and then inserts, with as few round trips as possible; the ids that were updated.

        Where an insert has a key, rows whose key is taken stay as they are. No rows are no reason to leave one out.
        """

    async def insert_numbered(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]
    ) -> dict[tuple[Any, ...], int]:
        """Inserts the rows whose key is free; the new ids by key. Keys must not repeat."""

    async def insert_one(self, tx: StatementExecutor, table: Table, row: Mapping[str, Any]) -> bool:
        """Inserts one row; False where one of its keys is taken."""

    async def increment(self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row]) -> None:
        """Inserts rows that have `count` and `last_at`; where the key is taken, adds the one and replaces the other."""

    async def upsert(
        self, tx: StatementExecutor, bulk: BulkInsert, rows: Sequence[Row], replace: Sequence[str]
    ) -> None:
        """Inserts rows, all in one statement; where the key is taken, sets the columns in `replace` instead."""
