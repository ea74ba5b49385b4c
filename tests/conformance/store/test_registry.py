"""Are executors registered, removed and grouped as the registry promises, on each database?"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from orchestrix.domain.registry.routing import Strategy
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, listeners, registrations
from orchestrix.persistence.registry.registrations import GOODBYE, SILENT, Heartbeat, RegisteredExecutor, Removal
from orchestrix.persistence.tables import job_registry
from orchestrix.registry.router import ExecutorRouter, RouteRequest

ONE, TWO, THREE = (f"http://10.0.0.{place}:9999" for place in (1, 2, 3))
SECOND = timedelta(seconds=1)


async def registered(database: Database, *apps: str) -> list[RegisteredExecutor]:
    async with database.read() as connection:
        return await registrations.of_apps(connection, apps or None)


async def beat(database: Database, *heartbeats: Heartbeat, after_s: float = 0.0) -> None:
    at = database.now() + timedelta(seconds=after_s)
    async with database.begin() as tx:
        await registrations.record(tx, heartbeats, at)


@pytest.mark.req("S2-8", "S2-14", "S2-18", "S2-19")
async def test_a_second_heartbeat_refreshes_the_row_of_the_first(database: Database) -> None:
    await beat(database, Heartbeat("shop", ONE, "a", load=0.25), Heartbeat("shop", TWO), Heartbeat("Shop", ONE))
    before = {(one.app, one.address): one for one in await registered(database)}
    await beat(database, Heartbeat("shop", ONE, "b", "DRAINING", 7, None), after_s=30)
    after = {(one.app, one.address): one for one in await registered(database)}
    assert set(after) == set(before) == {("shop", ONE), ("shop", TWO), ("Shop", ONE)}
    old, new = before["shop", ONE], after["shop", ONE]
    assert (old.instance, old.state, old.weight, old.load) == ("a", "UP", 1, 0.25)
    assert (new.instance, new.state, new.weight, new.load) == ("b", "DRAINING", 7, None)
    assert new.first_seen == old.first_seen == old.last_seen < new.last_seen
    assert after["shop", TWO] == before["shop", TWO]


async def test_heartbeats_of_one_executor_at_many_nodes_make_one_row(database: Database) -> None:
    await asyncio.gather(*(beat(database, Heartbeat("shop", ONE), Heartbeat("shop", TWO)) for _ in range(10)))
    assert [one.address for one in await registered(database)] == [ONE, TWO]


async def test_apps_do_not_touch_each_other(database: Database) -> None:
    await beat(database, Heartbeat("shop", ONE), Heartbeat("billing", ONE), Heartbeat("billing", TWO))
    assert [one.address for one in await registered(database, "billing")] == [ONE, TWO]
    async with database.begin() as tx:
        assert await registrations.counts(tx) == {"billing": 2, "shop": 1}
        assert await registrations.counts(tx, ["shop"]) == {"shop": 1}
        assert set(await registrations.among(tx, [("shop", ONE), ("shop", TWO)])) == {("shop", ONE)}
        await registrations.delete_rows(tx, [("billing", ONE)])
    assert [(one.app, one.address) for one in await registered(database)] == [("billing", TWO), ("shop", ONE)]


async def test_a_lock_makes_no_row(database: Database) -> None:
    async with database.begin() as tx:
        assert await registrations.lock(tx, ("shop", ONE), database.now()) is None
    assert await registered(database) == []
    await beat(database, Heartbeat("shop", ONE, "a"))
    async with database.begin() as tx:
        found = await registrations.lock(tx, ("shop", ONE), database.now())
    assert [found] == await registered(database)


async def test_a_heartbeat_and_a_removal_of_one_executor_wait_for_each_other(database: Database) -> None:
    """The one that comes second sees what the first has committed: no order leaves a row after the goodbye."""

    async def leave() -> None:
        async def work(tx: Transaction) -> None:
            async with asyncio.timeout(10):
                await registrations.lock(tx, ("shop", ONE), database.now())
                gone = Removal("shop", ONE, "a", GOODBYE, None, database.now())
                await registrations.record_removals(tx, [gone])
                await registrations.delete_rows(tx, [("shop", ONE)])

        await database.run(work)

    async def late_beat() -> None:
        async def work(tx: Transaction) -> None:
            await registrations.record(tx, [Heartbeat("shop", ONE, "a")], database.now())
            since = database.now() - timedelta(seconds=90)
            if await registrations.removals(tx, since, ["shop"], GOODBYE):
                await registrations.delete_rows(tx, [("shop", ONE)])

        await database.run(work)

    for _ in range(20):
        await asyncio.gather(late_beat(), leave(), late_beat())
        assert await registered(database) == []
        async with database.begin() as tx:
            await registrations.prune_removals(tx, database.now() + timedelta(days=1), SECOND)


@pytest.mark.req("S2-3", "S2-10")
async def test_only_the_silent_are_stale_the_longest_first(database: Database) -> None:
    await beat(database, Heartbeat("shop", ONE), after_s=-100)
    await beat(database, Heartbeat("shop", TWO), after_s=-95)
    await beat(database, Heartbeat("shop", THREE), after_s=-80)
    async with database.begin() as tx:
        before = database.now() - timedelta(seconds=90)
        assert [one.address for one in await registrations.stale(tx, before, 10)] == [ONE, TWO]
        assert [one.address for one in await registrations.stale(tx, before, 1)] == [ONE]


async def test_heartbeats_of_the_future_are_of_now(database: Database) -> None:
    await beat(database, Heartbeat("shop", ONE), after_s=3600)
    await beat(database, Heartbeat("shop", TWO))
    async with database.begin() as tx:
        now = database.now()
        assert await registrations.correct_future(tx, now) == 1
        assert await registrations.correct_future(tx, now) == 0
    found = {one.address: (one.first_seen, one.last_seen) for one in await registered(database)}
    assert found[ONE] == (now, now)
    assert found[TWO] < (now, now)


async def test_removals_are_found_and_forgotten(database: Database) -> None:
    now = database.now()
    old, new, other = (
        Removal("shop", ONE, "a", SILENT, now - 700 * SECOND, now - 601 * SECOND),
        Removal("shop", ONE, None, GOODBYE, None, now - SECOND),
        Removal("billing", TWO, "b", GOODBYE, now, now),
    )
    async with database.begin() as tx:
        await registrations.record_removals(tx, [old, new, other])
        assert await registrations.removals(tx, now - 900 * SECOND) == [other, new, old]
        assert await registrations.removals(tx, now - 600 * SECOND, ["shop"]) == [new]
        assert await registrations.removals(tx, now - 900 * SECOND, reason=GOODBYE) == [other, new]
        await registrations.prune_removals(tx, now, 600 * SECOND)
        assert await registrations.removals(tx, now - 900 * SECOND) == [other, new]


@pytest.mark.req("S2-9", "S2-20", "S2-23", "S2-32")
async def test_an_auto_group_has_who_takes_jobs_in_the_order_of_arrival(database: Database) -> None:
    now = database.now()
    async with database.begin() as tx:
        assert (await groups.insert_if_absent(tx, "shop", None, now)).addresses == ()
    await beat(database, Heartbeat("shop", TWO))
    others = Heartbeat("shop", THREE, state="DRAINING"), Heartbeat("billing", THREE)
    await beat(database, Heartbeat("shop", ONE), *others, after_s=1)
    async with database.begin() as tx:
        assert await groups.outdated(tx, await registrations.of_apps(tx)) == ["shop"]
        assert await groups.refresh(tx, ["shop", "none"], now) == ["shop"]
        assert await groups.refresh(tx, ["shop"], now) == []
        assert await groups.outdated(tx, await registrations.of_apps(tx)) == []
        found = await groups.get(tx, "shop")
        assert found is not None
        assert (found.address_type, found.addresses) == (groups.AUTO, (TWO, ONE))
        assert await registrations.set_drained(tx, [("shop", TWO), ("shop", "none")], now) == 1
        await groups.refresh(tx, ["shop"], now)
        assert [one.addresses for one in await groups.listed(tx)] == [(ONE,)]


@pytest.mark.req("S2-6", "S2-7")
async def test_the_tables_say_which_executors_an_app_has(database: Database) -> None:
    """As a person reads them with SQL."""
    await beat(database, Heartbeat("shop", TWO))
    await beat(database, Heartbeat("shop", ONE), Heartbeat("billing", THREE), after_s=1)
    noted = {(one.app, one.address): one.last_seen for one in await registered(database)}
    async with database.begin() as tx:
        await groups.set_addresses(tx, "shop", None, database.now())
        await groups.set_addresses(tx, "billing", [ONE], database.now())
    times = job_registry.c.update_time
    async with database.read() as connection:
        query = text("SELECT registry_key, registry_value, update_time FROM job_registry")
        rows = await connection.execute(query.columns(update_time=times.type))
        assert {(app, address): at for app, address, at in rows} == noted
        found = await connection.execute(text("SELECT app_name, address_list FROM job_group"))
        assert {(app, tuple(addresses.split(","))) for app, addresses in found} == {
            ("shop", (TWO, ONE)),
            ("billing", (ONE,)),
        }


@pytest.mark.req("S2-24", "S2-33")
async def test_a_manual_group_keeps_its_addresses(database: Database) -> None:
    now = database.now()
    async with database.begin() as tx:
        group, made = await groups.set_addresses(tx, "shop", [THREE, ONE], now)
        assert (group.address_type, group.addresses, made) == (groups.MANUAL, (THREE, ONE), True)
    await beat(database, Heartbeat("shop", TWO))
    async with database.begin() as tx:
        assert await groups.outdated(tx, await registrations.of_apps(tx)) == []
        assert await groups.refresh(tx, ["shop"], now) == []
        assert await groups.get(tx, "shop") == group
        again, made = await groups.set_addresses(tx, "shop", [THREE, ONE], now + SECOND)
        assert (again, made) == (group, False)
        auto, made = await groups.set_addresses(tx, "shop", None, now + SECOND)
        assert (auto.address_type, auto.addresses, made) == (groups.AUTO, (TWO,), False)
        assert await groups.delete_group(tx, "shop")
        assert not await groups.delete_group(tx, "shop")
        assert await groups.get(tx, "shop") is None
    assert [one.address for one in await registered(database)] == [TWO]


async def test_a_thousand_long_addresses_fit_into_a_list(database: Database) -> None:
    addresses = [f"http://{place:04}.{'x' * 230}.example:9999" for place in range(1000)]
    assert {len(one) for one in addresses} <= set(range(250, 256))
    async with database.begin() as tx:
        group, _ = await groups.set_addresses(tx, "shop", addresses, database.now())
    assert group.addresses == tuple(addresses)


async def test_two_that_register_at_once_are_both_in_the_list(database: Database) -> None:
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", None, database.now())

    async def register(address: str) -> None:
        async def work(tx: Transaction) -> None:
            await registrations.record(tx, [Heartbeat("shop", address)], database.now())
            await groups.refresh(tx, ["shop"], database.now())

        await database.run(work)

    addresses = [f"http://10.0.1.{place}:9999" for place in range(20)]
    await asyncio.gather(*map(register, addresses))
    async with database.read() as connection:
        found = await groups.get(connection, "shop")
    assert found is not None
    assert sorted(found.addresses) == sorted(addresses)


async def test_turns_count_in_the_groups_row(database: Database) -> None:
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", None, database.now())
        await groups.take_turns(tx, "shop", 1)
        await groups.take_turns(tx, "shop", 10_000)
        found = await groups.lock(tx, "shop")
    assert found is not None
    assert found.turn == 10_001


@pytest.mark.req("S2-38")
async def test_calls_at_once_take_turns_of_their_own(database: Database) -> None:
    async with database.begin() as tx:
        await groups.set_addresses(tx, "shop", [ONE, TWO, THREE], database.now())
    router, request = ExecutorRouter(database), RouteRequest(Strategy.ROUND_ROBIN, count=2)
    picks = await asyncio.gather(*(router.route("shop", request) for _ in range(12)))
    assert Counter(pick.addresses for several in picks for pick in several) == {(ONE,): 8, (TWO,): 8, (THREE,): 8}


async def test_where_nodes_listen(database: Database) -> None:
    now = database.now()
    async with database.begin() as tx:
        await listeners.record(tx, "n1", [("10.0.0.1", 8080), ("::1", 8080)], now - 100 * SECOND)
        await listeners.record(tx, "n2", [("10.0.0.2", 8080)], now)
        assert await listeners.living(tx, now - 90 * SECOND) == {("10.0.0.2", 8080)}
        await listeners.record(tx, "n1", [("10.0.0.1", 8080), ("::1", 8080)], now)
        assert len(await listeners.living(tx, now - 90 * SECOND)) == 3
        await listeners.forget(tx, "n2")
        assert await listeners.living(tx, now - 90 * SECOND) == {("10.0.0.1", 8080), ("::1", 8080)}
        await listeners.prune(tx, now + 91 * SECOND, 90 * SECOND)
        assert await listeners.living(tx, now - 900 * SECOND) == set()


async def test_many_are_removed_and_drained_in_one_statement_for_each_app(database: Database) -> None:
    executors = [(app, f"http://10.0.2.{place}:9999") for app in ("billing", "shop") for place in range(50)]
    await beat(database, *(Heartbeat(app, address) for app, address in executors))
    sent: list[object] = []
    async with database.begin() as tx:
        execute = tx.execute

        async def counted(statement: Any, parameters: Any = None) -> Any:
            sent.append(statement)
            return await execute(statement, parameters)

        tx.execute = counted  # type: ignore[method-assign]
        assert await registrations.set_drained(tx, executors[10:], database.now()) == 90
        await registrations.delete_rows(tx, executors[:75])
    assert len(sent) == 4
    left = await registered(database)
    assert [(one.app, one.address) for one in left] == sorted(executors[75:])
    assert all(one.drained_at is not None for one in left)
