"""Does the product get over a time in which the database takes no writes, and does it notice such a time?"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from orchestrix.bootstrap import write_probe
from orchestrix.bootstrap.write_probe import WriteProbe
from orchestrix.errors import OutcomeUnknown, Unavailable
from orchestrix.persistence.cluster import write_probes
from orchestrix.persistence.dialects import dialect_of, sqlite
from orchestrix.persistence.engine import Database, parse_url
from orchestrix.persistence.error_translation import translated
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.persistence.schema import migrator
from orchestrix.persistence.tables import write_probes as table
from tests.conformance.store.build import started, stored
from tests.conformance.store.test_full import DriverError, file
from tests.servers import sql
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.support import eventually

__all__ = ["file"]
POOL = 4

Switch = Callable[[bool], None]


@pytest.fixture
def sqlite_switch(file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Switch]:
    """A file that can be written, or not, by those who open it from now on."""
    pragmas = sqlite._PRAGMAS

    def switch(read_only: bool) -> None:
        monkeypatch.setattr(sqlite, "_PRAGMAS", (*pragmas, "PRAGMA query_only = ON") if read_only else pragmas)

    return f"sqlite+aiosqlite:///{file}", switch


@pytest.fixture
def postgresql_switch(private_postgres: Callable[[], PostgresServer]) -> tuple[str, Switch]:
    """A database that is read-only, or not, for sessions that begin from now on."""
    url = private_postgres().url()

    def switch(read_only: bool) -> None:
        value = "on" if read_only else "off"
        sql.run_sql(
            url,
            "SET default_transaction_read_only = off",
            f"ALTER DATABASE postgres SET default_transaction_read_only = {value}",
        )

    asyncio.run(migrator.upgrade(url))
    return url, switch


@pytest.fixture
def mariadb_switch(private_mariadb: Callable[[], MariaServer]) -> tuple[str, Switch]:
    """The same of MariaDB."""
    server = private_mariadb()
    sql.run_sql(server.url(), "CREATE DATABASE ox")

    def switch(read_only: bool) -> None:
        sql.run_sql(server.url(), f"SET GLOBAL tx_read_only = {int(read_only)}")

    asyncio.run(migrator.upgrade(server.url("ox")))
    return server.url("ox"), switch


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.servers),
        pytest.param("mariadb", marks=pytest.mark.servers),
    ]
)
def switched(request: pytest.FixtureRequest) -> tuple[str, Switch]:
    """The address of a database, and what makes it read-only for new sessions."""
    found: tuple[str, Switch] = request.getfixturevalue(f"{request.param}_switch")
    return found


async def test_sessions_that_began_while_nothing_could_be_written_are_replaced(
    switched: tuple[str, Switch], caplog: pytest.LogCaptureFixture
) -> None:
    url, switch = switched
    switch(True)
    database = Database(url, pool_size=POOL)
    probe = WriteProbe(database, "node-1", interval_s=0.05)
    assert probe.problem
    async with AsyncExitStack() as stack:
        for _ in range(POOL):
            await stack.enter_async_context(database.read())
    with pytest.raises(Unavailable, match=r"does not accept writes|cannot be used") as refused:
        await stored(database, APPS, [started("no")])
    assert not isinstance(refused.value, OutcomeUnknown)
    await probe.start()
    await eventually(lambda: "does not accept writes" in caplog.text, deadline=10)
    switch(False)
    await eventually(lambda: probe.problem is None, deadline=10)
    for place in range(POOL):
        await stored(database, APPS, [started(f"yes-{place}")])
    await probe.stop()
    assert caplog.text.count("accepts writes again") == 1
    await database.close()


async def test_what_was_in_use_when_writes_are_taken_again_is_replaced_before_it_is_used_again(
    switched: tuple[str, Switch], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, switch = switched
    monkeypatch.setattr(
        "orchestrix.persistence.engine._RENEWED_EVERY_S", 1e9
    )  # the first refusal alone renews the pool
    switch(True)
    database = Database(url, pool_size=POOL)
    probe = WriteProbe(database, "node-1", interval_s=0.05)
    await probe.start()
    await eventually(lambda: "does not accept writes" in caplog.text, deadline=10)
    async with AsyncExitStack() as stack:
        for _ in range(POOL - 1):
            await stack.enter_async_context(database.read())
        switch(False)
        await eventually(lambda: probe.problem is None, deadline=10)
        await probe.stop()
    for place in range(POOL):
        await stored(database, APPS, [started(f"yes-{place}")])
    await database.close()


READ_ONLY = {
    "postgresql+asyncpg://h/d": DriverError("cannot execute INSERT in a read-only transaction", sqlstate="25006"),
    "mysql+asyncmy://h/d": DriverError(1290, "The server is running with the --read-only option"),
    "mysql+asyncmy://h/e": DriverError(1792, "Cannot execute statement in a READ ONLY transaction"),
    "mysql+asyncmy://h/f": DriverError(1836, "Running in read-only mode"),
    "sqlite+aiosqlite:////x": DriverError("attempt to write", sqlite_errorcode=sqlite3.SQLITE_READONLY_DBMOVED),
}


@pytest.mark.parametrize("url", READ_ONLY)
def test_a_refusal_to_write_ends_the_session_and_leaves_nothing_open(url: str) -> None:
    error, dialect = OperationalError("COMMIT", None, READ_ONLY[url]), dialect_of(parse_url(url))
    assert dialect.needs_new_session(error)
    assert type(translated(error, dialect, committing=True)) is Unavailable


def test_other_errors_end_no_session() -> None:
    for url, error in {
        "postgresql+asyncpg://h/d": DriverError("unique", sqlstate="23505"),
        "mysql+asyncmy://h/d": DriverError(1213, "Deadlock"),
        "sqlite+aiosqlite:////x": DriverError("locked", sqlite_errorcode=sqlite3.SQLITE_BUSY),
    }.items():
        assert not dialect_of(parse_url(url)).needs_new_session(OperationalError("UPDATE", None, error))


# The row of the probe


@pytest.fixture
async def probe(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WriteProbe]:
    """One that writes without pause."""
    made = WriteProbe(database, "node-1", interval_s=0.01)
    yield made
    await made.stop()


async def names(database: Database) -> list[str]:
    async with database.read() as connection:
        return sorted((await connection.execute(select(table.c.name))).scalars())


async def test_a_process_has_one_row_and_those_of_the_dead_are_removed(database: Database, peer: Database) -> None:
    for name in ("new", "old", "ahead"):
        await peer.run(lambda tx, name=name: write_probes.write(tx, name))  # type: ignore[misc]
    for name, hours in (("old", -2), ("ahead", 2)):
        moved = update(table).where(table.c.name == name).values(at=peer.now() + timedelta(hours=hours))
        await peer.run(lambda tx, moved=moved: tx.execute(moved))  # type: ignore[misc]
    first = WriteProbe(database, "node-1", interval_s=0.01)
    await first.start()
    await eventually(lambda: first.problem is None, deadline=5)
    await first.stop()
    assert await names(database) == ["new", "node-1"]
    await write_probes.try_once(peer, "doctor")
    assert await names(database) == ["new", "node-1"]


async def test_a_write_that_hangs_is_told_within_its_limit(
    database: Database, peer: Database, probe: WriteProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.run(lambda tx: write_probes.write(tx, "node-1"))
    monkeypatch.setattr(write_probe, "PROBE_TIMEOUT_S", 0.05)
    async with peer.begin() as tx:
        await write_probes.write(tx, "node-1")
        await probe.start()
        await eventually(lambda: "within" in (probe.problem or ""), deadline=5)
    await eventually(lambda: probe.problem is None, deadline=10)


async def test_a_probe_behind_others_that_write_is_content(
    database: Database, probe: WriteProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_probe, "PROBE_TIMEOUT_S", 0.2)
    held, let_go = asyncio.Event(), asyncio.Event()

    async def slow(tx: object, name: str) -> None:
        held.set()
        await let_go.wait()

    monkeypatch.setattr(write_probes, "write", slow)
    await probe.start()
    await held.wait()
    database.written_at = 1e18  # as others' commits would go on saying
    await eventually(lambda: probe.problem is None, deadline=5)
    let_go.set()


async def test_a_missing_table_is_trouble(file: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{file}")
    await database.run(lambda tx: tx.execute(text("DROP TABLE write_probes")))
    made = WriteProbe(database, "node-1", interval_s=0.01)
    await made.start()
    try:
        await eventually(lambda: "db upgrade" in (made.problem or ""), deadline=5)
    finally:
        await made.stop()
        await database.close()
