"""Do all nodes together do no more per second than they may?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import select, update

from orchestrix import clock
from orchestrix.persistence import throttle
from orchestrix.persistence.engine import Database
from orchestrix.persistence.tables import throttles

MINUTE = timedelta(minutes=1)


async def take(database: Database, wanted: int, per_second: float = 5, name: str = "expiry") -> int:
    return await database.run(lambda tx: throttle.take(tx, name, wanted, per_second))


async def put(database: Database, tokens: float, ago: timedelta) -> None:
    """The bucket is as it was left `ago`."""
    async with database.begin() as tx:
        values = {"tokens_micro": int(tokens * 1_000_000), "at": tx.now() - ago}
        await tx.execute(update(throttles).values(values))


async def ahead(database: Database) -> timedelta:
    """By how much its time is later than now."""
    async with database.read() as connection:
        query = select(throttles.c.at, connection.dialect.clock(connection.now()))
        at, now = (await connection.execute(query)).one()
    return timedelta(seconds=(at - now).total_seconds())


async def test_one_seconds_worth_is_there_at_once_and_no_more(database: Database) -> None:
    assert await take(database, 3, 0.01) == 1, "less than one per second is still one"
    assert await take(database, 3, 0.01) == 0
    assert await take(database, 2, 1000, "other") == 2
    assert await take(database, 0) == 0
    assert await take(database, 3, 0) == 0


async def test_what_was_not_taken_stays(database: Database) -> None:
    assert await take(database, 2, 0.01) == 1
    await put(database, 4.5, timedelta())
    assert await take(database, 3, 5) == 3
    await put(database, 1.5, timedelta())
    assert await take(database, 3, 5) == 1


async def test_it_fills_with_time_up_to_one_second(database: Database) -> None:
    await take(database, 1)
    await put(database, 0.5, timedelta(seconds=60))
    assert await take(database, 100, 5) == 5
    await put(database, 0.5, timedelta(seconds=60))
    assert await take(database, 100, 0.1) == 1
    await put(database, 0, timedelta(seconds=30))
    assert await take(database, 100, 0.01) == 0, "a third of one"


async def test_a_limit_that_was_lowered_holds_at_once(database: Database) -> None:
    await take(database, 1, 1000)
    assert await take(database, 1000, 3) == 3


async def test_a_clock_that_was_put_back_stops_nothing(database: Database) -> None:
    await take(database, 1)
    await put(database, 2, -MINUTE)
    assert await take(database, 5, 0.01) == 1
    assert await ahead(database) <= timedelta(0), "time counts from now on"


async def test_who_waited_counts_no_time_twice(database: Database) -> None:
    await take(database, 1)
    await put(database, 2, -timedelta(seconds=5))
    assert await take(database, 5, 5) == 2
    assert await ahead(database) > timedelta(0), "until then it was counted by whoever was first"


async def test_nodes_share_what_there_is(database: Database, peer: Database) -> None:
    started = clock.monotonic()
    granted = await asyncio.gather(*(take(node, 4, 10) for node in [database, peer] * 10))
    passed = clock.monotonic() - started
    assert 10 <= sum(granted) <= 10 + 10 * (passed + 0.1)


async def test_what_was_taken_in_vain_is_given_back(database: Database) -> None:
    try:
        async with database.begin() as tx:
            assert await throttle.take(tx, "expiry", 5, 5) == 5
            raise RuntimeError("the batch failed")
    except RuntimeError:
        pass
    assert await take(database, 5) == 5
