"""Does each database refuse the writes of a process whose shard was given to another one, however late they are?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from orchestrix import ShardLost
from orchestrix.persistence.shards import fence
from tests.documents import ROOT, block

TABLE = "shard_epochs"
PAGE = ROOT / "docs" / "shard-members.md"


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[AsyncEngine]:
    """An author's own way into a database, with the table of the page."""
    made = create_async_engine(store_url)
    async with made.begin() as tx:
        await tx.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))
        await tx.execute(text("DROP TABLE IF EXISTS fenced_orders"))
        await tx.execute(text(block(PAGE, "sql", "CREATE TABLE")))
        await tx.execute(text("CREATE TABLE fenced_orders (id VARCHAR(20) PRIMARY KEY)"))
    yield made
    async with made.begin() as tx:
        await tx.execute(text(f"DROP TABLE {TABLE}"))
        await tx.execute(text("DROP TABLE fenced_orders"))
    await made.dispose()


async def write(engine: AsyncEngine, shard: int, epoch: int, order: str) -> None:
    async with engine.begin() as tx:
        await fence.check(tx, TABLE, shard, epoch)
        await tx.execute(text("INSERT INTO fenced_orders (id) VALUES (:id)"), {"id": order})


async def orders(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return {str(row[0]) for row in await connection.execute(text("SELECT id FROM fenced_orders"))}


async def test_a_former_holder_writes_nothing_and_a_new_one_does(engine: AsyncEngine) -> None:
    await write(engine, 3, 7, "first")
    await write(engine, 3, 7, "again")
    await write(engine, 3, 9, "newer")
    with pytest.raises(ShardLost, match=r"shard 3 was given to a process under the later epoch 9: .* under epoch 7"):
        await write(engine, 3, 7, "late")
    await write(engine, 4, 7, "other shard")
    await write(engine, 3, 9, "still")
    assert await orders(engine) == {"first", "again", "newer", "other shard", "still"}


async def test_the_first_write_of_a_new_holder_waits_for_a_transaction_of_the_former(engine: AsyncEngine) -> None:
    await write(engine, 3, 7, "first")
    async with engine.begin() as tx:
        await fence.check(tx, TABLE, 3, 7)
        newer = asyncio.create_task(write(engine, 3, 8, "newer"))
        done, _ = await asyncio.wait({newer}, timeout=0.3)
        assert not done
        await tx.execute(text("INSERT INTO fenced_orders (id) VALUES ('in time')"))
    await newer
    with pytest.raises(ShardLost):
        await write(engine, 3, 7, "late")
    assert await orders(engine) == {"first", "in time", "newer"}


async def test_two_that_write_for_a_shard_for_the_first_time_do_not_fail(engine: AsyncEngine) -> None:
    results = await asyncio.gather(
        *(write(engine, 3, 7 + n % 2, f"order-{n}") for n in range(6)), return_exceptions=True
    )
    assert [one for one in results if one is not None and not isinstance(one, ShardLost)] == []
    with pytest.raises(ShardLost):
        await write(engine, 3, 7, "late")


async def test_nothing_is_stored_by_a_transaction_that_is_rolled_back(engine: AsyncEngine) -> None:
    async with engine.connect() as tx:
        await fence.check(tx, TABLE, 3, 9)
        await tx.rollback()
    await write(engine, 3, 7, "first")


async def test_a_session_of_the_orm_is_taken_too(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await fence.check(session, TABLE, 3, 9)
    async with AsyncSession(engine) as session, session.begin():
        with pytest.raises(ShardLost):
            await fence.check(session, TABLE, 3, 8)


async def test_the_sql_of_the_page_does_the_same(engine: AsyncEngine) -> None:
    is_mysql = engine.dialect.name not in ("postgresql", "sqlite")
    upsert = block(PAGE, "sql", "ON DUPLICATE KEY" if is_mysql else "ON CONFLICT")
    *writes, last = [one for one in upsert.split(";") if one.strip()]

    async def check(epoch: int) -> object:
        async with engine.begin() as tx:
            for one in writes:
                await tx.execute(text(one), {"shard": 3, "epoch": epoch})
            given = {"shard": 3} if is_mysql else {"shard": 3, "epoch": epoch}
            return (await tx.execute(text(last), given)).scalar()

    assert (await check(7), await check(9)) == (7, 9)
    assert await check(8) == (9 if is_mysql else None)
