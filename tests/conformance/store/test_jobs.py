"""Are jobs written and found alike on all databases, by the right node and within the right term?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import (
    DISPATCHED,
    FAILED,
    HANDING_OFF,
    ORPHAN_PENDING,
    PENDING,
    RUNNING,
    SUCCEEDED,
    AttemptStatus,
    JobAttempt,
    JobRow,
    JobTransition,
)
from orchestrix.errors import ConflictError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_heartbeats, job_predicates, jobs
from orchestrix.persistence.jobs.job_predicates import JobsToRescue
from orchestrix.persistence.jobs.jobs import JobFilter
from tests.integration.jobs.rows import joined, stopped

SECOND = timedelta(seconds=1)
HEARD = 15.0


def pending(database: Database, **more: Any) -> JobRow:
    """A job that is due."""
    now = database.now() - SECOND
    fields = {"created_by": "ada", "correlation_id": "c", "created_at": now, "updated_at": now, "wake_at": now}
    return JobRow(**{"id": clock.uuid7(), "queue": "q", "handler": "h", **fields, **more})


async def inserted(database: Database, *new: JobRow) -> list[JobRow]:
    """The jobs, as they are in the database."""
    await database.ping()
    async with database.begin() as tx:
        assert await jobs.insert(tx, new) == {job.id for job in new}
    return [await now(database, job) for job in new]


async def now(database: Database, job: JobRow) -> JobRow:
    """The job as it is."""
    async with database.read() as connection:
        found = await jobs.get(connection, job.id)
    assert found is not None
    return found


async def stored(database: Database, before: JobRow, after: JobRow | JobTransition) -> JobRow:
    """What has become of the job, written."""
    job, attempts = (
        (after.job, [after.attempt] if after.attempt else []) if isinstance(after, JobTransition) else (after, [])
    )
    async with database.begin() as tx:
        await jobs.store(tx, [(before.version, job)], attempts)
    return job


async def dispatched(database: Database, **more: Any) -> JobRow:
    """A job whose attempt is out."""
    [job] = await inserted(database, pending(database, **more))
    return await stored(database, job, rules.dispatched(job, clock.uuid7(), database.now()))


async def running(database: Database, **more: Any) -> JobRow:
    """A job that a worker is at."""
    job = await dispatched(database, **more)
    status = AttemptStatus(job.id, str(job.history_id), "w", 1, "RUNNING")
    moved = rules.reported(job, status, database.now(), 0.5)
    assert isinstance(moved, JobTransition)
    return await stored(database, job, moved)


async def owned(database: Database, node: str, job: JobRow) -> JobRow:
    """The job, taken by a node."""
    return await stored(database, job, rules.taken(job, node, database.now()))


async def test_a_job_comes_back_as_it_went_in(database: Database) -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    full = pending(
        database,
        payload={"deep": [1, 2.5, None, {"é": "😀"}], "big": 2**53 - 1},
        queue="Reports.eu_1",
        handler="müllabfuhr",
        retries=3,
        timeout_ms=2**40,
        schedule_id=clock.uuid7(),
        due_at=moment,
        saga="order",
        instance_id=2**60,
        step="print",
        executor_group="g",
        routing="ROUND",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        tracestate="a=1",
        trace_head="00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01",
    )
    bare = pending(database)
    found = await inserted(database, full, bare)
    assert found == [replace(full, created_at=found[0].created_at, updated_at=found[0].updated_at), found[1]]
    assert found[1] == bare


async def test_everything_that_moves_is_stored(database: Database) -> None:
    [job] = await inserted(database, pending(database))
    moment = database.now()
    changed = replace(
        job,
        state=FAILED,
        ownership=HANDING_OFF,
        owner="n-1",
        owner_epoch=7,
        channels=1,
        history_id=clock.uuid7(),
        attempt=4,
        tries=3,
        updated_at=moment,
        version=9,
        wake_at=None,
        dispatched_at=moment,
        started_at=moment,
        finished_at=moment,
        cancel_reason="ü" * 500,
        worker_id="w",
        worker_beat_at=moment,
        progress=[1, {"a": None}],
        result={"a": "\u2028"},
        error={"type": "x"},
        seq=2**40,
        last_log_seq=5,
        handoff_reason="Shutdown",
        handoff_at=moment,
        handoff_tries=2,
        taken_at=moment,
        trace_head="00-4bf92f3577b34da6a3ce929d0e0e4736-2222222222222222-03",
    )
    assert await stored(database, job, changed) == await now(database, job)


async def test_a_change_of_another_version_is_refused(database: Database) -> None:
    one, other = await inserted(database, pending(database), pending(database))
    await stored(database, one, rules.taken(one, "a", database.now()))
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await jobs.store(tx, [(job.version, rules.taken(job, "b", tx.now())) for job in (one, other)])
    assert (await now(database, one)).owner == "a"
    assert (await now(database, other)).owner is None


async def test_one_time_of_a_schedule_makes_one_job(database: Database, peer: Database) -> None:
    due = datetime(2026, 1, 31, 12, tzinfo=UTC)
    first = pending(database, schedule_id="s", due_at=due)
    [_] = await inserted(database, first)
    again, later = pending(peer, schedule_id="s", due_at=due), pending(peer, schedule_id="s", due_at=due + SECOND)
    async with peer.begin() as tx:
        assert await jobs.insert(tx, [again, later, first]) == {later.id, first.id}


async def test_of_two_nodes_one_takes_a_job(database: Database, peer: Database) -> None:
    job = await dispatched(database)

    async def take(store: Database, node: str) -> bool:
        async with store.begin() as tx:
            found = (await jobs.lock(tx, [job.id]))[job.id]
            if found.owner is not None:
                return False
            await jobs.store(tx, [(found.version, rules.taken(found, node, tx.now()))])
            return True

    await peer.ping()
    assert sorted(await asyncio.gather(take(database, "a"), take(peer, "b"))) == [False, True]
    assert (await now(database, job)).owner_epoch == 1


async def test_how_long_until_something_is_due(database: Database) -> None:
    async with database.read() as connection:
        assert await jobs.next_due(connection) is None
        assert await job_predicates.jobs_to_rescue(connection, 30.0, HEARD, None) == JobsToRescue(
            False, False, False, None
        )
    await inserted(database, pending(database, wake_at=database.now() + 60 * SECOND))
    await running(database, timeout_ms=30_000)
    async with database.read() as connection:
        due, over = (
            await jobs.next_due(connection),
            (await job_predicates.jobs_to_rescue(connection, None, HEARD, None)).left,
        )
    assert due is not None
    assert over is not None
    assert (55 < due < 61, 25 < over < 31) == (True, True)


async def found(database: Database, find: Any, *arguments: Any) -> list[str]:
    """The ids of what a look finds."""
    async with database.begin() as tx:
        return sorted(job.id for job in await find(tx, *arguments))


async def signs(database: Database, silent: float | None = 30.0, since: datetime | None = None) -> JobsToRescue:
    """What there is for the leader to do."""
    async with database.read() as connection:
        return await job_predicates.jobs_to_rescue(connection, silent, HEARD, since)


async def test_whose_time_is_over(database: Database) -> None:
    await owned(database, "gone", await running(database, timeout_ms=1))  # what was said of it nobody has read
    late = await running(database, timeout_ms=1)
    unclaimed = await dispatched(database, timeout_ms=1)
    moving = await owned(database, "a", await running(database, timeout_ms=1))
    await stored(database, moving, rules.offered(moving, "Shutdown", HANDING_OFF, database.now()))
    await running(database, timeout_ms=60_000)
    await running(database)
    await _passed(database, late)
    assert await found(database, jobs.timed_out, 10, HEARD) == sorted([late.id, unclaimed.id])
    assert (await signs(database)).timed_out
    assert not (await signs(database, since=database.now() + SECOND)).timed_out, "all were sent before"


async def _passed(database: Database, job: JobRow) -> None:
    """Waits until the job's time is over by the database's clock."""
    from tests.support import eventually

    async def over() -> bool:
        left = (await signs(database)).left
        return left is not None and left < -0.01

    await eventually(over, deadline=5)
    assert job.id


async def test_whose_worker_is_silent(database: Database) -> None:
    silent = await owned(database, "a", await running(database))
    beating = await owned(database, "a", await running(database))
    await running(database)  # nobody would have heard it
    old = database.now() - 40 * SECOND
    for job in (silent, beating):
        await stored(database, job, replace(job, version=job.version + 1, worker_beat_at=old, taken_at=old))
    async with database.begin() as tx:
        await job_heartbeats.record_heartbeats(tx, [str(beating.history_id), "unknown"], tx.now())
    assert await found(database, jobs.silent, 30.0, 10, HEARD) == [], "nobody has read what it may have said"
    assert not (await signs(database)).silent
    await joined(database, "a")
    assert await found(database, jobs.silent, 30.0, 10, HEARD) == [silent.id]
    assert ((await signs(database)).silent, (await signs(database, silent=None)).silent) == (True, False)
    assert (await now(database, beating)).version == beating.version + 1, "a beat is no change"


async def test_a_new_owner_has_time_to_read_what_a_silent_worker_has_said(database: Database) -> None:
    await joined(database, "a")
    job = await running(database)
    old = database.now() - 40 * SECOND
    job = await stored(database, job, replace(job, version=job.version + 1, worker_beat_at=old))
    job = await owned(database, "a", job)
    assert job.worker_beat_at == old
    assert await found(database, jobs.silent, 30.0, 10, HEARD) == []
    assert not (await signs(database)).silent
    await stored(database, job, replace(job, version=job.version + 1, taken_at=database.now() - 31 * SECOND))
    assert await found(database, jobs.silent, 30.0, 10, HEARD) == [job.id]


async def test_who_owns_nothing(database: Database) -> None:
    old = database.now() - 60 * SECOND
    lost = await dispatched(database)
    lost = await stored(database, lost, replace(lost, version=lost.version + 1, dispatched_at=old))
    await dispatched(database)
    await owned(database, "a", await dispatched(database))
    [never] = await inserted(database, pending(database))
    assert await found(database, jobs.unowned, 30.0, 10) == [lost.id]
    assert (await ownerless(database))[1]
    await stored(database, lost, rules.offered(lost, "Unowned", None, database.now()))
    assert await found(database, jobs.unowned, 30.0, 10) == []
    assert not (await ownerless(database))[1]
    assert never.channels == 0


async def ownerless(database: Database) -> tuple[bool, bool]:
    """Whether there are orphan detector, and such as nobody has ever owned."""
    async with database.read() as connection:
        return await job_predicates.ownerless(connection, 30.0, 30.0)


@pytest.mark.req("S0-55")
async def test_whose_owner_is_gone(database: Database) -> None:
    for node in ("alive", "dead", "left"):
        await joined(database, node)
    await stopped(database, "dead", "DEAD")
    await stopped(database, "left", "LEFT")
    by = {node: await owned(database, node, await running(database)) for node in ("alive", "dead", "left", "unknown")}
    given = await owned(database, "alive", await running(database))
    given = await stored(database, given, rules.offered(given, "Shutdown", ORPHAN_PENDING, database.now()))
    moving = await owned(database, "alive", await running(database))
    await stored(database, moving, rules.offered(moving, "Shutdown", HANDING_OFF, database.now()))
    orphans = sorted([by["dead"].id, by["left"].id, by["unknown"].id, given.id])
    assert await found(database, jobs.orphans, 30.0, 10) == orphans
    assert await ownerless(database) == (True, False)
    for job in (by["dead"], by["left"], by["unknown"], given):
        await stored(database, job, rules.offered(job, "NodeCrash", ORPHAN_PENDING, database.now()))
    assert await found(database, jobs.orphans, 30.0, 10) == [], "they were offered just now"
    assert await ownerless(database) == (False, False)
    assert await found(database, jobs.orphans, 0.0, 10) == orphans


@pytest.mark.req("S0-65")
async def test_what_a_node_owns(database: Database) -> None:
    await joined(database, "a")
    await joined(database, "idle")
    one = await owned(database, "a", await running(database))
    two = await owned(database, "a", await dispatched(database))
    other = await owned(database, "b", await dispatched(database))
    done = rules.reported(one, AttemptStatus(one.id, str(one.history_id), "w", 2, "SUCCEEDED"), database.now(), 0.5)
    assert isinstance(done, JobTransition)
    await stored(database, one, done)
    async with database.read() as connection:
        mine = await jobs.owned_by(connection, "a")
        assert [(held.id, held.owner_epoch, held.ended) for held in mine] == sorted(
            [(one.id, 1, True), (two.id, 1, False)]
        )
        assert await jobs.loads(connection) == {"a": 2, "b": 1}
        assert await jobs.balance(connection) == {"a": 2, "idle": 0}
    await stored(database, other, rules.closed(other, database.now()))
    async with database.read() as connection:
        assert await jobs.owned_by(connection, "b") == []


async def test_what_a_broker_without_memory_has_not_sent(database: Database) -> None:
    from orchestrix.persistence.cluster import broker_incarnation

    before = await dispatched(database)
    began = await running(database)
    assert await found(database, jobs.dispatched_before_reset, 10) == []
    assert not (await signs(database)).dispatched_before_reset
    later = database.now() + SECOND
    await stored(database, before, replace(before, version=before.version + 1, dispatched_at=later - 5 * SECOND))
    async with database.begin() as tx:
        await broker_incarnation.replace(tx, None, clock.uuid7())
    after = await dispatched(database)
    assert await found(database, jobs.dispatched_before_reset, 10) == [before.id]
    assert (await signs(database)).dispatched_before_reset
    assert (began.state, after.state) == (RUNNING, DISPATCHED)


async def test_attempts_are_kept_each_with_its_end(database: Database) -> None:
    job = await running(database, retries=1)
    moved = rules.ended(
        job, rules.AttemptEnding(FAILED, {"type": "x"}, last_log_seq=4, answered=True), database.now(), 0.0
    )
    again = await stored(database, job, moved)
    second = await stored(database, again, rules.dispatched(again, clock.uuid7(), database.now()))
    async with database.read() as connection:
        tried = await jobs.attempts(connection, job.id)
        named = await jobs.histories(connection, [str(job.history_id), "unknown"])
        current = await jobs.by_histories(connection, [str(job.history_id), str(second.history_id)])
    assert [(one.attempt, one.state, one.worker_id, one.last_log_seq) for one in tried] == [
        (1, FAILED, "w", 4),
        (2, DISPATCHED, None, None),
    ]
    assert tried[0].error == {"type": "x"}
    assert named == {str(job.history_id): tried[0]}
    assert list(current) == [second.history_id]
    assert isinstance(tried[0], JobAttempt)


async def test_pages_show_each_job_once_the_newest_first(database: Database) -> None:
    at = database.now()
    new = [
        pending(
            database,
            created_at=at - (n // 2) * SECOND,
            queue="even" if n % 2 == 0 else "odd",
            created_by="ada" if n < 3 else "bob",
            payload={"n": n},
        )
        for n in range(7)
    ]
    await inserted(database, *new)
    await stored(database, new[0], rules.cancelled(new[0], "x", database.now()))
    wanted = sorted(new, key=lambda job: (job.created_at, job.id), reverse=True)
    seen: list[str] = []
    after = None
    while page := await _page(database, JobFilter(), 3, after):
        seen += [job.id for job in page]
        after = (page[-1].created_at, page[-1].id)
        assert page[0].payload is None
    assert seen == [job.id for job in wanted]
    even = [job.id for job in wanted if job.queue == "even"]
    assert [job.id for job in await _page(database, JobFilter(queue="even"), 10)] == even
    assert {job.id for job in await _page(database, JobFilter(created_by="ada"), 10)} == {job.id for job in new[:3]}
    states = await _page(database, JobFilter(states=[PENDING, SUCCEEDED]), 10)
    assert {job.id for job in states} == {job.id for job in new[1:]}


async def _page(database: Database, wanted: JobFilter, limit: int, after: Any = None) -> list[JobRow]:
    async with database.read() as connection:
        return await jobs.page(connection, wanted, limit, after)
