"""Does SQLite on virtual time behave as SQLite does, and fail as a database can?"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrix.errors import OutcomeUnknown, Unavailable
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.testing.simulation.inline_sqlite import BUSY_TIMEOUT_S, SqliteClient, SqliteFile
from orchestrix.testing.simulation.virtual_time import START_S, VirtualLoop, elapse


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    template = tmp_path / "template.db"
    raw = sqlite3.connect(template)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE things (name TEXT PRIMARY KEY)")
    raw.close()
    opened = SqliteFile(tmp_path / "test.db", template=template, delay=lambda: 0.01)
    yield opened
    opened.close()


@pytest.fixture
def database(file: SqliteFile) -> Database:
    return SqliteClient(file).database()


async def add(tx: Transaction, name: str) -> None:
    await tx.execute(text("INSERT INTO things VALUES (:name)"), {"name": name})


def names(file: SqliteFile) -> list[str]:
    return [name for (name,) in file.query("SELECT name FROM things ORDER BY name")]


async def write(database: Database, *things: str, pause: float = 0.0) -> None:
    async with database.begin() as tx:
        for thing in things:
            await add(tx, thing)
        await elapse(pause)


def test_what_is_committed_can_be_seen(loop: VirtualLoop, file: SqliteFile, database: Database) -> None:
    loop.run_until_complete(write(database, "a", "b"))
    assert names(file) == ["a", "b"]
    assert START_S < loop.time() < START_S + 1.0


def test_what_raises_is_undone(loop: VirtualLoop, file: SqliteFile, database: Database) -> None:
    async def fail() -> None:
        async with database.begin() as tx:
            await add(tx, "a")
            raise ValueError

    with pytest.raises(ValueError):
        loop.run_until_complete(fail())
    assert names(file) == []


def test_readers_see_what_is_committed_while_one_writes(loop: VirtualLoop, file: SqliteFile) -> None:
    writer, reader = SqliteClient(file).database(), SqliteClient(file).database()

    async def days() -> list[int]:
        writing = asyncio.ensure_future(write(writer, "a", pause=1.0))
        seen = []
        for _ in range(2):
            await elapse(0.7)
            async with reader.read() as connection:
                seen.append((await connection.execute(text("SELECT count(*) FROM things"))).scalar_one())
        await writing
        return seen

    assert loop.run_until_complete(days()) == [0, 1]


def test_writers_of_two_processes_take_turns(loop: VirtualLoop, file: SqliteFile) -> None:
    one, other = SqliteClient(file).database(), SqliteClient(file).database()

    async def days() -> None:
        await asyncio.gather(write(one, "a", pause=2.0), write(other, "b", pause=2.0))

    loop.run_until_complete(days())
    assert names(file) == ["a", "b"]
    assert loop.time() > START_S + 4.0


def test_a_turn_is_not_waited_for_for_ever(loop: VirtualLoop, file: SqliteFile) -> None:
    one, other = SqliteClient(file).database(), SqliteClient(file).database()

    async def days() -> None:
        writing = asyncio.ensure_future(write(one, "a", pause=BUSY_TIMEOUT_S + 2.0))
        await elapse(0.5)
        with pytest.raises(Unavailable, match="locked"):
            await write(other, "b")
        await writing

    loop.run_until_complete(days())
    assert names(file) == ["a"]


def test_the_dead_leave_their_turn_and_their_writes(loop: VirtualLoop, file: SqliteFile) -> None:
    dying, waiting, other = (SqliteClient(file) for _ in range(3))
    process = loop.process("p")
    process.on_death += [dying.disconnect, waiting.disconnect]

    async def days() -> None:
        process.spawn(write(dying.database(), "a", pause=60.0))
        await elapse(0.5)
        process.spawn(write(waiting.database(), "b"))
        await elapse(0.5)
        writing = asyncio.ensure_future(write(other.database(), "c"))
        await elapse(0.5)
        process.kill()
        await writing

    loop.run_until_complete(days())
    assert names(file) == ["c"]
    assert loop.time() < START_S + 3.0


def test_an_outage_undoes_and_refuses(loop: VirtualLoop, file: SqliteFile, database: Database) -> None:
    async def days() -> None:
        writing = asyncio.ensure_future(write(database, "a", pause=1.0))
        await elapse(0.5)
        file.fail()
        with pytest.raises(Unavailable):
            await writing
        with pytest.raises(Unavailable):
            await write(database, "b")
        file.recover()
        await write(database, "c")

    loop.run_until_complete(days())
    assert names(file) == ["c"]


@pytest.mark.parametrize(("done", "left"), [(True, ["a"]), (False, [])])
def test_a_commit_whose_answer_is_lost(
    loop: VirtualLoop, file: SqliteFile, database: Database, done: bool, left: list[str]
) -> None:
    file.commit_lost = lambda: done
    with pytest.raises(OutcomeUnknown):
        loop.run_until_complete(write(database, "a"))
    assert names(file) == left


def test_a_cancelled_writer_leaves_its_turn(loop: VirtualLoop, file: SqliteFile) -> None:
    one, other = SqliteClient(file).database(), SqliteClient(file).database()

    async def days() -> None:
        first = asyncio.ensure_future(write(one, "a", pause=3.0))
        await elapse(0.5)
        second = asyncio.ensure_future(write(other, "b"))
        await elapse(0.5)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await write(other, "c")

    loop.run_until_complete(days())
    assert names(file) == ["a", "c"]


def test_a_connection_that_was_lost_while_nobody_used_it_takes_no_turn(loop: VirtualLoop, file: SqliteFile) -> None:
    one, other = SqliteClient(file).database(), SqliteClient(file).database()

    async def days() -> None:
        await write(one, "a")
        file.fail()
        file.recover()
        with pytest.raises(Unavailable):
            await write(one, "b")
        await write(other, "c")
        await write(one, "d")

    loop.run_until_complete(days())
    assert names(file) == ["a", "c", "d"]
    assert loop.time() < START_S + 1.0


def test_more_than_the_pool_holds_wait_for_a_place(loop: VirtualLoop, database: Database) -> None:
    async def read() -> int:
        async with database.read() as connection:
            await elapse(1.0)
            return int((await connection.execute(text("SELECT 1"))).scalar_one())

    async def days() -> list[int]:
        return await asyncio.gather(*(read() for _ in range(25)))

    assert loop.run_until_complete(days()) == [1] * 25
    assert START_S + 3.0 < loop.time() < START_S + 4.0
