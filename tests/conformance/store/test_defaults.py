"""Does anything depend on what a server, a database or a role has as its default?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text

from orchestrix.domain.jobs import FAILED
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_logs, jobs, schedules
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.persistence.schema import migrator
from orchestrix.saga.state import StateChange
from tests.conformance.store.build import started, stepped, stored
from tests.conformance.store.conftest import UNUSUAL
from tests.conformance.store.test_dead_letters import test_the_widest_letters_fit_everywhere
from tests.conformance.store.test_history import test_a_version_is_told_once
from tests.conformance.store.test_instances import (
    test_an_instance_comes_back_as_it_went_in,
    test_everything_that_moves_is_written,
    test_of_two_changes_of_one_version_one_is_refused,
    test_times_are_kept_to_the_microsecond,
)
from tests.conformance.store.test_jobs import inserted, pending, running, test_a_job_comes_back_as_it_went_in
from tests.conformance.store.test_jobs import stored as job_stored
from tests.conformance.store.test_outbox import test_of_what_is_withdrawn_those_are_known_that_nobody_had
from tests.conformance.store.test_pages import (
    test_a_prefix_is_meant_letter_by_letter,
    test_what_is_held_up_from_outside_is_stuck_too,
)
from tests.conformance.store.test_schedules import schedule
from tests.conformance.store.test_small_tables import (
    test_an_app_has_one_group_with_the_marker_of_its_maker,
    test_equal_notes_are_counted,
)
from tests.conformance.store.test_values import (
    NAMES,
    test_data_comes_back_as_it_went_in,
    test_names_are_told_apart_letter_by_letter,
    test_what_strangers_send_cannot_break_a_batch,
)
from tests.servers import sql
from tests.servers.maria import MariaServer

# The part of the store's tests that text, times and isolation could break runs on these databases too.
__all__ = [
    "test_a_job_comes_back_as_it_went_in",
    "test_a_prefix_is_meant_letter_by_letter",
    "test_a_version_is_told_once",
    "test_an_app_has_one_group_with_the_marker_of_its_maker",
    "test_an_instance_comes_back_as_it_went_in",
    "test_data_comes_back_as_it_went_in",
    "test_equal_notes_are_counted",
    "test_everything_that_moves_is_written",
    "test_names_are_told_apart_letter_by_letter",
    "test_of_two_changes_of_one_version_one_is_refused",
    "test_of_what_is_withdrawn_those_are_known_that_nobody_had",
    "test_the_widest_letters_fit_everywhere",
    "test_times_are_kept_to_the_microsecond",
    "test_what_is_held_up_from_outside_is_stuck_too",
    "test_what_strangers_send_cannot_break_a_batch",
]

WORDS = {"город": "Москва", "名": "東京 😀", "quote": "\\ ' \" é e\u0301"}
NAME = "Привет-01 é e\u0301 😀"


@pytest.fixture
def store_url(unlike_url: str) -> str:
    """In the place of the usual databases, for all tests here."""
    return unlike_url


async def test_a_saga_keeps_its_letters_from_its_start_to_its_end(database: Database) -> None:
    (begun,) = await stored(database, APPS, [started(NAME, by="Ада", data=WORDS)])
    change = StateChange(
        2, "APP_INITIATED", "GIT_REPO_CREATED", "повтор 2: нет сети", "Ада", "c-1", None, None, begun.created_at
    )
    async with database.begin() as tx:
        moved = stepped(begun, data={**WORDS, "repo": NAME}, state="GIT_REPO_CREATED")
        assert await instances.update(tx, APPS, [(1, moved)]) == {begun.id}
        await history.insert(tx, APPS, [(begun.id, change)])
    async with database.read() as connection:
        found = await instances.by_key(connection, APPS, "app", NAME)
        assert found is not None
        assert (found.created_by, found.data) == ("Ада", {**WORDS, "repo": NAME})
        assert await history.listing(connection, APPS, begun.id, 1, 10) == [change]


async def test_a_job_keeps_its_letters_from_its_order_to_its_end(database: Database) -> None:
    job = await running(database, handler="müllabfuhr", payload=WORDS, created_by="Ада")
    ended = replace(
        job,
        state=FAILED,
        version=job.version + 1,
        wake_at=None,
        worker_id="рабочий",
        result=WORDS,
        error={"message": NAME},
    )
    await job_stored(database, job, ended)
    line = JobLogLine(str(job.history_id), 1, job.id, "рабочий", "info", NAME, job.updated_at)
    async with database.begin() as tx:
        await job_logs.insert(tx, [line])
    async with database.read() as connection:
        found = await jobs.get(connection, job.id)
        assert found is not None
        assert (found.payload, found.result, found.error, found.worker_id) == (
            WORDS,
            WORDS,
            {"message": NAME},
            "рабочий",
        )
        assert [one.message for one in await job_logs.page(connection, job.id, 10)] == [NAME]


async def test_schedules_keep_their_letters_and_their_order(database: Database) -> None:
    names = sorted(NAMES, key=lambda name: name.encode())[:10]
    made = [
        schedule(name[:100], created_by="Ада", job={"queue": "q", "handler": "h", "payload": WORDS}) for name in names
    ]
    async with database.begin() as tx:
        for one in made:
            assert await schedules.insert(tx, one)
    async with database.read() as connection:
        found = await schedules.page(connection, 50)
    assert [(one.name, one.created_by, one.job) for one in found] == [
        (one.name, "Ада", dict(one.job)) for one in sorted(made, key=lambda one: one.name)
    ]


async def test_so_many_are_looked_for_that_the_server_makes_a_table_of_them(database: Database) -> None:
    found = await inserted(database, *(pending(database) for _ in range(3)))
    async with database.read() as connection:
        wanted = [job.id for job in found] + [f"ж{place}" for place in range(1200)]
        assert {job.id for job in await jobs.of_ids(connection, wanted)} == {job.id for job in found}


async def test_an_unusual_database_has_the_right_tables(store_url: str) -> None:
    assert await migrator.check(store_url) == []
    assert await migrator.upgrade(store_url) == []


@pytest.mark.servers
async def test_our_sessions_have_none_of_the_unusual_settings(postgresql_unusual_tables: str) -> None:
    database = Database(postgresql_unusual_tables)
    try:
        async with database.read() as connection:
            for name, value in UNUSUAL.items():
                found = (await connection.execute(text(f"SHOW {name}"))).scalar_one()
                assert name == "bytea_output" or found != value, name
    finally:
        await database.close()


@pytest.mark.servers
async def test_a_configuration_of_mariadb_changes_nothing(private_mariadb: Callable[[], MariaServer]) -> None:
    server = private_mariadb()
    unusual = {
        "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "tx_isolation": "'SERIALIZABLE'",
        "time_zone": "'+05:45'",
        "completion_type": "'CHAIN'",
        "sql_safe_updates": "1",
        "sql_select_limit": "1",
        "foreign_key_checks": "0",
        "unique_checks": "0",
        "check_constraint_checks": "0",
        "max_statement_time": "0.001",
        "character_set_server": "'latin1'",
        "collation_connection": "'latin1_general_ci'",
    }
    sql.run_sql(server.url(), *(f"SET GLOBAL {name} = {value}" for name, value in unusual.items()))
    sql.run_sql(server.url(), "CREATE DATABASE ox CHARACTER SET latin1")
    database = Database(server.url("ox"))
    try:
        await migrator.upgrade(server.url("ox"))
        await test_a_saga_keeps_its_letters_from_its_start_to_its_end(database)
        await test_a_job_keeps_its_letters_from_its_order_to_its_end(database)
        await test_times_are_kept_to_the_microsecond(database)
        async with database.read() as connection:
            for name, value in unusual.items():
                if name != "character_set_server":
                    found = (await connection.execute(text(f"SELECT @@{name}"))).scalar_one()
                    assert str(found) != value.strip("'"), name
    finally:
        await database.close()


@pytest.mark.servers
async def test_columns_with_other_collations_are_named_with_what_mends_them(mariadb_url: str) -> None:
    await migrator.upgrade(mariadb_url)
    sql.run_sql(
        mariadb_url,
        "ALTER TABLE apps MODIFY app_name varchar(200) CHARACTER SET latin1 NOT NULL",
        "ALTER TABLE jobs DEFAULT CHARACTER SET latin1",
    )
    found = [sentence.split(": run ") for sentence in await migrator.upgrade(mariadb_url)]
    assert [sentence for sentence, _ in found] == [
        "table jobs has the default collation latin1_swedish_ci in the database and utf8mb4_bin in this version",
        "column apps.app_name has the collation latin1_swedish_ci in the database and utf8mb4_bin in this version",
    ]
    assert [sentence.split(": run ") for sentence in await migrator.check(mariadb_url)] == found
    sql.run_sql(mariadb_url, *(statement for _, statement in found))
    assert await migrator.check(mariadb_url) == []


@pytest.mark.servers
async def test_a_column_of_postgresql_with_another_collation_is_named_with_what_mends_it(postgres_url: str) -> None:
    await migrator.upgrade(postgres_url)
    sql.run_sql(
        postgres_url,
        'ALTER TABLE apps ALTER app_name TYPE varchar(200) COLLATE "default"',
        'ALTER TABLE apps ALTER state TYPE varchar(40) COLLATE "POSIX"',
    )
    found = [sentence.split(": run ") for sentence in await migrator.check(postgres_url)]
    assert [sentence for sentence, _ in found] == [
        "column apps.app_name has the default collation in the database and the collation C in this version",
        "column apps.state has the collation POSIX in the database and the default collation in this version",
    ]
    sql.run_sql(postgres_url, *(statement for _, statement in found))
    assert await migrator.check(postgres_url) == []


@pytest.mark.servers
async def test_a_database_that_lacks_letters_gets_no_tables(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    other, url = f"{name}_latin", f"{postgres_url}_latin"
    made = f"CREATE DATABASE \"{other}\" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    sql.run_sql(postgres_url, made)
    try:
        with pytest.raises(ConfigError, match="encoding LATIN1"):
            await migrator.upgrade(url)
    finally:
        sql.run_sql(postgres_url, f'DROP DATABASE "{other}" WITH (FORCE)')
