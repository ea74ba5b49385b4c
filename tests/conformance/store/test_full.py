"""What does the product hear when the disk is full, or the file of its database has gone or cannot be used?"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from orchestrix.errors import Contention, OutcomeUnknown, SchemaMismatch, Unavailable
from orchestrix.persistence.dialects import dialect_of, sqlite
from orchestrix.persistence.dialects.sqlite_file import DatabaseFile
from orchestrix.persistence.engine import Database, Transaction, parse_url
from orchestrix.persistence.error_translation import translated
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.persistence.schema import migrator
from tests.conformance.store.build import started, stored
from tests.servers import sql
from tests.support import eventually


@pytest.fixture(autouse=True)
async def _driver_ended() -> AsyncIterator[None]:
    """The driver's threads end by themselves, and one that outlives the loop of its test would fail another test."""
    yield
    await eventually(lambda: not [t for t in threading.enumerate() if "_connection_worker" in t.name], deadline=5.0)


@pytest.fixture
def file(sqlite_template: Path, tmp_path: Path) -> Path:
    """A SQLite database with empty tables."""
    return Path(shutil.copy(sqlite_template, tmp_path / "store.db"))


@pytest.fixture
async def opened(file: Path) -> AsyncIterator[Database]:
    """The same, in use."""
    database = Database(f"sqlite+aiosqlite:///{file}")
    await database.ping()
    yield database
    await database.close()


async def count(database: Database) -> int:
    async with database.read() as connection:
        return len(await instances.page(connection, APPS, "app", instances.InstanceFilter(), "key", 100))


# Full


async def test_a_full_sqlite_changes_nothing_and_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(file) as raw:
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
    raw.close()
    monkeypatch.setattr(sqlite, "_PRAGMAS", (*sqlite._PRAGMAS, f"PRAGMA max_page_count = {pages}"))
    database = Database(f"sqlite+aiosqlite:///{file}")
    with pytest.raises(Unavailable, match="disk of the database is full; nothing was changed") as refused:
        await stored(database, APPS, [started(f"{place:0200}", data={"x": "y" * 500}) for place in range(50)])
    assert type(refused.value) is Unavailable
    assert await count(database) == 0
    await database.close()


class DriverError(Exception):
    """An error as one of the drivers raises it."""

    def __init__(self, *args: object, **marks: object) -> None:
        super().__init__(*args)
        vars(self).update(marks)


FULL = {
    "sqlite+aiosqlite:////x": DriverError("database or disk is full", sqlite_errorcode=sqlite3.SQLITE_FULL),
    "postgresql+asyncpg://h/d": DriverError("could not extend file", sqlstate="53100"),
    "mysql+asyncmy://h/d": DriverError(1021, "Disk full"),
    "mysql+asyncmy://h/e": DriverError(1114, "The table 'apps' is full"),
    "mysql+asyncmy://h/f": DriverError(1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
    "mysql+asyncmy://h/g": DriverError(1026, "Error writing file 'x' (errno: 28 \"No space left on device\")"),
}


@pytest.mark.parametrize("url", FULL)
def test_a_commit_refused_by_a_full_disk_leaves_nothing_open(url: str) -> None:
    found = translated(OperationalError("COMMIT", None, FULL[url]), dialect_of(parse_url(url)), committing=True)
    assert type(found) is Unavailable
    assert "nothing was changed" in str(found)


LOCKED = {
    "sqlite+aiosqlite:////x": DriverError("database is locked", sqlite_errorcode=sqlite3.SQLITE_BUSY),
    "postgresql+asyncpg://h/d": DriverError("canceling statement due to lock timeout", sqlstate="55P03"),
    "mysql+asyncmy://h/d": DriverError(1205, "Lock wait timeout exceeded; try restarting transaction"),
}


@pytest.mark.parametrize("url", LOCKED)
def test_a_lock_of_somebody_else_is_named_and_leaves_nothing_open(url: str) -> None:
    dialect = dialect_of(parse_url(url))
    found = translated(OperationalError("COMMIT", None, LOCKED[url]), dialect, committing=True)
    assert type(found) in (Unavailable, Contention)
    assert "nothing was changed" in str(found)
    assert str(found) != str(LOCKED[url])


def test_another_error_of_a_file_is_no_full_disk() -> None:
    broken = DriverError(1030, 'Got error 5 "Input/output error" from storage engine InnoDB')
    found = translated(OperationalError("INSERT", None, broken), dialect_of(parse_url("mysql+asyncmy://h/d")))
    assert "full" not in str(found)


async def test_a_locked_sqlite_says_what_to_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_PRAGMAS", ("PRAGMA busy_timeout = 50",))
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    database = Database(f"sqlite+aiosqlite:///{file}")
    try:
        with pytest.raises(Unavailable, match="locked by another program; nothing was changed"):
            await stored(database, APPS, [started("x")])
        holder.execute("ROLLBACK")
        await stored(database, APPS, [started("x")])
    finally:
        holder.close()
        await database.close()


@pytest.fixture
def full_postgresql(postgresql_tables: str) -> Iterator[str]:
    """PostgreSQL that finds its disk full at each COMMIT of an app."""
    sql.run_sql(
        sql.emptied(postgresql_tables),
        "CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RAISE EXCEPTION USING ERRCODE = ''53100''; END'",
        "CREATE CONSTRAINT TRIGGER is_full AFTER INSERT ON apps DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION is_full()",
    )
    yield postgresql_tables
    sql.run_sql(postgresql_tables, "DROP TRIGGER is_full ON apps", "DROP FUNCTION is_full")


@pytest.fixture
def full_mariadb(mariadb_tables: str) -> Iterator[str]:
    """MariaDB that finds its disk full at each app."""
    trigger = "CREATE TRIGGER is_full BEFORE INSERT ON apps FOR EACH ROW"
    sql.run_sql(sql.emptied(mariadb_tables), f"{trigger} SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1021")
    yield mariadb_tables
    sql.run_sql(mariadb_tables, "DROP TRIGGER is_full")


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["full_postgresql", "full_mariadb"])
async def test_a_full_server_changes_nothing_and_says_so(kind: str, request: pytest.FixtureRequest) -> None:
    database = Database(request.getfixturevalue(kind))
    try:
        with pytest.raises(Unavailable, match="nothing was changed") as refused:
            await stored(database, APPS, [started("x")])
        assert not isinstance(refused.value, OutcomeUnknown)
        assert await count(database) == 0
    finally:
        await database.close()


# Gone


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_file_that_went_under_a_running_process_takes_no_more_work(
    opened: Database, file: Path, sqlite_template: Path, replaced: bool
) -> None:
    await stored(opened, APPS, [started("before")])
    file.rename(file.with_name("elsewhere.db"))
    if replaced:
        shutil.copy(sqlite_template, file)
    for attempt in (stored(opened, APPS, [started("lost")]), count(opened), opened.ping()):
        with pytest.raises(
            Unavailable, match=f"database file {file} was deleted or replaced: stop, restore it, start again"
        ):
            await attempt
    assert file.exists() == replaced, "no empty file takes its place"


async def test_nothing_is_committed_into_a_file_that_went_in_mid_transaction(opened: Database, file: Path) -> None:
    async def work(tx: Transaction) -> None:
        await instances.insert(tx, APPS, [started("lost")])
        file.rename(file.with_name("elsewhere.db"))

    with pytest.raises(Unavailable, match="was deleted or replaced") as refused:
        await opened.run(work)
    assert not isinstance(refused.value, OutcomeUnknown)


async def test_a_file_that_came_back_is_used_again(opened: Database, file: Path) -> None:
    away = file.rename(file.with_name("elsewhere.db"))
    with pytest.raises(Unavailable):
        await opened.ping()
    away.rename(file)
    await opened.ping()


async def test_a_new_file_is_nothing_to_miss(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/deep/new.db", make=True)
    for _ in range(2):
        await database.ping()
    await database.close()
    assert (tmp_path / "deep" / "new.db").is_file()


async def test_a_look_makes_neither_file_nor_folder(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "new.db"
    database = Database(f"sqlite+aiosqlite:///{file}")
    for look in (database.ping, lambda: migrator.current(database), lambda: stored(database, APPS, [started("x")])):
        with pytest.raises(SchemaMismatch, match=f"{file} does not exist: run `orchestrix db upgrade`"):
            await look()
    assert list(tmp_path.iterdir()) == []
    await migrator.upgrade(f"sqlite+aiosqlite:///{file}")
    assert await migrator.current(database) == migrator.HEAD
    await database.close()


@pytest.mark.parametrize("url", ["sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "sqlite+aiosqlite:///file:x"])
def test_there_is_no_file_in_memory(url: str) -> None:
    assert DatabaseFile.of(parse_url(url)) is None


# Unusable


@pytest.mark.parametrize("kind", ["folder", "rubbish"])
async def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "store.db"
    if kind == "folder":
        place.mkdir()
    else:
        place.write_bytes(b"this is no database at all " * 100)
    database = Database(f"sqlite+aiosqlite:///{place}")
    with pytest.raises(Unavailable, match=f"the database file {place} cannot be used .*or use another file"):
        await database.ping()
    await database.close()
