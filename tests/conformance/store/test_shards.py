"""Are services of shards stored as their rules compute them, by any node, on each database?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.generations import Cause, CauseKind, GenerationState, begun
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges
from orchestrix.domain.shards.service import apply, is_routine, new_service
from orchestrix.domain.shards.state import (
    Effect,
    Event,
    LeadTaken,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ServiceCheck,
    ShardRules,
    ShardService,
)
from orchestrix.errors import ConflictError, Contention, IllegalTransition
from orchestrix.persistence import tables
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.shards import generations, service_store, services, workers
from orchestrix.persistence.shards.service_store import StoredService
from orchestrix.persistence.shards.workers import SignOfLife
from orchestrix.shards.changes import ServiceChanges

SERVICE = "orders"
SECOND = timedelta(seconds=1)
RULES = ShardRules(allocation=Allocation.MINIMAL_MOVE)


def registration(worker: str, instance: str | None = "i-1", **more: Any) -> MemberRegistration:
    values = {"shard_count": 10, "seq": 1, "reply_to": f"orchestrix.shard.member.{worker}", **more}
    return MemberRegistration(worker_id=worker, instance=instance, **values)


def heartbeat(worker: str, shards: ShardRanges, instance: str | None = "i-1", **more: Any) -> MemberHeartbeat:
    return MemberHeartbeat(worker_id=worker, instance=instance, shards=shards, **{"shard_count": 10, **more})


async def transact(
    database: Database, events: Sequence[Event], after_s: float = 0.0, name: str = SERVICE
) -> tuple[ShardService, list[Effect]]:
    """What the events have made of the stored service."""
    now = database.now() + timedelta(seconds=after_s)

    async def work(tx: Transaction) -> tuple[ShardService, list[Effect]]:
        await services.insert_if_absent(tx, name, 10, now)
        stored = await service_store.lock(tx, name)
        assert stored is not None
        after, effects = apply(stored.state, events, now, RULES)
        await service_store.save(tx, stored.state, after, now)
        return after, effects

    return await database.run(work)


async def stored(database: Database, name: str = SERVICE) -> StoredService:
    async with database.read() as connection:
        found = await service_store.read(connection, name)
    assert found is not None
    return found


async def activated(database: Database, *workers_: str, name: str = SERVICE) -> ShardService:
    """The service with these members, in an active generation."""
    await transact(database, [registration(worker) for worker in workers_], name=name)
    async with database.begin() as tx:
        assert await generations.acquire_leader_lock(tx, "node-1", database.now()) == [(name, 1)]
    check = ServiceCheck("node-1", database.now())
    state, _ = await transact(database, [check], after_s=3.0, name=name)
    assert state.active is not None
    return state


class Dice:
    """Random events for a service."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def event(self, state: ShardService, now: Any) -> Event:
        random = self.random
        worker = f"worker-{random.randint(0, 5)}"
        instance = random.choice(("i-1", "i-2", None))
        shards = ShardRanges.of_numbers(random.sample(range(12), random.randint(0, 12)))
        number = state.active.number if state.active else 0
        make: Callable[[], Event] = random.choice(
            (
                lambda: MemberRegistration(
                    worker_id=worker,
                    instance=instance,
                    shard_count=random.randint(5, 12),
                    seq=random.randint(1, 50),
                    weight=random.randint(0, 3),
                    grace_s=random.choice((0.0, 20.0)),
                    reply_to=random.choice((None, "queue")),
                    via=f"n-{number % 3}",
                ),
                lambda: MemberHeartbeat(
                    worker_id=worker,
                    instance=instance,
                    shard_count=random.randint(9, 10),
                    shards=shards,
                    seq=random.randint(1, 50),
                    generation=random.choice((number, number - 1, 0)),
                ),
                lambda: MemberLeave(worker, instance),
                lambda: LeadTaken("node-1"),
                lambda: ServiceCheck("node-1", now - timedelta(seconds=random.choice((0, 60)))),
            )
        )
        return make()


@pytest.mark.req("S4-9", "S4-26", "S4-27", "S4-35", "S4-36", "S4-43")
@pytest.mark.parametrize("seed", range(3))
async def test_what_is_read_is_what_was_computed(database: Database, seed: int) -> None:
    """Whatever happens, each transition is stored whole: another node computes the next one from the rows."""
    dice, now = Dice(seed), database.now()
    state = new_service(SERVICE, 10)
    async with database.begin() as tx:
        await services.insert_if_absent(tx, SERVICE, 10, now)
    kinds = set[str]()
    for _ in range(60):
        now += timedelta(seconds=dice.random.choice((0.5, 2.0, 12.0)))
        event = dice.event(state, now)
        state, effects = apply(state, [event], now, RULES)
        kinds.update(type(effect).__name__ for effect in effects)
        async with database.begin() as tx:
            found = await service_store.lock(tx, SERVICE)
            assert found is not None
            after, _ = apply(found.state, [event], now, RULES)
            await service_store.save(tx, found.state, after, now)
        assert after == state
        assert (await stored(database)).state == state
    assert kinds == {"Assignment", "GenerationChange", "MemberChange"}
    assert state.number > 3
    async with database.read() as connection:
        past = await generations.history(connection, SERVICE)
    assert [one.number for one in past] == list(range(state.number, 0, -1))
    counts = {one.number: one.shard_count for one in reversed(past) if one.activated_at is not None}
    for one in past:
        assert one.shard_count_before == next((counts[n] for n in range(one.number - 1, 0, -1) if n in counts), None)
    live = {one.state for one in past if one.state != "superseded"}
    assert live == {str(one.state) for one in (state.active, state.pending) if one is not None}


@pytest.mark.req("S4-5", "S4-16", "S4-28", "S4-37", "S4-41")
async def test_of_two_nodes_one_leads_a_generation(database: Database, peer: Database) -> None:
    await transact(database, [registration("worker-1")])
    assert (await stored(database)).state.pending is not None

    async def acquire(at: Database, node: str) -> list[tuple[str, int]]:
        return await at.run(lambda tx: generations.acquire_leader_lock(tx, node, at.now()))

    places = [(database, "node-1"), (peer, "node-2")] * 4
    taken = await asyncio.gather(*(acquire(at, f"{node}-{place}") for place, (at, node) in enumerate(places)))
    assert sorted(taken) == [*([[]] * 7), [(SERVICE, 1)]]
    place = taken.index([(SERVICE, 1)])
    pending = (await stored(database)).state.pending
    assert pending is not None
    assert pending.leader_id == f"{places[place][1]}-{place}"


@pytest.mark.req("S4-5", "S4-28")
async def test_a_generation_that_another_node_is_about_to_lead_is_left_out(
    served: Database, served_peer: Database
) -> None:
    await transact(served, [registration("worker-1")])
    async with served.begin() as tx:
        assert await generations.acquire_leader_lock(tx, "node-1", served.now()) == [(SERVICE, 1)]
        async with asyncio.timeout(1.5), served_peer.begin() as other:  # a wait for the lock would take two seconds
            assert await generations.acquire_leader_lock(other, "node-2", served.now()) == []


@pytest.mark.req("S4-41")
async def test_a_lead_that_was_taken_meanwhile_is_not_overwritten(database: Database) -> None:
    await transact(database, [registration("worker-1")])
    before = (await stored(database)).state
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    after, _ = apply(before, [LeadTaken("node-2")], database.now(), RULES)
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await service_store.save(tx, before, after, database.now())
    pending = (await stored(database)).state.pending
    assert pending is not None
    assert pending.leader_id == "node-1"


async def test_the_version_of_a_service_rises_with_all_but_signs_of_life(database: Database) -> None:
    await activated(database, "worker-1")
    memory = await stored(database)
    member = memory.state.members["worker-1"]
    async with database.begin() as tx:
        await workers.note(tx, [SignOfLife(memory.ids["worker-1", "i-1"], member.version, 5)], database.now())
    assert (await stored(database)).version == memory.version
    await transact(database, [registration("worker-2")])
    assert (await stored(database)).version == memory.version + 1
    await transact(database, [])
    assert (await stored(database)).version == memory.version + 1


@pytest.mark.req("S4-6", "S4-7", "S4-10", "S4-11", "S4-12", "S4-29")
async def test_a_transition_counts_once_and_for_the_leader_alone(database: Database) -> None:
    await transact(database, [registration("worker-1")])
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    pending = (await stored(database)).state.pending
    assert pending is not None
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await generations.transition_state(tx, SERVICE, pending, GenerationState.ACTIVE, {}, leader_id="node-2")
    async with database.begin() as tx:
        await generations.transition_state(tx, SERVICE, pending, GenerationState.ACTIVE, {}, leader_id="node-1")
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await generations.transition_state(tx, SERVICE, pending, GenerationState.SUPERSEDED, {})
    active = (await stored(database)).state.active
    assert active is not None
    assert (active.number, active.leader_id, active.leader_until) == (1, "node-1", None)
    with pytest.raises(IllegalTransition):
        async with database.begin() as tx:
            await generations.transition_state(tx, SERVICE, active, GenerationState.PENDING, {})


@pytest.mark.req("S4-43")
async def test_the_database_refuses_a_second_pending_or_active_generation(database: Database) -> None:
    state = await activated(database, "worker-1")
    await transact(database, [registration("worker-2")])
    for live in ("pending", "active"):
        more = begun(9, Cause(CauseKind.JOINED), database.now(), 2.0)
        row = {"service": SERVICE, **generations._values(more), "live": live}
        with pytest.raises(ConflictError):
            async with database.begin() as tx:
                await tx.execute(insert(tables.generations).values(row))
    assert state.active is not None


@pytest.mark.req("S1-32", "S1-38")
async def test_signs_of_life_are_noted_where_the_row_is_as_the_node_knows_it(database: Database) -> None:
    await activated(database, "worker-1", "worker-2", "worker-3")
    memory = await stored(database)
    await transact(database, [MemberLeave("worker-3", "i-1")])
    ids = {worker: memory.ids[worker, "i-1"] for worker in ("worker-1", "worker-2", "worker-3")}
    signs = [SignOfLife(ids[worker], memory.state.members[worker].version, 7) for worker in ids]
    signs[1] = replace(signs[1], version=signs[1].version - 1)
    at = database.now() + 9 * SECOND
    async with database.begin() as tx:
        assert await workers.note(tx, signs, at) == {ids["worker-1"]}
        assert await workers.note(tx, [], at) == set()
    found = (await stored(database)).state
    assert (found.members["worker-1"].last_seen, found.members["worker-1"].seq) == (at, 7)
    assert found.members["worker-2"] == memory.state.members["worker-2"]
    assert "worker-3" not in found.members


async def test_a_sign_of_life_waits_for_a_change_and_does_not_count_after_it(
    served: Database, served_peer: Database
) -> None:
    """It would be overwritten by the change, or answered by a node that does not know of it."""
    await activated(served, "worker-1", "worker-2")
    memory = await stored(served)
    id, version = memory.ids["worker-2", "i-1"], memory.state.members["worker-2"].version
    noted: asyncio.Task[set[int]] | None = None

    async def note() -> set[int]:
        async with served_peer.begin() as tx:
            return await workers.note(tx, [SignOfLife(id, version, 5)], served_peer.now())

    async with served.begin() as tx:
        found = await service_store.lock(tx, SERVICE)
        assert found is not None
        noted = asyncio.create_task(note())
        done, _ = await asyncio.wait([noted], timeout=0.3)
        assert not done
        after, _ = apply(found.state, [registration("worker-2", weight=5, seq=3)], served.now(), RULES)
        await service_store.save(tx, found.state, after, served.now())
    with suppress(Contention):  # it waited for too long: the heartbeat is given back, and comes again
        assert await noted == set()


@pytest.mark.parametrize(("seq", "earlier_s"), [(8, 0), (10, 30)])
async def test_a_sign_of_life_replaces_no_newer_one(database: Database, seq: int, earlier_s: int) -> None:
    """A node that stood still before the statement would make a member silent that another node has answered."""
    await activated(database, "worker-1")
    memory = await stored(database)
    member, id = memory.state.members["worker-1"], memory.ids["worker-1", "i-1"]
    at = database.now() + 60 * SECOND
    async with database.begin() as tx:
        assert await workers.note(tx, [SignOfLife(id, member.version, 9)], at) == {id}
    async with database.begin() as tx:
        assert await workers.note(tx, [SignOfLife(id, member.version, seq)], at - earlier_s * SECOND) == set()
    found = (await stored(database)).state.members["worker-1"]
    assert (found.last_seen, found.seq) == (at, 9)


async def test_a_change_of_a_node_that_stood_still_replaces_no_newer_sign_of_life(
    served: Database, served_peer: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is that of the lock: while it waited for that, the other node has answered the member."""
    state = await activated(served, "worker-1")
    memory = await stored(served)
    member, id = memory.state.members["worker-1"], memory.ids["worker-1", "i-1"]
    lock, now, waits, wakes = service_store.lock, served.now, asyncio.Event(), asyncio.Event()

    async def slowly(tx: Transaction, name: str) -> StoredService | None:
        waits.set()
        await wakes.wait()
        return await lock(tx, name)

    monkeypatch.setattr(service_store, "lock", slowly)
    monkeypatch.setattr(served, "now", lambda: now() if wakes.is_set() else now() - 30 * SECOND)
    late = asyncio.create_task(ServiceChanges(served, RULES).apply(SERVICE, [heartbeat("worker-1", NO_SHARDS)]))
    await waits.wait()
    at = served_peer.now() + 4 * SECOND
    async with served_peer.begin() as tx:
        assert await workers.note(tx, [SignOfLife(id, member.version, 9)], at) == {id}
    wakes.set()
    await late
    found = (await stored(served)).state.members["worker-1"]
    assert (found.last_seen, found.seq, found.grants) == (at, 9, state.members["worker-1"].grants)


@pytest.mark.req("S4-4", "S4-9", "S4-41")
async def test_changes_by_two_nodes_at_once_are_all_counted(database: Database, peer: Database) -> None:
    """Each one builds on the one before, and one generation is for them all."""
    await activated(database, "worker-0", "worker-1")
    memory = await stored(database)

    async def join(at: Database, first: int) -> None:
        for place in range(first, first + 8):
            await transact(at, [registration(f"worker-{place}")])

    async def live(at: Database, worker: str) -> None:
        sign = SignOfLife(memory.ids[worker, "i-1"], memory.state.members[worker].version, 5)
        for _ in range(8):
            assert await at.run(lambda tx: workers.note(tx, [sign], at.now())) == {sign.id}

    await asyncio.gather(join(database, 10), join(peer, 20), live(database, "worker-0"), live(peer, "worker-1"))
    after = (await stored(database)).state
    assert len(after.members) == 18
    assert after.revision == memory.state.revision + 16
    assert after.number == 2
    assert after.active == memory.state.active
    assert {after.members[worker].seq for worker in ("worker-0", "worker-1")} == {5}


@pytest.mark.req("S1-2", "S1-19")
async def test_two_services_do_not_touch_each_other(database: Database) -> None:
    await activated(database, "worker-1", "worker-2", name="one")
    before = await stored(database, "one")
    await activated(database, "worker-1", name="other")
    await transact(database, [MemberLeave("worker-1", "i-1"), registration("worker-9", shard_count=99)], name="other")
    assert await stored(database, "one") == before
    async with database.read() as connection:
        assert await services.versions(connection) == {
            "one": before.version,
            "other": (await stored(database, "other")).version,
        }
        assert await services.count_with_members(connection) == 2


async def test_a_service_whose_last_member_leaves_goes_to_a_generation_without_assignments(database: Database) -> None:
    await activated(database, "worker-1")
    await transact(database, [MemberLeave("worker-1", "i-1")])
    async with database.begin() as tx:
        assert await generations.acquire_leader_lock(tx, "node-2", database.now()) == [(SERVICE, 2)]
    state, _ = await transact(database, [ServiceCheck("node-2", database.now())], after_s=6.0)
    assert state.active is not None
    assert (state.active.number, dict(state.active.shares), dict(state.members)) == (2, {}, {})
    async with database.read() as connection:
        assert (await connection.execute(select(tables.shard_assignments))).first() is None
        assert await services.count_with_members(connection) == 0
        (latest, first) = await generations.history(connection, SERVICE)
    assert (latest.state, latest.cause, latest.cause_worker, latest.moved) == ("active", "left", "worker-1", 0)
    assert (first.state, first.cause, first.members) == ("superseded", "joined", 1)


async def test_the_history_has_the_shard_count_before(database: Database) -> None:
    await activated(database, "worker-1")
    await transact(database, [registration("worker-1", seq=2, shard_count=12)])
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    await transact(database, [ServiceCheck("node-1", database.now())], after_s=6.0)
    async with database.read() as connection:
        past = await generations.history(connection, SERVICE)
        (newest,) = await generations.history(connection, SERVICE, limit=1)
    assert [(one.shard_count, one.shard_count_before) for one in past] == [(12, 10), (10, None)]
    assert newest == past[0]


async def test_superseded_generations_are_deleted_in_time(database: Database) -> None:
    await activated(database, "worker-1")
    await transact(database, [registration("worker-2")])
    async with database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", database.now())
    await transact(database, [ServiceCheck("node-1", database.now())], after_s=6.0)
    async with database.begin() as tx:
        assert await generations.prune(tx, database.now()) == 0
        assert await generations.prune(tx, database.now() + 60 * SECOND) == 1
    async with database.read() as connection:
        assert [one.number for one in await generations.history(connection, SERVICE)] == [2]


async def test_a_range_of_shards_has_one_row(database: Database) -> None:
    state = await activated(database, "worker-1", "worker-2")
    assert {worker: member.shards.size for worker, member in state.members.items()} == {"worker-1": 5, "worker-2": 5}
    async with database.read() as connection:
        rows = list(await connection.execute(select(tables.shard_assignments)))
    assert sorted((row.first_shard, row.last_shard, row.worker_id, row.instance) for row in rows) == [
        (0, 4, "worker-1", "i-1"),
        (5, 9, "worker-2", "i-1"),
    ]
    with pytest.raises(ConflictError):  # no shard has two rows that begin with it
        async with database.begin() as tx:
            await tx.execute(insert(tables.shard_assignments).values(dict(rows[0]._mapping)))


async def test_a_clock_that_was_set_back_ends_no_member(database: Database) -> None:
    """Signs of life that lie in the future are set to the present by the next check."""
    await activated(database, "worker-1")
    late = database.now() + 3600 * SECOND
    async with database.begin() as tx:
        await tx.execute(update(tables.shard_workers).values(last_seen=late))
    now = database.now()
    state, _ = await transact(database, [ServiceCheck("node-1", now - 3600 * SECOND)])
    assert timedelta(0) <= state.members["worker-1"].last_seen - now < 60 * SECOND
    state, _ = await transact(database, [ServiceCheck("node-1", now - 3600 * SECOND)], after_s=20.0)
    assert dict(state.members) == {}


async def test_a_routine_heartbeat_is_one_that_the_store_can_note(database: Database) -> None:
    state = await activated(database, "worker-1")
    assert state.active is not None
    first = heartbeat("worker-1", state.members["worker-1"].shards, seq=2, generation=state.active.number)
    assert not is_routine(state, first)  # it acknowledges a generation
    await transact(database, [first])
    found = await stored(database)
    assert is_routine(found.state, replace(first, seq=3))
