"""Does `fenced` refuse what a former holder of a shard writes, by the function of the page about shard members?"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from orchestrix import ShardLost, ShardMember
from orchestrix.bootstrap.context import COORDINATOR
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.persistence.engine import Database
from tests.documents import ROOT, block
from tests.integration.shards.test_coordinators import SERVICE, SETTINGS, node_of
from tests.support import eventually

PAGE = ROOT / "docs" / "shard-members.md"
COUNT = 4

Store = Callable[[ShardMember, AsyncEngine, int, str], Coroutine[Any, Any, None]]


@pytest.fixture
def store() -> Store:
    """The page's function."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "python", "member.fenced(tx, shard)"), names)
    made: Store = names["store"]
    return made


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """An author's own database."""
    made = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'own.db'}")
    async with made.begin() as tx:
        await tx.execute(text(block(PAGE, "sql", "CREATE TABLE")))
        await tx.execute(text("CREATE TABLE orders (shard INTEGER, id TEXT)"))
    yield made
    await made.dispose()


@pytest.fixture
async def url(sqlite_store: str) -> AsyncIterator[str]:
    """A broker at which a node serves members."""
    server, database = EmbeddedBroker(), Database(sqlite_store)
    await server.start()
    node = node_of(database, server.url, "n-1", COORDINATOR)
    await node.start()
    yield server.url
    await node.stop()
    await server.stop()
    await database.close()


async def written(engine: AsyncEngine) -> set[tuple[int, str]]:
    async with engine.connect() as connection:
        return {(int(row[0]), str(row[1])) for row in await connection.execute(text("SELECT shard, id FROM orders"))}


async def test_a_former_holder_writes_nothing_however_late_it_is(url: str, engine: AsyncEngine, store: Store) -> None:
    members: dict[str, ShardMember] = {}
    contexts: dict[tuple[str, int], contextvars.Context] = {}

    def made(worker: str) -> ShardMember:
        async def work(shard: int, epoch: int) -> None:
            contexts[worker, shard] = contextvars.copy_context()
            await store(members[worker], engine, shard, f"of {worker}")
            await asyncio.Event().wait()

        timeout_s = SETTINGS.shards.heartbeat_timeout
        members[worker] = ShardMember(SERVICE, worker, COUNT, work, broker_url=url, heartbeat_timeout=timeout_s)
        return members[worker]

    async with made("w-1") as one:
        assert await one.wait_until(lambda member: len(member.shards) == COUNT, 30)
        await eventually(lambda: _has(engine, {(shard, "of w-1") for shard in range(COUNT)}), deadline=20)
        async with made("w-2") as two:
            assert await two.wait_until(lambda member: len(member.shards) == 2, 30)
            moved, kept = min(two.shards), min(one.shards)
            await eventually(lambda: _has(engine, {(shard, "of w-2") for shard in two.shards}), deadline=20)
            before = await written(engine)
            loop = asyncio.get_running_loop()
            with pytest.raises(ShardLost, match=f"shard {moved} was given to a process under the later epoch"):
                await contexts["w-1", moved].run(loop.create_task, store(one, engine, moved, "late"))
            with pytest.raises(ShardLost, match=f"shard {moved} is not this process's"):
                await store(one, engine, moved, "late, from elsewhere")
            assert await written(engine) == before
            await contexts["w-1", kept].run(loop.create_task, store(one, engine, kept, "still"))
            await store(two, engine, moved, "by its owner")
            assert await written(engine) == before | {(kept, "still"), (moved, "by its owner")}
            assert one.owns(kept, one.shards[kept])
            assert not one.owns(kept, one.shards[kept] + 1)
            assert not one.owns(moved)


async def _has(engine: AsyncEngine, rows: set[tuple[int, str]]) -> bool:
    return rows <= await written(engine)
