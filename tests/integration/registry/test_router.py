"""Do other tasks and transactions go on while very many executors are picked?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.domain.registry.routing import Strategy, UnknownExecutor
from orchestrix.errors import NotFound
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.registry.router import ExecutorRouter, RouteRequest, pick_in
from tests.integration.registry.build import ONE, SHOP, TWO, group_of, listed
from tests.support import eventually

MANY = [f"http://10.0.{place // 250}.{place % 250 + 1}:9999" for place in range(1000)]
PICKS = 10_000


@pytest.mark.parametrize(
    ("strategy", "count"),
    [(Strategy.CONSISTENT_HASH, PICKS // 10), (Strategy.WEIGHTED, PICKS // 10), (Strategy.ROUND_ROBIN, PICKS)],
)
async def test_other_tasks_run_all_the_time(database: Database, strategy: Strategy, count: int) -> None:
    await group_of(database, MANY)
    router = ExecutorRouter(database)
    routing = asyncio.create_task(router.route(SHOP, RouteRequest(strategy, "k", count=count)))
    turns = 0
    while not routing.done():
        await asyncio.sleep(0)
        turns += router._picking.locked()  # not those while the database is read
    assert len(await routing) == count
    assert turns >= count // 2, "every 2,000 candidates"


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy.FIRST,
        Strategy.LAST,
        Strategy.FAILOVER,
        Strategy.ADDRESS,
        Strategy.LEAST_LOADED,
        Strategy.SHARDING_BROADCAST,
    ],
)
async def test_what_is_always_the_same_is_picked_once(database: Database, strategy: Strategy) -> None:
    await group_of(database, MANY)
    router = ExecutorRouter(database)
    picks = await router.route(SHOP, RouteRequest(strategy, "k", MANY[7], PICKS))
    assert (len(picks), len({id(one) for one in picks})) == (PICKS, 1)
    assert await router.route(SHOP, RouteRequest(strategy, "k", MANY[7])) == picks[:1]


async def test_the_group_is_free_while_executors_are_picked(database: Database) -> None:
    await group_of(database, [ONE, TWO])
    router = ExecutorRouter(database)

    async def locked() -> ExecutorGroup | None:
        async with database.begin() as tx:
            return await groups.lock(tx, SHOP)

    async def moved() -> bool:
        group = await locked()
        return group is not None and group.turn == PICKS

    async with router._picking:  # no pick is made before this ends
        routing = asyncio.create_task(router.route(SHOP, RouteRequest(Strategy.ROUND_ROBIN, count=PICKS)))
        await eventually(moved, deadline=20)
        assert not routing.done()
    assert [one.addresses for one in await routing] == [(ONE,), (TWO,)] * (PICKS // 2)


@pytest.mark.req("S2-38")
async def test_a_pick_in_a_transaction_takes_a_turn_if_that_commits(database: Database) -> None:
    await group_of(database, [ONE, TWO])
    request = RouteRequest(Strategy.ROUND_ROBIN)

    async def failing(tx: Transaction) -> None:
        assert (await pick_in(tx, SHOP, request)).addresses == (ONE,)
        await pick_in(tx, "nobody", request)

    with pytest.raises(NotFound):
        await database.run(failing)
    picks = [await database.run(lambda tx: pick_in(tx, SHOP, request)) for _ in range(3)]
    assert [one.addresses for one in picks] == [(ONE,), (TWO,), (ONE,)]
    with pytest.raises(UnknownExecutor):
        await database.run(lambda tx: pick_in(tx, SHOP, RouteRequest(Strategy.ADDRESS, address="x")))
    assert (await listed(database)).turn == 3
