"""Database engine: connections, transactions and the database's clock, with one meaning for all errors."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Executable, TextClause, UpdateBase, event, make_url, select, text
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from orchestrix import clock
from orchestrix.domain.installation import Installation
from orchestrix.errors import ConfigError, ConflictError, Contention, Unavailable
from orchestrix.persistence.error_translation import translated
from orchestrix.persistence.pool_metrics import PoolMetrics
from orchestrix.saga.messages import compact
from orchestrix.version import DISTRIBUTION

from .dialects import Dialect, dialect_of
from .dialects.port import Parameters, Result

T = TypeVar("T")
_OPENED_AT: Final = "opened_at"
_ANY_QUESTION: Final = text("SELECT count(*) FROM sqlite_master")
"""What reads the file of SQLite: its clock is the machine's own."""

STATEMENT_TIMEOUT_S: Final = 15.0
"""Seconds after which a statement is given up; longer than every wait for a lock."""
_CONNECT_TIMEOUT_S: Final = 11.0
"""Seconds for a connection: 5 for a free slot in the pool, 5 to connect."""
_POOL_TIMEOUT_S: Final = 5.0
_POOL_RECYCLE_S: Final = 1800
_BACKOFF: Final = 0.02
_RENEWED_EVERY_S: Final = 1.0
"""Seconds between two renewals of a pool whose sessions cannot do their work."""

# The pool reports each connection that it had to drop, with a stack trace. An outage is reported once, by the caller.
logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)


class Connection:
    """A connection that reads what is committed, statement by statement, without a transaction."""

    def __init__(self, database: Database, connection: AsyncConnection) -> None:
        self.database = database
        self.dialect = database.dialect
        self._connection = connection

    def now(self) -> datetime:
        """`Database.now`."""
        return self.database.now()

    async def execute(self, statement: Executable, parameters: Parameters = None) -> Result:
        """Runs one statement; raises the errors of `orchestrix.errors` with the driver's own as their cause."""
        try:
            async with asyncio.timeout(self.database.statement_limit):
                return await self._connection.execute(statement, parameters)
        except Exception as error:
            raise self._refused(translated(error, self.dialect)) from error

    def _refused(self, error: Exception) -> Exception:
        return error


class Transaction(Connection):
    """A write transaction. After an error it cannot continue, and its end raises that error again."""

    _broken: Exception | None = None
    _writes = False

    def __init__(self, database: Database, connection: AsyncConnection) -> None:
        super().__init__(database, connection)
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._then: list[Callable[[], None]] = []

    def before_commit(self, call: Callable[[], Awaitable[None]]) -> None:
        """Calls `call` at the end of this transaction, for what is written once for all that happened in it."""
        self._before.append(call)

    def then(self, call: Callable[[], None]) -> None:
        """Calls `call` once this is committed. Only for what may be lost: the process can die in between."""
        self._then.append(call)

    async def execute(self, statement: Executable, parameters: Parameters = None) -> Result:
        """Runs one statement; raises the errors of `orchestrix.errors` with the driver's own as their cause."""
        if self._broken is not None:
            raise self._broken
        done = await super().execute(statement, parameters)
        self._writes = self._writes or isinstance(statement, UpdateBase | TextClause)
        return done

    async def attempt(self, statement: Executable, parameters: Parameters = None) -> Result | None:
        """Like `execute`, but None where a key is taken. Only for databases that undo no more than the statement."""
        try:
            return await self.execute(statement, parameters)
        except ConflictError:
            self._broken = None
            return None

    async def commit(self) -> None:
        """Commits. Waits for the end also when cancelled.

        Raises `OutcomeUnknown` if the connection was lost meanwhile, and the error of a statement that failed before.
        """
        if self._broken is not None:
            raise self._broken
        for write in self._before:
            await write()
        try:
            await _to_the_end(self._commit())
        except Exception as error:
            raise translated(error, self.dialect, committing=True) from error
        if self._writes:
            self.database.written_at = clock.monotonic()
        for call in self._then:
            call()

    async def _commit(self) -> None:
        async with asyncio.timeout(self.database.statement_limit):
            await self._connection.commit()

    def _refused(self, error: Exception) -> Exception:
        # PostgreSQL would answer the COMMIT of a failed transaction with success and roll it back.
        self._broken = error
        return error


class Database:
    """A pool of connections to one database.

    `name` is how the server shows them; `statement_limit` is in seconds; `make` makes a SQLite file that is not there;
    `engine` stands in for the one that would be made and has the dialect's listeners already. Does not connect yet.
    Raises `ConfigError` for a URL that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        name: str = "orchestrix",
        statement_limit: float = STATEMENT_TIMEOUT_S,
        make: bool = False,
        engine: AsyncEngine | None = None,
    ) -> None:
        self.url: Final = parse_url(url)
        self.dialect: Final[Dialect] = dialect_of(self.url)
        self.statement_limit: Final = statement_limit
        if make:
            self.dialect.make()
        options = self.dialect.engine_options(self.url, name, statement_limit)
        self._engine = engine or _engine(self.dialect.address(self.url), self.dialect, pool_size, options)
        self._opened_from = -math.inf
        self._metrics = PoolMetrics(self._engine, pool_size) if engine is None else None
        if engine is None:  # what stands in for one has no pool
            event.listen(self._engine.sync_engine, "connect", _note_opening)
            event.listen(self._engine.sync_engine, "checkout", self._refuse_older)
        self._offset: tuple[datetime, float] | None = None
        self.installation: Installation | None = None
        self.written_at: float | None = None
        """When this process last changed something, on the monotonic clock."""
        self._writers: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(1) if self.dialect.single_writer else nullcontext()
        )

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A write transaction, committed at the end of the block unless that raised.

        Raises `Unavailable`, `OutcomeUnknown` if the connection was lost during COMMIT, and `Contention` if the whole
        can be tried again at once.
        """
        async with self._turn(), self._connected(writing=True) as connection:
            tx = Transaction(self, connection)
            yield tx
            await tx.commit()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Connection]:
        """A connection for reading. Every statement sees what is committed when it starts."""
        async with self._connected(**self.dialect.reading()) as connection:
            yield Connection(self, connection)

    async def run(self, work: Callable[[Transaction], Awaitable[T]], attempts: int = 4) -> T:
        """What `work` returns in a write transaction of its own; on `Contention` tried again in a new one."""
        for attempt in range(1, attempts):
            try:
                return await self._run_once(work)
            except Contention:
                await asyncio.sleep(clock.uniform(0, _BACKOFF * 2**attempt))
        return await self._run_once(work)

    async def _run_once(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        async with self.begin() as tx:
            return await work(tx)

    def now(self) -> datetime:
        """The database's clock as far as this process knows it: exact to milliseconds after the last `ping`."""
        if self._offset is None:
            return clock.now()
        then, at = self._offset
        return then + timedelta(seconds=clock.boottime() - at)

    async def ping(self) -> None:
        """Queries the database for its time; raises `Unavailable`."""
        async with self._connected(**self.dialect.reading()) as connection:
            await self._set_clock(connection)

    async def inspect(self, work: Callable[[SyncConnection], T]) -> T:
        """What `work` finds on a connection that blocks; for tools that know no other."""
        async with self._connected(**self.dialect.reading()) as connection:
            return await self._in_sync(connection, work)

    async def migrate(self, work: Callable[[SyncConnection], T]) -> T:
        """What `work` returns in a transaction while no other migration runs, here or elsewhere."""
        async with self._turn(), self._connected(writing=True) as connection:
            await self._in_sync(connection, self.dialect.lock_for_migration)
            done = await self._in_sync(connection, work)
            await Transaction(self, connection).commit()
            return done

    async def _in_sync(self, connection: AsyncConnection, work: Callable[[SyncConnection], T]) -> T:
        try:
            return await connection.run_sync(work)
        except Exception as error:
            raise translated(error, self.dialect) from error

    def renew(self) -> None:
        """Replaces each session that is open now when it is next taken from the pool: it may have begun while the
        database took no writes, and would refuse them as long as it lives."""
        self._opened_from = clock.monotonic()

    def _refuse_older(self, _connection: object, record: ConnectionPoolEntry, _proxy: object) -> None:
        if record.info.get(_OPENED_AT, math.inf) < self._opened_from:
            raise DisconnectionError("opened before the database took writes again")

    async def close(self) -> None:
        """Closes all connections that are not in use."""
        if self._metrics is not None:
            self._metrics.end()
        try:
            await self._engine.dispose()
        except (SQLAlchemyError, OSError, TimeoutError):
            logging.getLogger(__name__).debug("a database connection could not be closed cleanly", exc_info=True)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        # Writers that queue here hold no connection and wake at once; in SQLite they would poll for the lock.
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._writers.__aenter__()
        except TimeoutError as error:
            raise Unavailable("the database is busy with another write") from error
        try:
            yield
        finally:
            await self._writers.__aexit__(None, None, None)

    @asynccontextmanager
    async def _connected(self, **options: Any) -> AsyncIterator[AsyncConnection]:
        connection = self._engine.connect()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await connection.start()
        except Exception as error:
            raise translated(error, self.dialect) from error
        try:
            await self._prepare(connection, options)
            yield connection
        finally:
            await _to_the_end(_closed(connection))

    async def _prepare(self, connection: AsyncConnection, options: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(STATEMENT_TIMEOUT_S):
                if options:
                    await connection.execution_options(**options)
                if options.get("writing"):
                    await connection.begin()
        except Exception as error:
            raise translated(error, self.dialect) from error
        if self._offset is None and not self.dialect.single_writer:
            await self._set_clock(connection)

    async def _set_clock(self, connection: AsyncConnection) -> None:
        """Sets the offset of the database's clock, against one that never goes back and counts suspension: the local
        one can be put forward, and what a machine notes when it wakes must not seem to be old.
        """
        asked = clock.boottime()
        question = _ANY_QUESTION if self.dialect.single_writer else self._clock_question()
        then = (await Connection(self, connection).execute(question)).scalar_one()
        if not self.dialect.single_writer:
            self._offset = then, (asked + clock.boottime()) / 2

    def _clock_question(self) -> Executable:
        return select(self.dialect.clock(clock.now()))


def parse_url(url: str) -> URL:
    """The address of a database; raises `ConfigError` without repeating it, because it can hold a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            "the database URL is malformed; write e.g. postgresql+asyncpg://user:password@host/name"
        ) from error
    return parsed.set(drivername="mysql+asyncmy") if parsed.drivername == "mariadb+asyncmy" else parsed


def _engine(url: URL, dialect: Dialect, pool_size: int, options: dict[str, Any]) -> AsyncEngine:
    try:
        engine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=_POOL_TIMEOUT_S,
            pool_recycle=_POOL_RECYCLE_S,
            pool_use_lifo=True,
            hide_parameters=True,
            json_serializer=compact,
            **options,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the driver for {url.drivername}:// is not installed ({error.name} is missing): "
            f"run pip install '{DISTRIBUTION}[{dialect.name}]'"
        ) from error
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise ConfigError(f"the database URL cannot be used: {error}") from error
    dialect.listen(engine.sync_engine)
    event.listen(engine.sync_engine, "handle_error", _Renewal(dialect))
    return engine


def _note_opening(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_OPENED_AT] = clock.monotonic()


class _Renewal:
    """Ends a session that reports that it can never do its work, and soon all that were opened before.

    A session that began while the database took no writes refuses them as long as it lives.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._renewed_at = -math.inf

    def __call__(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception
        if not isinstance(error, DBAPIError) or not self._dialect.needs_new_session(error):
            return
        context.is_disconnect = True
        # Not for each of many errors at once, or no request would keep its connection to its end.
        context.invalidate_pool_on_disconnect = clock.monotonic() - self._renewed_at >= _RENEWED_EVERY_S
        if context.invalidate_pool_on_disconnect:
            self._renewed_at = clock.monotonic()


async def _closed(connection: AsyncConnection) -> None:
    try:
        async with asyncio.timeout(STATEMENT_TIMEOUT_S):
            await connection.close()
    except (SQLAlchemyError, OSError, TimeoutError):
        if not connection.closed:
            await connection.invalidate()


async def _to_the_end(work: Awaitable[T]) -> T:
    """What `work` returns. A cancellation waits until it is done: the outcome of half a COMMIT would be unknown."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
