"""What does the product hear when the database is away, full, frozen or cut off?"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrix.errors import ConfigError, ConflictError, Invalid, OutcomeUnknown, SchemaMismatch, Unavailable
from orchestrix.persistence.dialects import postgresql
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.state import StateChange
from tests.conformance.store.build import some, started, stepped, stored
from tests.servers import sql
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.support import eventually, free_port

AWAY = {
    "postgresql": "postgresql+asyncpg://nobody:secret@127.0.0.1:{port}/x",
    "mariadb": "mysql+asyncmy://nobody:secret@127.0.0.1:{port}/x",
}


async def end_session_of(connection: Connection) -> None:
    """Ends the session on the server, as an administrator or a restart would."""
    postgres = connection.dialect.name == "postgresql"
    question = "SELECT pg_backend_pid()" if postgres else "SELECT CONNECTION_ID()"
    id = (await connection.execute(text(question))).scalar_one()
    url = connection.database.url.render_as_string(hide_password=False)
    sql.run_sql(url, f"SELECT pg_terminate_backend({id})" if postgres else f"KILL {id}")


async def keys(database: Database) -> list[str]:
    async with database.read() as connection:
        return [
            one.key for one in await instances.page(connection, APPS, "app", instances.InstanceFilter(), "key", 100)
        ]


@pytest.mark.parametrize("kind", AWAY)
async def test_a_server_that_is_away_is_unavailable(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(AWAY[kind].format(port=free_port()))
    with caplog.at_level(logging.DEBUG):
        for attempt in (database.ping(), stored(database, APPS, [started("x")])):
            with pytest.raises(Unavailable) as refused:
                await attempt
            assert refused.value.__cause__ is not None
            assert "secret" not in str(refused.value)
        await database.close()
    assert not [record for record in caplog.records if record.exc_info], "an ordinary outage leaves no stack trace"


async def test_a_session_ended_in_mid_transaction_is_unavailable(served: Database) -> None:
    await stored(served, APPS, [started("before")])

    async def work(tx: Transaction) -> None:
        await instances.insert(tx, APPS, [started("lost")])
        await end_session_of(tx)
        await instances.insert(tx, APPS, [started("never")])

    with pytest.raises(Unavailable) as refused:
        await served.run(work)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert await keys(served) == ["before"]


async def test_a_session_ended_before_its_commit_leaves_the_outcome_open(served: Database) -> None:
    async def work(tx: Transaction) -> None:
        await instances.insert(tx, APPS, [started("perhaps")])
        await end_session_of(tx)

    with pytest.raises(OutcomeUnknown):
        await served.run(work)
    assert await keys(served) == []


async def test_idle_sessions_that_ended_are_replaced_without_an_error(
    served: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "RECENT_USE_S", 0.0)
    async with served.read() as connection:
        await end_session_of(connection)
    assert await keys(served) == []
    await served.ping()


async def test_idle_sessions_that_are_well_are_kept(served: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "RECENT_USE_S", 0.0)
    sessions = []
    for _ in range(3):
        async with served.begin() as tx:
            sessions.append(await served.dialect.session(tx))
        async with served.read():
            pass
    assert len(set(sessions)) == 1, "a new session costs a dozen round trips, and forgets what was prepared"


async def test_a_reader_that_lost_its_session_hears_so_each_time(served: Database) -> None:
    async with served.read() as connection:
        await end_session_of(connection)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await instances.versions(connection, APPS, [1])
    await served.ping()


async def test_waiting_for_a_connection_can_be_cancelled(store_url: str) -> None:
    database = Database(store_url, pool_size=1)
    for _ in range(3):
        async with database.read():
            waiting = asyncio.create_task(database.ping())
            done, _ = await asyncio.wait({waiting}, timeout=0.05)
            assert not done
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    await database.ping()
    await database.close()


async def test_a_transaction_cannot_go_on_after_an_error(database: Database) -> None:
    (one,) = await some(database, 1)

    async def work(tx: Transaction) -> None:
        await instances.insert(tx, APPS, [started("x")])
        with pytest.raises(Invalid):
            await instances.update(tx, APPS, [(1, stepped(one, wake_at=None))])
        with pytest.raises(Invalid):
            await instances.get(tx, APPS, "app", one.id)

    with pytest.raises(Invalid):
        await database.run(work)
    assert await keys(database) == [one.key]


async def test_what_the_block_raises_is_not_committed(database: Database) -> None:
    async def work(tx: Transaction) -> None:
        await instances.insert(tx, APPS, [started("x")])
        raise KeyError("x")

    with pytest.raises(KeyError):
        await database.run(work)
    assert await keys(database) == []
    await database.ping()


async def test_an_empty_pool_is_unavailable(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.persistence.engine._POOL_TIMEOUT_S", 0.1)
    database = Database(store_url, pool_size=2)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(database.read())
        with pytest.raises(Unavailable, match="free"):
            await database.ping()
    await database.ping()
    await database.close()


async def test_a_writer_that_is_cancelled_gives_its_connection_back(store_url: str) -> None:
    database = Database(store_url, pool_size=1)
    inside = asyncio.Event()

    async def write() -> None:
        async with database.begin() as tx:
            await instances.insert(tx, APPS, [started("x")])
            inside.set()
            await asyncio.Event().wait()

    for _ in range(3):
        writer = asyncio.create_task(write())
        await inside.wait()
        inside.clear()
        writer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writer
    assert await keys(database) == []
    await database.close()


@pytest.mark.servers
async def test_a_commit_under_way_is_finished_when_its_caller_is_cancelled(postgresql_empty: str) -> None:
    sql.run_sql(
        postgresql_empty,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON apps DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    database, watcher = Database(postgresql_empty, name="writer"), Database(postgresql_empty)
    committing = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'writer' AND state = 'active' AND query ILIKE 'commit%'"
    )

    async def under_way() -> bool:
        async with watcher.read() as connection:
            return bool((await connection.execute(committing)).scalar_one())

    try:
        writer = asyncio.create_task(stored(database, APPS, [started("x")]))
        await eventually(under_way, deadline=10, message="the commit is under way")
        writer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writer
        assert await keys(watcher) == ["x"]
    finally:
        await database.close()
        await watcher.close()
        sql.run_sql(postgresql_empty, "DROP TRIGGER slow ON apps", "DROP FUNCTION slow")


@pytest.fixture
def postgresql_empty(postgresql_tables: str) -> str:
    """The tables of PostgreSQL, empty."""
    return sql.emptied(postgresql_tables)


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["private_postgres", "private_mariadb"])
async def test_a_frozen_server_is_unavailable_and_a_restarted_one_is_used_again(
    kind: str, request: pytest.FixtureRequest
) -> None:
    start: Callable[[], PostgresServer | MariaServer] = request.getfixturevalue(kind)
    server = start()
    database = Database(server.url(), statement_limit=1)
    await database.ping()
    server.pause()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable):
                await database.ping()
    finally:
        server.resume()
    await eventually(lambda: _answers(database), deadline=20)
    server.restart()
    # PostgreSQL's connections are not asked whether they live within a second of their last use: one error is allowed.
    await eventually(lambda: _answers(database), deadline=3)
    server.stop()
    with pytest.raises(Unavailable):
        await database.ping()
    await database.close()


async def _answers(database: Database) -> bool:
    try:
        await database.ping()
    except Unavailable:
        return False
    return True


async def test_a_database_without_tables_names_the_command(sqlite_url: str) -> None:
    database = Database(sqlite_url, make=True)
    with pytest.raises(SchemaMismatch, match="orchestrix db upgrade"):
        await keys(database)
    await database.close()


async def test_a_taken_key_is_a_conflict_with_its_cause(database: Database) -> None:
    (one,) = await some(database, 1)
    told = (one.id, StateChange(1, None, "A", "x", "a", "c", None, None, one.created_at))
    with pytest.raises(ConflictError) as refused:
        await database.run(lambda tx: history.insert(tx, APPS, [told, told]))
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize(
    "url", ["", "nonsense", "postgresql+psycopg://x/y", "mysql://x", "postgresql+asyncpg://x:y@h:port/z"]
)
def test_a_url_that_cannot_be_used_is_a_matter_of_configuration(url: str) -> None:
    with pytest.raises(ConfigError):
        Database(url)


async def test_a_sqlite_file_locked_by_another_process_is_unavailable(
    store_url_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.persistence.dialects.sqlite._PRAGMAS", ("PRAGMA busy_timeout = 50",))
    one, other = Database(store_url_sqlite), Database(store_url_sqlite)
    async with one.begin():
        with pytest.raises(Unavailable, match="locked"):
            await stored(other, APPS, [started("x")])
    await stored(other, APPS, [started("x")])
    await one.close()
    await other.close()


@pytest.fixture
def store_url_sqlite(sqlite_template: Path, sqlite_url: str) -> str:
    """A SQLite database with empty tables."""
    shutil.copy(sqlite_template, sqlite_url.removeprefix("sqlite+aiosqlite:///"))
    return sqlite_url
