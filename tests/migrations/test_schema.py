"""Do the migrations lead to the tables that the code expects, and back, on each database?"""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from orchestrix.errors import Invalid, SchemaMismatch, Unavailable
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.persistence.schema import migrator
from orchestrix.persistence.tables import metadata
from orchestrix.saga.state import NO_PROGRESS
from tests.servers import sql
from tests.support import free_port


@pytest.fixture
async def database(empty_url: str) -> AsyncIterator[Database]:
    database = Database(empty_url, make=True)
    yield database
    await database.close()


async def tables(database: Database) -> set[str]:
    return await database.inspect(lambda connection: set(inspect(connection).get_table_names()))


def test_the_constant_names_the_newest_script() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrator.SCRIPTS))
    assert ScriptDirectory.from_config(config).get_heads() == [migrator.HEAD]


def test_scripts_do_not_depend_on_the_code() -> None:
    scripts = sorted((migrator.SCRIPTS / "versions").glob("0*.py"))
    assert scripts
    for script in scripts:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in {
                    "__future__",
                    "datetime",
                    "typing",
                    "alembic",
                    "sqlalchemy",
                }, script


@pytest.mark.req("S3-8")
async def test_up_and_down_and_up_again(database: Database, empty_url: str) -> None:
    assert await migrator.current(database) is None
    await migrator.upgrade(empty_url)
    assert await migrator.current(database) == migrator.HEAD
    assert await tables(database) == {*metadata.tables, "alembic_version"}
    await migrator.downgrade(empty_url, "base")
    assert await migrator.current(database) is None
    assert await tables(database) == {"alembic_version"}
    await migrator.upgrade(empty_url)
    assert await migrator.check(empty_url) == []


async def test_rows_from_before_control_are_in_their_first_try(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    await migrator.downgrade(empty_url, "0001")
    async with database.begin() as tx:
        await tx.execute(
            text(
                "INSERT INTO apps (app_name, created_by, state, created_at, updated_at, version, correlation_id,"
                " attempt, wait_ms, data, definition_version)"
                " VALUES ('x', 'x', 'COMPLETED', '2026-01-01', '2026-01-01', 1, 'c', 1, 0, '{}', 1)"
            )
        )
    await migrator.upgrade(empty_url)
    async with database.read() as connection:
        found = await instances.by_key(connection, saga_tables_of("app"), "app", "x")
    assert found is not None
    assert (found.tries, found.deadline_at, found.progress) == (1, None, NO_PROGRESS)


async def test_a_difference_is_found_and_named(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    assert await migrator.check(empty_url) == []
    async with database.begin() as tx:
        await tx.execute(text("ALTER TABLE apps ADD COLUMN stranger INTEGER"))
        await tx.execute(text("DROP TABLE saga_notes"))
    found = await migrator.check(empty_url)
    assert sorted(found) == [
        "column apps.stranger is in the database and not in this version",
        "table saga_notes is in this version and not in the database",
    ]


async def test_each_call_logs_one_line(empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await migrator.upgrade(empty_url)
    await migrator.upgrade(empty_url)
    await migrator.check(empty_url)
    assert [record.getMessage() for record in caplog.records] == [
        f"schema upgraded from nothing to {migrator.HEAD}",
        f"schema {migrator.HEAD}",
        "schema is as expected",
    ]


async def test_many_upgrades_at_once_are_one(database: Database, empty_url: str) -> None:
    await asyncio.gather(*(migrator.upgrade(empty_url) for _ in range(3)))
    assert await migrator.current(database) == migrator.HEAD
    assert await migrator.check(empty_url) == []


async def test_a_database_that_is_ahead_is_left_alone(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    async with database.begin() as tx:
        await tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaMismatch, match="9999"):
        await migrator.upgrade(empty_url)
    assert await migrator.current(database) == "9999"


@pytest.mark.servers
async def test_an_upgrade_cut_off_half_way_can_be_run_again(mariadb_url: str) -> None:
    await migrator.upgrade(mariadb_url)
    sql.run_sql(
        mariadb_url,
        "DROP TABLE job_group",
        "DROP INDEX ix_outbox_claimed_until ON outbox",
        "ALTER TABLE apps DROP COLUMN progress",
        "DROP TABLE dead_letters",
        "DELETE FROM alembic_version",
    )
    await migrator.upgrade(mariadb_url)
    assert await migrator.check(mariadb_url) == []


async def test_a_database_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await migrator.upgrade(f"postgresql+asyncpg://nobody@127.0.0.1:{free_port()}/x")


APPS = {
    "id": "bigint",
    "app_name": "text",
    "created_by": "text",
    "state": "text",
    "created_at": "time",
    "updated_at": "time",
    "version": "bigint",
}
HISTORY = {
    "id": "bigint",
    "app_id": "bigint",
    "from_state": "text",
    "to_state": "text",
    "reason": "text",
    "correlation_id": "text",
    "at": "time",
}
MEANS = {
    "bigint": ("BIGINT", "INTEGER"),
    "text": ("VARCHAR", "TEXT"),
    "time": ("TIMESTAMP", "DATETIME"),
}


@pytest.mark.req("S3-35", "S3-36", "S3-37")
async def test_apps_and_their_history_are_as_the_document_has_them(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)

    def look(connection: Connection) -> None:
        found = inspect(connection)
        for table, wanted in (("apps", APPS), ("app_state_history", HISTORY)):
            types = {column["name"]: str(column["type"]).upper() for column in found.get_columns(table)}
            for name, meaning in wanted.items():
                assert types[name].startswith(MEANS[meaning]), (table, name, types[name])
            assert found.get_pk_constraint(table)["constrained_columns"] == ["id"]
        assert ["app_name"] in [unique["column_names"] for unique in found.get_unique_constraints("apps")]
        (foreign,) = found.get_foreign_keys("app_state_history")
        assert (foreign["constrained_columns"], foreign["referred_table"]) == (["app_id"], "apps")
        uniques = [unique["column_names"] for unique in found.get_unique_constraints("app_state_history")]
        assert ["app_id"] not in uniques, "one app has many rows"

    await database.inspect(look)


async def test_the_migration_itself_keeps_rows_from_getting_stuck(database: Database, empty_url: str) -> None:
    await migrator.upgrade(empty_url)
    insert = text(
        "INSERT INTO apps (app_name, created_by, state, created_at, updated_at, version, correlation_id, attempt,"
        " wait_ms, data, definition_version, blocker)"
        " VALUES ('x', 'x', :state, '2026-01-01', '2026-01-01', 1, 'c', 1, 0, '{}', 1, :blocker)"
    )
    async with database.begin() as tx:
        await tx.execute(insert, {"state": "COMPLETED", "blocker": None})
    illegal: list[dict[str, str | None]] = [
        {"state": "REGISTERING", "blocker": None},
        {"state": "COMPLETED", "blocker": "paused"},
    ]
    for values in illegal:

        async def work(tx: Transaction, values: dict[str, str | None] = values) -> None:
            await tx.execute(insert, values)

        with pytest.raises(Invalid):
            await database.run(work)
