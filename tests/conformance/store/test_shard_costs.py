"""What do many services of shards cost a database, and what is left of those that nobody uses any more?"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import LeadTaken, MemberLeave, ServiceCheck
from orchestrix.persistence import tables
from orchestrix.persistence.engine import Connection, Database
from orchestrix.persistence.shards import generations, service_store, services, workers
from orchestrix.persistence.shards.services import PRUNED
from tests.conformance.store.plans import watched
from tests.conformance.store.test_shards import SECOND, activated, heartbeat, registration, stored, transact

DAY = timedelta(days=1)


async def test_many_services_are_read_in_few_statements(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_store, "READ_AT_ONCE", 4)
    names = [f"service-{number}" for number in range(10)]
    for name in names:
        await activated(database, f"{name}-a", f"{name}-b", name=name)
    await transact(database, [registration("late")], name=names[3])
    with watched(database) as sent:
        async with database.read() as connection:
            found = await service_store.read_all(connection, [*names, "none"])
    assert len(sent) == 5 * 3
    assert found == {name: await stored(database, name) for name in names}
    assert all(found[name].state.members for name in names)


async def test_a_service_that_changes_while_it_is_read_is_read_again(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        await activated(database, "worker-1", name=name)
    load, reads = workers.load, list[list[str]]()

    async def overtaken(connection: Connection, names: list[str], *more: Any, **options: Any) -> object:
        reads.append(list(names))
        found = await load(connection, names, *more, **options)
        if len(reads) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(workers, "load", load)
                await transact(peer, [registration("worker-2")], name="other")
        return found

    monkeypatch.setattr(workers, "load", overtaken)
    async with database.read() as connection:
        found = await service_store.read_all(connection, ["one", "other"])
    assert reads == [["one", "other"], ["other"]]
    assert set(found["other"].state.members) == {"worker-1", "worker-2"}
    monkeypatch.setattr(workers, "load", load)
    assert found["other"] == await stored(database, "other")


async def test_one_statement_finds_the_silent_and_those_of_a_clock_that_was_set_back(database: Database) -> None:
    now = database.now()
    cases = {
        "fresh": (now, "ACTIVE"),
        "silent": (now - 20 * SECOND, "ACTIVE"),
        "ahead": (now + 60 * SECOND, "ACTIVE"),
        "away": (now - 20 * SECOND, "AWAY"),
        "away and ahead": (now + 60 * SECOND, "AWAY"),
    }
    for name, (seen, state) in cases.items():
        await activated(database, "worker-1", "worker-2", name=name)
        who = tables.shard_workers.c.service == name, tables.shard_workers.c.worker_id == "worker-2"
        async with database.begin() as tx:
            await tx.execute(update(tables.shard_workers).where(*who).values(last_seen=seen, state=state))
    with watched(database) as sent:
        async with database.read() as connection:
            found = await workers.silent_services(connection, now - 15 * SECOND, now + 30 * SECOND)
    assert found == {"silent", "ahead", "away and ahead"}
    assert len(sent) == 1


# Services that nobody uses.


async def emptied(database: Database, name: str, rounds: int = 1) -> int:
    """A service whose members have all left; the highest number that was given out for it."""
    for number in range(rounds):
        await transact(database, [registration(f"w-{number}", f"i-{number}")], name=name)
        await transact(database, [MemberLeave(f"w-{number}", f"i-{number}"), LeadTaken("n-1")], name=name)
        await transact(database, [ServiceCheck("n-1", database.now())], after_s=5.0, name=name)
    state = (await stored(database, name)).state
    assert not state.members
    assert state.active is not None
    return max(state.counter, state.number)


async def prune(database: Database, after: timedelta) -> int:
    now = database.now() + after
    return await database.run(lambda tx: services.prune(tx, now))


async def test_a_service_that_was_long_without_members_is_pruned_with_all_that_it_has(database: Database) -> None:
    await activated(database, "worker-1", name="used")
    await emptied(database, "empty", rounds=3)
    assert await prune(database, -DAY) == 0, "not yet"
    assert await prune(database, DAY) == 1
    async with database.read() as connection:
        assert set(await services.versions(connection)) == {"used"}
        assert await generations.history(connection, "empty") == []
        assert await service_store.read(connection, "empty") is None
        query = select(tables.shard_workers.c.service).distinct()
        assert set((await connection.execute(query)).scalars()) == {"used"}
        assert await services.count_with_members(connection) == 1
    assert await prune(database, DAY) == 0, "the row that keeps the number is no service"
    assert "worker-1" in (await stored(database, "used")).state.members


@pytest.mark.parametrize("name", ["empty", "other"])
async def test_a_new_service_never_gives_out_a_number_again(database: Database, name: str) -> None:
    """A process that was asleep since then follows a generation of the former one, and stores know its epochs."""
    highest = await emptied(database, "empty", rounds=3)
    lower = await emptied(database, "small")
    assert lower < highest
    assert await prune(database, DAY) == 2
    await transact(database, [registration("worker-1")], name=name)
    await transact(database, [LeadTaken("n-1")], name=name)
    state, _ = await transact(database, [ServiceCheck("n-1", database.now())], after_s=3.0, name=name)
    assert state.active is not None
    assert state.active.number == highest + 1
    (grant,) = state.members["worker-1"].grants
    assert grant.epoch > highest
    asleep = heartbeat("old", ShardRanges.of([(0, 9)]), "i-0", seq=99, generation=highest)
    after, _ = await transact(database, [asleep], after_s=4.0, name=name)
    assert after.members["old"].grants == ()


async def test_numbers_stay_above_those_of_every_service_that_was_pruned(database: Database) -> None:
    highest = await emptied(database, "first", rounds=4)
    await prune(database, DAY)
    await emptied(database, "second")
    again = await emptied(database, "second")
    await prune(database, DAY)
    async with database.read() as connection:
        (floor,) = await services.get(connection, [PRUNED])
    assert floor.counter == again > highest


async def test_who_joins_a_service_that_is_being_pruned_begins_above_it(
    served: Database, served_peer: Database
) -> None:
    highest = await emptied(served, "empty", rounds=2)
    async with served.begin() as tx:
        assert await services.prune(tx, served.now() + DAY) == 1
        joining = asyncio.create_task(transact(served_peer, [registration("worker-1")], name="empty"))
        done, _ = await asyncio.wait([joining], timeout=0.3)
        assert not done
    state, _ = await joining
    assert (state.number, state.counter > highest) == (highest + 1, True)


async def test_of_two_nodes_that_prune_at_once_each_service_is_pruned_by_one(
    database: Database, peer: Database
) -> None:
    for number in range(4):
        await emptied(database, f"s-{number}")
    counts = await asyncio.gather(prune(database, DAY), prune(peer, DAY))
    rest = await prune(database, DAY)
    assert sum(counts) + rest == 4
