"""Do other tasks and transactions go on while very many executors are picked?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrix.domain.registry.routing import Strategy, UnknownExecutor
from orchestrix.errors import NotFound
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.registry.router import ExecutorRouter, RouteRequest, pick_in
from tests.conformance.store.test_jobs import pending
from tests.integration.registry.build import ONE, SHOP, THREE, TWO, group_of, listed, watched
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


async def given(database: Database, tx: Transaction, address: str) -> None:
    """An attempt is given to the executor, if the transaction commits."""
    job = pending(database, queue=None, executor_group=SHOP, routing="LEAST_LOADED", state="DISPATCHED", channels=1)
    await jobs.insert(tx, [replace(job, address=address, called_at=tx.now(), history_id=job.id)])


async def test_the_least_loaded_has_the_fewest_attempts_in_flight_then_the_least_load(database: Database) -> None:
    await group_of(database, [ONE, TWO, THREE])
    async with database.begin() as tx:
        now = tx.now()
        await registrations.record(
            tx, [Heartbeat(SHOP, one, load=load) for one, load in ((TWO, 3.0), (THREE, 2.0))], now
        )
        await given(database, tx, ONE)
    router, request = ExecutorRouter(database), RouteRequest(Strategy.LEAST_LOADED)
    [pick] = await router.route(SHOP, request)
    assert pick.addresses == (THREE,)
    async with database.begin() as tx:
        for address in (THREE, THREE, TWO, TWO):
            await given(database, tx, address)
    with watched(database) as sent:
        [pick] = await router.route(SHOP, request)
    assert (pick.addresses, pick.reason) == ((ONE,), "least loaded of 3: 1 in flight, load 0")
    assert len([one for one in sent.statements if "jobs" in one]) == 1


async def test_two_nodes_that_pick_at_once_see_each_others_attempts(database: Database, peer: Database) -> None:
    await group_of(database, [ONE, TWO])
    request, inside = RouteRequest(Strategy.LEAST_LOADED), asyncio.Event()

    async def second() -> tuple[str, ...]:
        async with peer.begin() as tx:
            inside.set()
            return (await pick_in(tx, SHOP, request)).addresses

    async with database.begin() as tx:
        [first] = (await pick_in(tx, SHOP, request)).addresses
        picking = asyncio.create_task(second())
        if database.dialect.name != "sqlite":  # there no second transaction begins
            await inside.wait()
        await given(database, tx, first)
    assert {first, *await picking} == {ONE, TWO}


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


async def test_many_picks_in_a_transaction_read_the_group_once_and_store_its_turn_once(database: Database) -> None:
    await group_of(database, [ONE, TWO])
    request = RouteRequest(Strategy.ROUND_ROBIN)

    async def picks(count: int) -> list[str]:
        async with database.begin() as tx:
            return [(await pick_in(tx, SHOP, request)).addresses[0] for _ in range(count)]

    with watched(database) as one:
        assert await picks(1) == [ONE]
    with watched(database) as many:
        assert await picks(9) == [TWO, ONE] * 4 + [TWO]
    assert len(many.statements) == len(one.statements)
    assert (await listed(database)).turn == 10
