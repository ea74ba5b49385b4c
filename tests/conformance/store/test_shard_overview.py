"""Are services of shards shown as they are stored, many at once, on each database?"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from orchestrix.domain.shards.diagnosis import UnreleasedShards, unowned_in, unreleased
from orchestrix.domain.shards.generations import Generation
from orchestrix.domain.shards.state import MemberLeave, ServiceCheck
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import assignments, generations, overview, workers
from orchestrix.persistence.shards.generations import GenerationRecord
from orchestrix.persistence.shards.overview import ServiceOverview
from tests.conformance.store.plans import watched
from tests.conformance.store.test_shards import Dice, activated, heartbeat, registration, stored, transact

NAMES = ("one", "other", "third")
SECOND = timedelta(seconds=1)


async def page(database: Database, after: str | None = None, limit: int = 100) -> list[ServiceOverview]:
    async with database.read() as connection:
        return await overview.page(connection, after, limit)


async def test_without_services_there_is_nothing(database: Database) -> None:
    assert await page(database) == []
    async with database.read() as connection:
        assert await workers.last_sign_of_life(connection) is None


@pytest.mark.req("S4-44")
@pytest.mark.parametrize("seed", [1, 4])
async def test_what_is_shown_of_many_is_what_each_of_them_is(database: Database, seed: int) -> None:
    """Whatever has happened to them: the overview of all says the same as the whole state of each."""
    dice, seen = Dice(seed), set[str]()
    for name in NAMES:
        await transact(database, [registration("worker-1")], name=name)
    for number in range(120):
        name = dice.random.choice(NAMES)
        state = (await stored(database, name)).state
        now = database.now() + number * SECOND
        await transact(database, [dice.event(state, now)], after_s=number, name=name)
        if number % 3 == 2:
            seen |= await compared(database)
    assert seen == {"unowned", "unreleased", "away", "waiting", "pending", "active"}


async def compared(database: Database) -> set[str]:
    """What there was to compare."""
    found = await page(database)
    assert [one.name for one in found] == list(NAMES)
    for one in found:
        state = (await stored(database, one.name)).state
        assert (one.shard_count, one.members) == (state.shard_count, len(state.members))
        away = [member for member in state.members.values() if member.away is not None]
        assert (one.away, one.waiting) == (len(away), len(state.successors))
        assert number_of(one.active) == number_of(state.active)
        assert number_of(one.pending) == number_of(state.pending)
        assert one.unowned == unowned_in(state), one.name
        assert still_held(one.unreleased) == still_held(unreleased(state, database.now()))
    there = {
        "unowned": any(one.unowned is not None and one.active is not None for one in found),
        "unreleased": any(one.unreleased for one in found),
        "away": any(one.away for one in found),
        "waiting": any(one.waiting for one in found),
        "pending": any(one.pending is not None for one in found),
        "active": any(one.active is not None for one in found),
    }
    return {what for what, is_there in there.items() if is_there}


def number_of(one: Generation | GenerationRecord | None) -> int | None:
    return None if one is None else one.number


def still_held(found: Iterable[UnreleasedShards]) -> list[tuple[object, ...]]:
    return [(one.worker_id, one.shards, one.since) for one in found]


async def test_gaps_are_found_wherever_they_are(database: Database) -> None:
    state = await activated(database, "worker-1", "worker-2", "worker-3")
    async with database.read() as connection:
        for count, expected in ((10, []), (12, [(10, 11)]), (3, [])):
            found = await assignments.free(connection, {"orders": count, "nothing": 2})
            assert list(found.pop("nothing").ranges) == [(0, 1)]
            assert [one for shards in found.values() for one in shards.ranges] == expected
    for worker in ("worker-2", "worker-1"):  # in the middle, then at an end
        await transact(database, [MemberLeave(worker, "i-1")])
        gone = [one for one in ("worker-1", "worker-2") if one not in (await stored(database)).state.members]
        async with database.read() as connection:
            free = (await assignments.free(connection, {"orders": 10}))["orders"]
            first = next(free.numbers())
            assert list((await assignments.free(connection, {"orders": first + 1}))["orders"].numbers()) == [first]
        assert sorted(free.numbers()) == sorted(n for one in gone for n in state.members[one].shards.numbers())


async def test_services_are_read_by_name_page_by_page(database: Database) -> None:
    names = ["Orders", "a b", "orders", "orders/2", "örders", "日"]
    for name in names:
        await transact(database, [registration("worker-1")], name=name)
    found: list[str] = []
    while more := await page(database, found[-1] if found else None, 2):
        found += [one.name for one in more]
    assert found == names


@pytest.fixture
async def many(database: Database) -> Database:
    for number in range(12):
        await activated(database, "worker-1", name=f"s-{number:02}")
    return database


async def test_many_services_take_as_few_statements_as_one(many: Database) -> None:
    async with many.read() as connection:
        with watched(many) as one:
            assert len(await overview.page(connection, None, 1)) == 1
        with watched(many) as all_:
            assert len(await overview.page(connection, None, 100)) == 12
    assert len(one) == len(all_) == 5


async def test_history_is_read_page_by_page_the_newest_first(database: Database) -> None:
    for number in range(5):
        worker = f"worker-{number}"
        await transact(database, [registration(worker)])
        async with database.begin() as tx:
            await generations.acquire_leader_lock(tx, "node-1", database.now())
        await transact(database, [ServiceCheck("node-1", database.now())], after_s=3.0)
    async with database.read() as connection:
        first = await generations.history(connection, "orders", 2)
        second = await generations.history(connection, "orders", 2, before=first[-1].number)
        rest = await generations.history(connection, "orders", 9, before=second[-1].number)
        assert [one.number for one in (await generations.live(connection, ["orders"]))["orders"]] == [5]
    assert [one.number for one in (*first, *second, *rest)] == [5, 4, 3, 2, 1]
    assert {(one.closes_at - one.began_at).total_seconds() for one in first} == {2.0}
    assert first[0].cause_worker == "worker-4"


async def test_what_is_to_be_let_go_of_is_read_for_all_services(database: Database) -> None:
    await activated(database, "worker-1", name="quiet")
    state = await activated(database, "worker-1")
    member = state.members["worker-1"]
    assert state.active is not None
    await transact(database, [heartbeat("worker-1", member.shards, seq=2, generation=1), registration("worker-2")])
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    await transact(database, [ServiceCheck("node-1", database.now())], after_s=3.0)
    async with database.read() as connection:
        for services in (None, ["orders"], ["orders", "quiet"]):
            found = await workers.unreleased(connection, services, database.now())
            assert [(name, one.worker_id, one.shards.size) for name, several in found.items() for one in several] == [
                ("orders", "worker-1", 5)
            ]
        assert await workers.unreleased(connection, ["quiet"], database.now()) == {}
        assert await workers.last_sign_of_life(connection) is not None
