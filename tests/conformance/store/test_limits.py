"""Do connections have the limits and modes that the design asks for?"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrix import clock
from orchestrix.errors import Contention
from orchestrix.persistence.engine import Connection, Database, Transaction
from tests.fakes.time import Shifted


async def told(connection: Connection, question: str) -> str:
    return str((await connection.execute(text(question))).scalar_one())


EXPECTED = {
    "sqlite": {
        "PRAGMA journal_mode": "wal",
        "PRAGMA synchronous": "2",
        "PRAGMA foreign_keys": "1",
        "PRAGMA busy_timeout": "10000",
    },
    "postgresql": {
        "SHOW idle_in_transaction_session_timeout": "5s",
        "SHOW lock_timeout": "2s",
        "SHOW transaction_isolation": "read committed",
        "SHOW timezone": "UTC",
        "SHOW application_name": "orchestrix",
    },
    "mysql": {
        "SELECT @@innodb_lock_wait_timeout": "2",
        "SELECT @@idle_transaction_timeout": "5",
        "SELECT @@tx_isolation": "READ-COMMITTED",
        "SELECT @@time_zone": "+00:00",
        "SELECT @@collation_connection": "utf8mb4_bin",
        "SELECT FIND_IN_SET('STRICT_ALL_TABLES', @@sql_mode) > 0": "1",
    },
}


async def test_every_connection_has_its_limits(database: Database) -> None:
    for question, answer in EXPECTED[database.dialect.name].items():
        async with database.begin() as tx:
            assert await told(tx, question) == answer, question
        async with database.read() as connection:
            assert await told(connection, question) == answer, question


async def test_a_reader_sees_what_others_commit_meanwhile(database: Database, peer: Database) -> None:
    count = "SELECT count(*) FROM broker_incarnation"
    insert = text("INSERT INTO broker_incarnation (id, incarnation, changed_at) VALUES (1, 'x', '2026-01-01')")
    async with database.read() as connection:
        assert await told(connection, count) == "0"
        async with peer.begin() as tx:
            await tx.execute(insert)
            assert await told(connection, count) == "0"
        assert await told(connection, count) == "1"


async def test_contention_is_tried_again_in_a_new_transaction(database: Database) -> None:
    seen: list[Transaction] = []

    async def work(tx: Transaction) -> str:
        seen.append(tx)
        if len(seen) < 3:
            raise Contention("deadlock")
        return await told(tx, "SELECT 'done'")

    assert await database.run(work) == "done"
    assert len({id(tx) for tx in seen}) == 3


async def test_contention_without_end_is_given_back_to_the_caller(database: Database) -> None:
    attempts = 0

    async def work(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        raise Contention("deadlock")

    with pytest.raises(Contention):
        await database.run(work, attempts=2)
    assert attempts == 2


async def test_the_clock_is_the_databases_from_the_first_use(served: Database) -> None:
    with clock.use(shifted := Shifted()):
        shifted.advance(7200)
        async with served.begin() as tx:
            assert abs((tx.now() - clock.now()).total_seconds() + 7200) < 5


async def test_time_for_which_the_machine_was_suspended_counts(
    served: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node notes when its machine wakes would be old for the others, which would take members for silent."""
    await served.ping()
    before, boottime = served.now(), clock.boottime
    monkeypatch.setattr(clock, "boottime", lambda: boottime() + 60.0)
    assert timedelta(seconds=60) <= served.now() - before < timedelta(seconds=90)


async def test_on_sqlite_the_clock_is_this_machines(sqlite_url: str) -> None:
    database = Database(sqlite_url, make=True)
    with clock.use(shifted := Shifted()):
        shifted.advance(7200)
        await database.ping()
        assert abs((database.now() - clock.now()).total_seconds()) < 5
    await database.close()


async def test_a_folder_that_is_missing_is_made(sqlite_url: str) -> None:
    deeper = sqlite_url.replace("test.db", "a/b/c/test.db")
    database = Database(deeper, make=True)
    await database.ping()
    await database.close()
    assert Path(deeper.removeprefix("sqlite+aiosqlite:///")).is_file()
