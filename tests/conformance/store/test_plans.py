"""Does each statement find its rows by an index, whatever the size of the tables?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import text

from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.cluster import cluster_counts
from orchestrix.persistence.dead_letters import DeadLetterFilter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.blocked_job_steps import UnservedJobs
from orchestrix.persistence.sagas import hindered_instances, instance_pages, instances, transitions
from orchestrix.persistence.sagas.instances import InstanceFilter, TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables
from orchestrix.persistence.sagas.stuck_filter import ExternalBlockers
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.saga.state import Instance, StateChange
from tests.conformance.store.build import ended, message, some, started, stepped, stored
from tests.conformance.store.plans import PRIMARY, Access, accesses, analyse, watched
from tests.conformance.store.test_dead_letters import DIED, SECOND, letter
from tests.conformance.store.test_jobs import pending

Of = tuple[SagaTables, str]
Work = Callable[[Transaction], Awaitable[Any]]
ROWS = 3000
HELD = "ix_held_events_saga_instance_id_id"
READ_IN_WHOLE = text("SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'apps'")
"""How many rows of `apps` this session has read without an index lately."""


async def found_by(database: Database, work: Work) -> list[Access]:
    """How the rows of all statements of `work` are found."""
    with watched(database) as sent:
        async with database.begin() as tx:
            await work(tx)
    assert sent
    return [access for one in sent for access in await accesses(database, one)]


async def by_index(database: Database, work: Work, *indexes: str) -> None:
    """Asserts that only these indexes are used, each by value."""
    found = await found_by(database, work)
    assert found
    for access in found:
        if access.table == "held_events":  # nearly always empty: to read it whole is as good
            continue
        assert access.bounded, found
        assert access.index in indexes, found


@pytest.fixture
async def many(database: Database, of: Of) -> list[Instance]:
    """Instances of which the last ten live, among them the three that are stuck."""
    pair, saga = of
    begun = await some(database, ROWS, pair, saga)
    stuck = [
        stepped(begun[-1], wake_at=None, wake_reason=None, blocker="paused"),
        stepped(begun[-2], wake_reason="no_consumer"),
        stepped(begun[-3], wake_reason="unsent"),
    ]
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, one) for one in [*map(ended, begun[:-10]), *stuck]])
    await analyse(database, pair.instances.name)
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [one.id for one in begun[-10:]])
    return [found[id] for id in sorted(found)]


async def test_a_batch_of_sagas_touches_its_own_rows(database: Database, of: Of, many: list[Instance]) -> None:
    pair, _ = of
    ids = [one.id for one in many]
    later = [stepped(one) for one in many]
    changes = [
        (one.id, StateChange(one.version, "A", "B", "why", "ada", "c", None, None, one.updated_at)) for one in later
    ]
    owed = OutboxBatch([message(one.id, one.version) for one in later], "me", 30)
    works: list[Work] = [
        lambda tx: instances.lock(tx, pair, ids),
        lambda tx: instances.lock_one(tx, pair, ids[0]),
        lambda tx: instances.lock_with_held(tx, pair, ids),
        lambda tx: instances.guard(tx, pair, ids),
        lambda tx: instances.versions(tx, pair, ids),
        lambda tx: transitions.write(tx, pair, [(one.version - 1, one) for one in later], changes, owed),
        lambda tx: instances.update(tx, pair, [(one.version, stepped(one)) for one in later]),
        lambda tx: instances.update(tx, pair, [(99, stepped(one)) for one in later]),
        lambda tx: instances.update_timers(tx, pair, [TimerUpdate(id, 3, tx.now(), "unsent", 7) for id in ids]),
        lambda tx: instances.confirmed_late(tx, pair, [(id, "other", 7) for id in ids]),
    ]
    for work in works:
        await by_index(database, work, PRIMARY, HELD)


@pytest.mark.parametrize("store_url", [pytest.param("postgresql", marks=pytest.mark.servers)], indirect=True)
async def test_a_table_that_has_just_grown_is_not_read_as_a_small_one(database: Database) -> None:
    """By whoever has sent the same statements often while it was small, before the server has counted its rows."""
    few = (await some(database, 20))[:3]
    ids = [one.id for one in few]

    async def work(more: int) -> int:
        later = [stepped(one, 1 + more) for one in few]
        rows = [
            (one.id, StateChange(one.version, "A", "B", "why", "ada", "c", None, None, one.updated_at)) for one in later
        ]
        async with database.begin() as tx:
            before = int((await tx.execute(READ_IN_WHOLE)).scalar_one())
            await instances.lock(tx, APPS, ids)
            await instances.guard(tx, APPS, ids)
            assert await transitions.write(
                tx, APPS, [(one.version - 1, one) for one in later], rows, OutboxBatch([])
            ) == set(ids)
            return int((await tx.execute(READ_IN_WHOLE)).scalar_one()) - before

    for more in range(12):
        assert await work(more) > 0, "a small table is read as a whole"
    await stored(database, APPS, [started(f"more-{place}") for place in range(ROWS)])
    assert await work(12) == 0


async def test_wake_ups_are_found_by_their_time(database: Database, of: Of, many: list[Instance]) -> None:
    pair, saga = of
    index = f"ix_{pair.instances.name}_wake_at"
    await by_index(database, lambda tx: instances.due(tx, pair, [saga], 100), index, HELD)
    unrunnable = [(saga, 2), (saga, 3)]
    await by_index(database, lambda tx: instances.due(tx, pair, [saga], 100, unrunnable), index, HELD)
    await by_index(database, lambda tx: instances.next_wake(tx, pair, [saga], unrunnable), index, HELD)
    await by_index(database, lambda tx: instances.overdue(tx, pair, saga, 15.0, 100), index)
    await by_index(database, lambda tx: instances.deadlines(tx, pair, [saga], 5), index)
    after = many[0].created_at + timedelta(seconds=1), 5
    await by_index(database, lambda tx: instances.deadlines(tx, pair, [saga], 5, after), index)


async def test_the_stuck_are_found_without_the_rest(database: Database, of: Of, many: list[Instance]) -> None:
    pair, saga = of
    name = pair.instances.name
    mysql = database.dialect.name == "mysql"
    index = f"ix_{name}_{'' if pair.saga else 'saga_'}state_created_at_id" if mysql else f"ix_{name}_stuck"
    all_stuck = InstanceFilter(stuck=True)
    filters = [
        all_stuck,
        replace(all_stuck, prefix="name-"),
        replace(all_stuck, created_by="ada"),
        replace(all_stuck, created_after=many[0].created_at - timedelta(days=1)),
    ]
    for wanted, sort in product(filters, ("-createdAt", "createdAt", "-updatedAt", "key")):

        async def listed(tx: Transaction, wanted: InstanceFilter = wanted, sort: str = sort) -> None:
            assert len(await instances.page(tx, pair, saga, wanted, sort)) == 3

        found = [access for access in await found_by(database, listed) if access.table == name]
        hindered = index if mysql else f"ix_{name}_hindered"
        assert [access.index for access in found] == [index, hindered], (wanted, sort)
        assert (found[0].bounded and found[1].bounded) or not mysql, (wanted, sort)


async def test_those_whose_queue_has_no_consumer_are_found_by_an_index_of_their_own(
    database: Database, of: Of, many: list[Instance]
) -> None:
    """Be they few or nearly all. MySQL has no index of some rows alone, and looks through the live ones."""
    pair, saga = of
    name, by_state = pair.instances.name, f"{'' if pair.saga else 'saga_'}state_created_at_id"
    indexes = [by_state] * 2 if database.dialect.name == "mysql" else ["stuck", "hindered"]
    for rows in (many[:2], many[:-3]):
        async with database.begin() as tx:
            await hindered_instances.record(tx, pair, rows, "no_consumer")

        async def listed(tx: Transaction, count: int = len(rows)) -> None:
            found = await instances.page(tx, pair, saga, InstanceFilter(stuck=True), "-createdAt", len(many))
            assert len(found) == count + 3

        found = [access for access in await found_by(database, listed) if access.table == name]
        assert [access.index for access in found] == [f"ix_{name}_{index}" for index in indexes]
        await analyse(database, name)


async def test_what_is_held_up_from_outside_is_found_by_its_state_or_its_id(
    database: Database, of: Of, many: list[Instance]
) -> None:
    pair, saga = of
    name = pair.instances.name
    by_state = f"ix_{name}_{'' if pair.saga else 'saga_'}state_created_at_id"
    indexes = (PRIMARY, by_state, f"ix_{name}_stuck", f"ix_{name}_hindered")
    told = ExternalBlockers([many[0].state], [one.id for one in many[:3]])

    async def listed(tx: Transaction) -> None:
        found = await instances.page(tx, pair, saga, InstanceFilter(stuck=True, blockers=told), "-createdAt")
        assert len(found) == len(many)

    found = await found_by(database, listed)
    assert {access.index for access in found if access.index is not None} <= set(indexes), found
    assert {access.table for access in found if access.index is None} & {name} == set(), found


async def test_what_is_held_up_in_too_many_cases_is_found_by_its_wake_up_or_its_job(
    database: Database, of: Of, many: list[Instance]
) -> None:
    pair, saga = of
    await database.ping()
    now = database.now()
    waiting = [pending(database, saga="other") for _ in range(ROWS // 10)]
    held = pending(database, saga=saga, state="DISPATCHED", instance_id=many[0].id, dispatched_at=now - SECOND)
    async with database.begin() as tx:
        late = [stepped(one, wake_at=now - timedelta(minutes=1)) for one in many[1:4]]
        job = stepped(many[0], wake_reason="job", wake_at=now + timedelta(minutes=1), command_id=held.id)
        await instances.update(tx, pair, [(one.version - 1, one) for one in [*late, job]])
        await jobs.insert(tx, [*waiting, held])
    await analyse(database, pair.instances.name, "jobs")
    name = pair.instances.name
    state = f"ix_{name}_{'' if pair.saga else 'saga_'}state_created_at_id"
    which = UnservedJobs(saga, {"DISPATCHED": now}, ["served"])
    told = ExternalBlockers(overdue_since=now - timedelta(seconds=15), unserved_jobs=which)

    async def listed(tx: Transaction) -> None:
        found = await instances.page(tx, pair, saga, InstanceFilter(stuck=True, blockers=told), "key")
        assert {one.id for one in found} == {one.id for one in [*many[:4], *many[-3:]]}

    found = await found_by(database, listed)
    own = {access.index for access in found if access.table in (name, "i")}
    assert f"ix_{name}_wake_at" in own, found
    assert own <= {PRIMARY, f"ix_{name}_wake_at", f"ix_{name}_stuck", f"ix_{name}_hindered", state}, found
    assert {access.index for access in found if access.table == "jobs"} <= JOB_INDEXES, found
    assert {access.bounded for access in found if access.table == "jobs"} == {True}, found


JOB_INDEXES = {
    PRIMARY,
    "ix_jobs_state_created_at_id",
    "ix_jobs_state_channels_wake_at",
    "ix_jobs_state_channels_queue_wake_at",
    "ix_jobs_state_channels_executor_group_wake_at",
}
"""Each finds the live jobs by their state, and reads no others."""


async def test_what_is_held_up_is_looked_for_among_the_first_rows_without_the_others(
    database: Database, of: Of, many: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are among them, nothing else is looked at."""
    monkeypatch.setattr(instance_pages, "SHORT_SCAN_ROWS", 20)
    pair, saga = of
    told = ExternalBlockers(overdue_since=many[-1].created_at + timedelta(hours=1))

    async def listed(tx: Transaction) -> None:
        found = await instances.page(tx, pair, saga, InstanceFilter(stuck=True, blockers=told), "-createdAt", 5)
        assert [one.id for one in found] == [one.id for one in reversed(many[-5:])]

    with watched(database) as sent:
        async with database.begin() as tx:
            await listed(tx)
    (query,) = sent
    found = await accesses(database, query)
    name = pair.instances.name
    in_order = f"ix_{name}_{'' if pair.saga else 'saga_'}created_at_id_{'app_name' if pair.saga else 'key'}"
    assert {access.index for access in found if access.table == name} == {PRIMARY, in_order}, found


async def test_the_outbox_is_claimed_and_emptied_by_index(database: Database) -> None:
    rows = [message(place, version) for place in range(ROWS // 2) for version in (1, 2)]
    async with database.begin() as tx:
        await outbox.insert(tx, rows, "other", 600)
        await outbox.release(tx, [row.id for row in rows[:10]])
    await analyse(database, "outbox")
    ids = [row.id for row in rows[:10]]
    works: list[Work] = [
        lambda tx: outbox.claim(tx, "me", 30, 100),
        lambda tx: outbox.release(tx, ids),
        lambda tx: outbox.unpark(tx, ids),
        lambda tx: outbox.park(tx, ids[0], "bad"),
        lambda tx: outbox.of_instance(tx, "app", 1),
        lambda tx: outbox.withdraw(tx, ids[5:]),
        lambda tx: outbox.delete(tx, ids[:5]),
    ]
    for work in works:
        await by_index(database, work, PRIMARY, "ix_outbox_claimed_until", "ix_outbox_saga_instance_id_version_n")


async def test_dead_letters_are_found_by_index(database: Database) -> None:
    letters = [
        letter(f"n{place}", queue=f"q{place % 400}", saga="app", instance_id=place % 400, died_at=DIED + place * SECOND)
        for place in range(ROWS)
    ]
    async with database.begin() as tx:
        await dead_letters.record(tx, letters)
        await dead_letters.redriven(tx, [one.id for one in letters[10:]], DIED + timedelta(days=1))
    await analyse(database, "dead_letters")
    after = letters[3].died_at, letters[3].id
    ids = [one.id for one in letters[:5]]
    every = ("died_at_id", "redriven_at_died_at_id", "queue_died_at_id", "saga_instance_id")
    indexes = [f"ix_dead_letters_{columns}" for columns in every]
    works: list[Work] = [
        lambda tx: dead_letters.page(tx, DeadLetterFilter(), 5),
        lambda tx: dead_letters.page(tx, DeadLetterFilter(), 5, after),
        lambda tx: dead_letters.page(tx, DeadLetterFilter(queue="q1"), 5),
        lambda tx: dead_letters.page(tx, DeadLetterFilter(open_only=False, queue="q1"), 5, after),
        lambda tx: dead_letters.of_instance(tx, "app", 1),
        lambda tx: dead_letters.about(tx, "app", ["q1", "q2"], 5),
        lambda tx: dead_letters.several(tx, ids),
        lambda tx: dead_letters.owners(tx, [("app", 1), ("app", 2)]),
        lambda tx: dead_letters.record(tx, [replace(letters[-1], died_at=DIED)]),
        lambda tx: dead_letters.redriven(tx, ids, DIED),
        lambda tx: dead_letters.drop(tx, ids),
    ]
    for work in works:
        await by_index(database, work, PRIMARY, *indexes)


async def test_a_plan_without_an_index_is_seen(database: Database) -> None:
    await some(database, 100)
    found = await found_by(database, lambda tx: instances.page(tx, APPS, "app", InstanceFilter(), "-updatedAt"))
    assert found[0].index is None
    assert not found[0].bounded


async def test_the_counts_for_metrics_read_no_table_of_sagas_in_whole(
    database: Database, of: Of, many: list[Instance]
) -> None:
    pair, saga = of
    name, states = pair.instances.name, {saga: {many[0].state}}

    async def counted(tx: Transaction) -> None:
        assert (await cluster_counts.active_sagas(tx, states)).total() == 10
        assert (await cluster_counts.stuck_sagas(tx, [saga], timedelta(seconds=30))) == {saga: 3}
        assert await cluster_counts.late_timers(tx, timedelta(days=1)) == 0

    found = [access for access in await found_by(database, counted) if access.table == name]
    assert len(found) >= 5
    assert [access for access in found if access.index is None] == []
