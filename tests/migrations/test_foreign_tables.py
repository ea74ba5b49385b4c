"""Does an upgrade keep away from a database in which others have tables of our names, and only from such?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
from sqlalchemy import Connection, inspect, text

from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import foreign_tables, migrator
from orchestrix.persistence.tables import metadata

REVISIONS = sorted(one.name.partition("_")[0] for one in (migrator.SCRIPTS / "versions").glob("[0-9]*.py"))
JOBS = "CREATE TABLE jobs (id INTEGER, title VARCHAR(20))"


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, make=True)
    yield database
    await database.close()


async def run(database: Database, *statements: str) -> None:
    async with database.begin() as tx:
        for statement in statements:
            await tx.execute(text(statement))


async def there(database: Database) -> dict[str, list[str]]:
    """Every table and view with its columns."""

    def look(connection: Connection) -> dict[str, list[str]]:
        found = inspect(connection)
        names = [*found.get_table_names(), *found.get_view_names()]
        return {name: [column["name"] for column in found.get_columns(name)] for name in sorted(names)}

    return await database.inspect(look)


async def refused(database: Database, url: str) -> str:
    """What an upgrade says that must change nothing."""
    before = await there(database)
    with pytest.raises(ConfigError) as refusal:
        await migrator.upgrade(url)
    assert await there(database) == before
    return str(refusal.value)


@pytest.mark.parametrize(
    "statement",
    [
        JOBS,
        "CREATE VIEW jobs AS SELECT 1 AS id",
        "CREATE TABLE jobs (id INTEGER, state VARCHAR(40), version INTEGER)",  # columns that ours has too
    ],
    ids=["table", "view", "a few of our columns"],
)
async def test_a_table_of_another_program_is_named(database: Database, empty_url: str, statement: str) -> None:
    await run(database, statement)
    said = await refused(database, empty_url)
    assert said.startswith(
        "the table jobs belongs to another program but has one of Orchestrix's names; nothing was changed. "
    )
    assert "Use another database in ORCHESTRIX_DATABASE_URL" in said


async def test_all_of_them_are_named_and_no_others(database: Database, empty_url: str) -> None:
    await run(database, JOBS, "CREATE TABLE apps (id INTEGER)", "CREATE TABLE customers (id INTEGER)")
    assert "tables of another program use Orchestrix's names: apps, jobs;" in await refused(database, empty_url)


async def test_other_tables_are_nobodys_business(database: Database, empty_url: str) -> None:
    await run(database, "CREATE TABLE customers (id INTEGER)")
    await migrator.upgrade(empty_url)
    assert (await there(database)).keys() == {*metadata.tables, foreign_tables.VERSION_TABLE, "customers"}


async def test_a_table_where_a_later_migration_puts_its_own_is_foreign(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    await migrator.downgrade(empty_url, "0003")
    await run(database, JOBS)
    assert "the table jobs belongs to another program" in await refused(database, empty_url)
    await run(database, "DROP TABLE jobs")
    await migrator.upgrade(empty_url)
    assert await migrator.check(empty_url) == []


@pytest.mark.parametrize("revisions", [["3f2a9c1d77b0"], ["0001", "0002"]], ids=["its name", "two branches"])
async def test_a_revision_of_another_program_is_foreign(
    database: Database, empty_url: str, revisions: list[str]
) -> None:
    await run(database, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    await run(database, *(f"INSERT INTO alembic_version VALUES ('{revision}')" for revision in revisions))
    assert "the table alembic_version belongs to another program" in await refused(database, empty_url)
    with pytest.raises(ConfigError, match="alembic_version"):
        await migrator.current(database)


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE alembic_version (foo INTEGER)"],
        ["CREATE TABLE alembic_version (foo INTEGER)", "INSERT INTO alembic_version VALUES (1)"],
        ["CREATE VIEW alembic_version AS SELECT 1 AS foo"],
        ["CREATE TABLE alembic_version (version_num VARCHAR(32))", "INSERT INTO alembic_version VALUES (NULL)"],
        ["CREATE TABLE alembic_version (version_num INTEGER)", "INSERT INTO alembic_version VALUES (9)"],
    ],
    ids=["no revision", "a row without one", "view", "NULL", "number"],
)
async def test_a_version_table_that_is_none_is_foreign(
    database: Database, empty_url: str, statements: list[str]
) -> None:
    await run(database, *statements)
    assert "the table alembic_version belongs to another program" in await refused(database, empty_url)
    with pytest.raises(ConfigError, match="alembic_version"):
        await migrator.current(database)


async def test_a_database_without_a_version_table_has_no_revision(database: Database) -> None:
    await run(database, "CREATE TABLE customers (id INTEGER)")
    assert await migrator.current(database) is None


@pytest.mark.parametrize("revision", ["0003", migrator.HEAD])
async def test_a_revision_that_looks_like_ours_is_foreign_where_no_table_of_ours_is(
    database: Database, empty_url: str, revision: str
) -> None:
    await run(
        database,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        f"INSERT INTO alembic_version VALUES ('{revision}')",
        JOBS,
    )
    said = await refused(database, empty_url)
    assert "tables of another program use Orchestrix's names: alembic_version, jobs;" in said


async def test_every_revision_of_ours_is_ours(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    for revision in [*reversed(REVISIONS), None]:
        await migrator.downgrade(empty_url, revision or "base")
        await database.inspect(partial(foreign_tables.refuse, revision=revision, made=migrator.made))
    await migrator.upgrade(empty_url)
    assert await migrator.check(empty_url) == []


async def test_tables_of_an_upgrade_that_was_cut_off_are_ours(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    for revision in [*REVISIONS, None]:  # the tables are those of the newest, and the version table has not followed
        await database.inspect(partial(foreign_tables.refuse, revision=revision, made=migrator.made))
    await run(database, "DROP TABLE jobs", JOBS)
    with pytest.raises(ConfigError, match="jobs"):
        await database.inspect(partial(foreign_tables.refuse, revision=None, made=migrator.made))


async def test_a_table_that_was_changed_by_hand_stays_ours(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    await migrator.downgrade(empty_url, "0003")
    await run(database, "DROP TABLE saga_notes", "ALTER TABLE audit DROP COLUMN detail")
    await migrator.upgrade(empty_url)
    assert sorted(await migrator.check(empty_url)) == [
        "column audit.detail is in this version and not in the database",
        "table saga_notes is in this version and not in the database",
    ]


async def test_letters_of_another_case_are_the_same_name_in_sqlite(sqlite_url: str) -> None:
    database = Database(sqlite_url, make=True)
    try:
        await run(database, "CREATE TABLE Jobs (id INTEGER)")
        assert "the table jobs belongs to another program" in await refused(database, sqlite_url)
    finally:
        await database.close()
