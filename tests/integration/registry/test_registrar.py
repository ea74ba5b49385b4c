"""Does the registrar record every heartbeat, many in one commit, and does no order of events leave a wrong row?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import DRAINING, GOODBYE, Heartbeat
from orchestrix.registry.registrar import GATHER_S, GROUP_LIMIT, GroupFull, Registrar
from tests.fakes.time import Shifted
from tests.integration.registry.build import (
    ONE,
    SHOP,
    THREE,
    TWO,
    Pause,
    drain,
    group_of,
    listed,
    record,
    registered,
    registrar_of,
    removals,
    watched,
)


def beats(count: int, app: str = SHOP) -> list[Heartbeat]:
    return [Heartbeat(app, f"http://10.0.0.1:{1000 + place}", "a") for place in range(count)]


async def all_of(registrar: Registrar, heartbeats: list[Heartbeat]) -> list[BaseException | None]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*(registrar.register(one) for one in heartbeats), return_exceptions=True)


@pytest.mark.req("S2-8", "S2-14")
async def test_heartbeats_within_half_a_second_share_one_statement(database: Database) -> None:
    await group_of(database)
    async with registrar_of(database, gather_s=GATHER_S) as registrar:
        await registrar.register(beats(1)[0])
        with watched(database) as sent:
            assert await all_of(registrar, beats(50)) == [None] * 50
        assert (sent.commits, len(sent.to("job_registry"))) == (1, 1)
    assert len(await registered(database)) == 50


async def test_the_first_after_a_pause_is_written_at_once(database: Database, time: Shifted) -> None:
    async with registrar_of(database, gather_s=60.0) as registrar:
        async with asyncio.timeout(10):
            await registrar.register(Heartbeat(SHOP, ONE))
        waiting = asyncio.create_task(registrar.register(Heartbeat(SHOP, TWO)))
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0], "it shares the next commit"
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, 10)
    async with registrar_of(database, gather_s=60.0) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE))
        time.advance(61)
        async with asyncio.timeout(10):
            await registrar.register(Heartbeat(SHOP, TWO))


async def test_the_answer_comes_after_the_commit(database: Database, peer: Database) -> None:
    async with registrar_of(database) as registrar:
        for address in (ONE, TWO):
            await registrar.register(Heartbeat(SHOP, address))
            assert address in await registered(peer)


async def test_two_thousand_at_once_are_all_recorded(database: Database) -> None:
    half = GROUP_LIMIT
    async with registrar_of(database) as registrar:
        assert await all_of(registrar, [*beats(half), *beats(half, "billing")]) == [None] * 2 * half
    assert len(await registered(database)) == len(await registered(database, "billing")) == half


async def test_several_heartbeats_of_one_executor_in_a_batch_leave_the_last(database: Database) -> None:
    async with registrar_of(database, gather_s=GATHER_S) as registrar:
        await registrar.register(Heartbeat(SHOP, TWO))
        last = [Heartbeat(SHOP, ONE, "a", weight=1), Heartbeat(SHOP, ONE, "b", weight=2)]
        assert await all_of(registrar, last) == [None, None]
    found = (await registered(database))[ONE]
    assert (found.instance, found.weight) == ("b", 2)


@pytest.mark.req("S2-64")
async def test_all_are_told_when_the_database_is_away_and_a_later_one_is_recorded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registrar_of(database, gather_s=GATHER_S) as registrar:
        await registrar.register(Heartbeat(SHOP, THREE))
        with monkeypatch.context() as away:

            async def refused(*_: object) -> None:
                raise Unavailable("the database is away")

            away.setattr(registrations, "record", refused)
            told = await all_of(registrar, beats(20))
            assert [type(one) for one in told] == [Unavailable] * 20
        assert set(await registered(database)) == {THREE}
        await registrar.register(Heartbeat(SHOP, ONE))
        assert set(await registered(database)) == {ONE, THREE}


async def test_a_registrar_that_stops_finishes_what_it_has_begun_and_refuses_the_rest(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    registrar = Registrar(database, gather_s=60.0)
    with pytest.raises(Unavailable):
        await registrar.register(Heartbeat(SHOP, ONE))
    await registrar.start()
    pause = Pause(monkeypatch, database, 2)
    begun = asyncio.create_task(registrar.register(Heartbeat(SHOP, ONE)))
    assert await pause.during(begun)
    waits = asyncio.create_task(registrar.register(Heartbeat(SHOP, TWO)))
    stopping = asyncio.create_task(registrar.stop())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await registrar.register(Heartbeat(SHOP, THREE))
    pause.resume()
    await stopping
    await begun
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waits, 10)
    assert set(await registered(database)) == {ONE}
    await registrar.stop()


async def test_a_caller_that_goes_away_takes_nobody_along(database: Database) -> None:
    async with registrar_of(database, gather_s=GATHER_S) as registrar:
        await registrar.register(Heartbeat(SHOP, THREE))
        gone = asyncio.create_task(registrar.register(Heartbeat(SHOP, ONE)))
        stays = asyncio.create_task(registrar.register(Heartbeat(SHOP, TWO)))
        await asyncio.sleep(0)
        gone.cancel()
        await stays
    assert set(await registered(database)) == {ONE, TWO, THREE}


async def test_a_full_group_takes_heartbeats_of_its_own_and_no_more(database: Database) -> None:
    full = beats(GROUP_LIMIT)
    await record(database, *full[:-1])
    async with registrar_of(database, gather_s=GATHER_S) as registrar:
        await registrar.register(Heartbeat("other", ONE))
        more = [Heartbeat(SHOP, ONE), Heartbeat(SHOP, TWO), full[0], Heartbeat("billing", ONE)]
        told = await all_of(registrar, more)
        assert [type(one) for one in told] == [type(None), GroupFull, type(None), type(None)]
        assert isinstance((await all_of(registrar, [Heartbeat(SHOP, THREE)]))[0], GroupFull)
        await registrar.deregister((SHOP, ONE), None)
        await registrar.register(Heartbeat(SHOP, THREE))
    found = await registered(database)
    assert len(found) == GROUP_LIMIT
    assert (TWO in found, THREE in found) == (False, True)
    assert set(await registered(database, "billing")) == {ONE}


@pytest.mark.req("S2-23", "S2-32", "S2-57", "S2-60")
async def test_who_joins_leaves_drains_or_comes_back_changes_the_list_in_the_same_commit(database: Database) -> None:
    await group_of(database)
    registrar = Registrar(database, gather_s=0.0)
    await registrar.start()
    steps = [
        (Heartbeat(SHOP, TWO, "b"), (TWO,)),
        (Heartbeat(SHOP, ONE, "a"), (TWO, ONE)),
        (Heartbeat(SHOP, TWO, "b", DRAINING), (ONE,)),
        (Heartbeat(SHOP, TWO, "b"), (TWO, ONE)),
        (None, (ONE,)),
        (Heartbeat(SHOP, TWO, "c"), (ONE, TWO)),
    ]
    for heartbeat, expected in steps:
        with watched(database) as sent:
            if heartbeat is None:
                assert await registrar.deregister((SHOP, TWO), "b") is True
            else:
                await registrar.register(heartbeat)
        assert (sent.commits, len(sent.to("job_group"))) == (1, 1)
        assert (await listed(database)).addresses == expected
    await registrar.stop()


async def test_a_known_executors_heartbeat_touches_neither_group_nor_list(database: Database, time: Shifted) -> None:
    await group_of(database)
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        before, first = await listed(database), (await registered(database))[ONE]
        time.advance(30)
        with watched(database) as sent:
            await registrar.register(Heartbeat(SHOP, ONE, "a", weight=3, load=0.5))
    assert [sql for sql in sent.statements if "job_group" in sql or "registry_removed" in sql] == []
    assert len([sql for sql in sent.statements if "job_registry" in sql]) == 3, "two looks and one write"
    assert await listed(database) == before
    second = (await registered(database))[ONE]
    assert (second.weight, second.load) == (3, 0.5)
    assert second.first_seen == first.first_seen
    assert (second.last_seen - first.last_seen).total_seconds() >= 30


@pytest.mark.req("S2-24", "S2-33")
async def test_a_manual_group_is_not_touched(database: Database) -> None:
    await group_of(database, [THREE])
    before = await listed(database)
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        await registrar.register(Heartbeat(SHOP, ONE, "a", DRAINING))
        assert await registrar.deregister((SHOP, ONE), "a") is True
    assert await listed(database) == before


async def test_a_drained_executor_stays_drained_until_another_process_has_its_address(database: Database) -> None:
    await group_of(database)
    async with registrar_of(database) as registrar:
        for address in (ONE, TWO):
            await registrar.register(Heartbeat(SHOP, address, "a"))
        await drain(database, (SHOP, ONE))
        for _ in range(2):
            await registrar.register(Heartbeat(SHOP, ONE, "a"))
            assert (await listed(database)).addresses == (TWO,)
            assert (await registered(database))[ONE].drained_at is not None
        await registrar.register(Heartbeat(SHOP, ONE, "b"))
        assert (await listed(database)).addresses == (ONE, TWO)
        assert (await registered(database))[ONE].drained_at is None


@pytest.mark.req("S2-17", "S2-50")
async def test_a_goodbye_is_done_once(database: Database) -> None:
    await group_of(database)
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        assert await registrar.deregister((SHOP, ONE), "a") is True
        assert await registrar.deregister((SHOP, ONE), "a") is False
    (gone,) = await removals(database)
    assert (gone.address, gone.instance, gone.reason) == (ONE, "a", GOODBYE)
    assert gone.last_seen is not None


async def test_a_heartbeat_behind_its_goodbye_is_dropped_and_another_process_registers(
    database: Database, time: Shifted
) -> None:
    await group_of(database)
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        await registrar.deregister((SHOP, ONE), "a")
        time.advance(80)
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        assert await registered(database) == {}
        await registrar.register(Heartbeat(SHOP, ONE, "b"))
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        assert (await registered(database))[ONE].instance == "b", "the old process does not take it back"
        assert (await listed(database)).addresses == (ONE,)
        time.advance(30)
        await registrar.deregister((SHOP, ONE), "b")
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        assert (await registered(database))[ONE].instance == "a", "nobody remembers that goodbye any more"


async def test_a_late_heartbeat_does_not_include_a_drained_executor_again(database: Database) -> None:
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        await registrar.deregister((SHOP, ONE), "a")
        await registrar.register(Heartbeat(SHOP, ONE, "b"))
        await drain(database, (SHOP, ONE))
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
    found = (await registered(database))[ONE]
    assert (found.instance, found.drained_at is None) == ("b", False)


async def test_the_goodbye_of_an_old_process_leaves_the_new_one(database: Database) -> None:
    await group_of(database)
    async with registrar_of(database) as registrar:
        await registrar.register(Heartbeat(SHOP, ONE, "a"))
        await registrar.register(Heartbeat(SHOP, ONE, "b"))
        assert await registrar.deregister((SHOP, ONE), "a") is False
        assert (await registered(database))[ONE].instance == "b"
        assert (await listed(database)).addresses == (ONE,)
        assert await registrar.deregister((SHOP, ONE), None) is True, "who says no instance means whoever is there"
    assert await registered(database) == {}


async def test_heartbeats_and_goodbyes_of_many_at_two_nodes_leave_nobody_who_has_said_goodbye(
    database: Database, peer: Database
) -> None:
    await group_of(database)
    stays, leaves = beats(20), [Heartbeat(SHOP, f"http://10.0.0.2:{1000 + place}", "a") for place in range(20)]
    async with registrar_of(database) as here, registrar_of(peer) as there:
        await all_of(here, [*stays, *leaves])
        told = await asyncio.gather(
            *(node.register(one) for one in [*stays, *leaves] for node in (here, there)),
            *(node.deregister(one.executor, "a") for node, one in zip([here, there] * 10, leaves, strict=True)),
        )
    assert told.count(True) == len(leaves)
    assert set(await registered(database)) == set((await listed(database)).addresses) == {one.address for one in stays}
