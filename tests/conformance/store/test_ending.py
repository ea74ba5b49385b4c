"""Does a connection to SQLite end wherever the task that uses it is cancelled?"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from orchestrix.persistence.dialects.sqlite import Sqlite
from orchestrix.persistence.dialects.sqlite_connection import connection


async def _look(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))


async def _cancelled(engine: AsyncEngine, chance: random.Random) -> None:
    task = asyncio.create_task(_look(engine))
    for _ in range(chance.randrange(14)):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def test_no_task_waits_for_ever_for_a_thread_that_has_ended(tmp_path: Path) -> None:
    url = URL.create("sqlite+aiosqlite", database=str(tmp_path / "file.db"))
    engine = create_async_engine(url, **Sqlite(url).engine_options(url, "test", 1.0))
    before, chance = asyncio.all_tasks(), random.Random(7)
    for _ in range(300):
        await _cancelled(engine, chance)
    await engine.dispose()
    late = asyncio.all_tasks() - before
    if late:
        await asyncio.wait(late, timeout=5)
    assert not [task for task in late if not task.done()]


async def test_a_closed_connection_holds_no_lock_for_the_sake_of_an_unread_cursor(tmp_path: Path) -> None:
    """Such as the traceback of a cancelled task keeps."""
    file = str(tmp_path / "file.db")
    used = await connection(file, check_same_thread=False)
    used.isolation_level = None
    await used.execute("CREATE TABLE t (a)")
    await used.execute("INSERT INTO t VALUES (1), (2)")
    await used.execute("BEGIN IMMEDIATE")
    unread = await used.execute("UPDATE t SET a = a + 1 RETURNING a")
    await unread.fetchone()
    await used.close()
    other = await connection(file, timeout=0.1)
    await other.execute("BEGIN IMMEDIATE")
    rows = await other.execute_fetchall("SELECT a FROM t ORDER BY a")
    await other.close()
    assert [tuple(row) for row in rows] == [(1,), (2,)], "what was not committed is undone"
    del unread
