"""Does anything wait for the old time to come again after the clock was set back?"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from orchestrix.domain.nodes import is_silent
from orchestrix.domain.schedules import QUEUED_WAKE_AT, DueTimes, Interval, times_of
from orchestrix.domain.stored_times import believed
from orchestrix.persistence import clock_rollback, idempotency, outbox, tables, throttle
from orchestrix.persistence.cluster import broker_incarnation, nodes, write_probes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.jobs import job_admission, job_predicates, job_queues, jobs, schedules
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.commands import NEVER
from tests.conformance.store.build import PAIRS, message, some
from tests.conformance.store.test_jobs import dispatched, inserted, now, owned, pending, running
from tests.conformance.store.test_schedules import Cluster, schedule
from tests.integration.jobs.rows import joined

BACK = timedelta(hours=1)
CLAIM = 15.0
SECOND = timedelta(seconds=1)


async def put_off(database: Database, table: Any, *names: str) -> None:
    """These times of all rows are as the clock was before it was set back."""
    await database.ping()
    async with database.begin() as tx:
        for row in (await tx.execute(select(table))).mappings().all():
            changed = {name: row[name] + BACK for name in names if row[name] is not None}
            key = next(iter(table.primary_key.columns))
            await tx.execute(update(table).where(key == row[key.name]).values(changed))


async def mend(database: Database) -> int:
    return await clock_rollback.repair(database, CLAIM)


async def test_a_clock_that_goes_forward_is_never_suspected(database: Database) -> None:
    await some(database, 2)
    await running(database)
    await joined(database, "a-1")
    await database.run(lambda tx: write_probes.write(tx, "n"))
    async with database.read() as connection:
        assert await clock_rollback.ahead_s(connection) == 0.0
    assert await mend(database) == 0


@pytest.mark.parametrize("table", ["apps", "saga_instances", "jobs", "nodes", "workers", "write_probes", "throttles"])
async def test_one_row_from_the_future_tells(database: Database, table: str) -> None:
    made: dict[str, Callable[[], Awaitable[Any]]] = {
        "apps": lambda: some(database, 1),
        "saga_instances": lambda: some(database, 1, *PAIRS["sagas"]),
        "jobs": lambda: inserted(database, pending(database)),
        "nodes": lambda: joined(database, "a-1"),
        "workers": lambda: database.run(
            lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w", ["q"], 0)])
        ),
        "write_probes": lambda: database.run(lambda tx: write_probes.write(tx, "n")),
        "throttles": lambda: database.run(lambda tx: throttle.take(tx, "t", 1, 1.0)),
    }
    await made[table]()
    column = (
        "created_at"
        if table in ("apps", "saga_instances", "jobs")
        else "at"
        if table in ("write_probes", "throttles")
        else "beat_at"
    )
    await put_off(database, getattr(tables, table), column)
    async with database.read() as connection:
        assert await clock_rollback.ahead_s(connection) == pytest.approx(3600, abs=30)


async def test_a_dead_nodes_claim_ends(database: Database) -> None:
    (one, other) = await some(database, 2)
    async with database.begin() as tx:
        await outbox.insert(tx, [message(one.id, 1)], claimed_by="dead", lease_s=CLAIM)
        await outbox.insert(tx, [message(other.id, 1)], claimed_by="alive", lease_s=CLAIM)
    table = tables.outbox
    far = update(table).where(table.c.instance_id == one.id).values(claimed_until=database.now() + BACK)
    await database.run(lambda tx: tx.execute(far))
    assert await mend(database) == 1
    claimed = await database.run(lambda tx: outbox.claim(tx, "me", CLAIM, 10))
    assert [row.instance_id for row in claimed] == [one.id]


async def test_sagas_wait_no_longer_than_they_were_to(database: Database, of: tuple[SagaTables, str]) -> None:
    pair, saga = of
    (late, never, right) = await some(database, 3, pair, saga)
    await put_off(database, pair.instances, "wake_at", "sent_at")
    table, head = pair.instances, f"00-{'a' * 32}-{'b' * 16}-01"
    for id, at in ((never.id, NEVER), (right.id, right.wake_at)):
        change = update(table).where(table.c.id == id).values(wake_at=at)
        await database.run(lambda tx, change=change: tx.execute(change))  # type: ignore[misc]
    await database.run(lambda tx: tx.execute(update(table).where(table.c.id == late.id).values(trace_head=head)))
    assert await mend(database) == 1
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [late.id, never.id, right.id])
    mended = found[late.id].wake_at
    assert mended is not None
    assert late.wake_at is not None
    assert abs(mended - late.wake_at) < timedelta(seconds=30)
    assert found[late.id].version == late.version, "the machine's own wake-ups are no change"
    assert found[late.id].trace_head == head, "its trace goes on where it was"
    assert (found[never.id].wake_at, found[right.id].wake_at) == (NEVER, right.wake_at)


async def test_what_a_person_has_said_stays(database: Database, of: tuple[SagaTables, str]) -> None:
    pair, saga = of
    (extended, queued, retried) = await some(database, 3, pair, saga)
    table, at = pair.instances, (database.now() + timedelta(days=3)).replace(microsecond=0)
    for one, reason in ((extended, "deadline"), (queued, "backlog"), (retried, "retry")):
        change = update(table).where(table.c.id == one.id).values(wake_at=at, wait_ms=0, wake_reason=reason)
        await database.run(lambda tx, change=change: tx.execute(change))  # type: ignore[misc]
    assert await mend(database) == 1
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [extended.id, queued.id, retried.id])
    mended = found[retried.id].wake_at
    assert mended is not None
    assert mended < at, "a retry that was due at once"
    assert (found[extended.id].wake_at, found[queued.id].wake_at) == (at, at)


async def test_what_was_mended_is_not_locked_again(
    database: Database, of: tuple[SagaTables, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, saga = of
    ones = await some(database, 3, pair, saga)
    long = update(pair.instances).where(pair.instances.c.id == ones[0].id)
    await database.run(
        lambda tx: tx.execute(long.values(wake_at=database.now() + timedelta(seconds=3500), wait_ms=3_600_000))
    )
    waiting = replace(pending(database), wake_at=database.now() + BACK)
    await inserted(database, waiting)
    await running(database, timeout_ms=3_600_000)
    looked: list[datetime] = []

    def at(until: datetime, now: datetime, longest: timedelta) -> datetime:
        looked.append(until)
        return believed(until, now, longest)

    monkeypatch.setattr(clock_rollback, "believed", at)
    assert await mend(database) == 0
    assert looked == [], "each row that is read is locked"
    late = update(pair.instances).where(pair.instances.c.id == ones[1].id)
    await database.run(lambda tx: tx.execute(late.values(wake_at=database.now() + BACK, wait_ms=60_000)))
    assert (await mend(database), len(looked)) == (1, 1)
    assert (await mend(database), len(looked)) == (0, 1)


async def test_jobs_are_due_and_their_workers_silent_in_time(database: Database) -> None:
    await joined(database, "a-1")
    [waiting, held] = await inserted(database, pending(database), replace(pending(database), wake_at=QUEUED_WAKE_AT))
    sent = await dispatched(database)
    busy = await owned(database, "a-1", await running(database, timeout_ms=60_000))
    late = ("wake_at", "updated_at", "dispatched_at", "worker_beat_at", "taken_at", "handoff_at")
    await put_off(database, tables.jobs, *late)
    await database.run(
        lambda tx: tx.execute(update(tables.jobs).where(tables.jobs.c.id == held.id).values(wake_at=QUEUED_WAKE_AT))
    )
    assert await mend(database) >= 3
    soon = database.now() + timedelta(seconds=1)
    found = {job.id: await now(database, job) for job in (waiting, held, sent, busy)}
    assert found[held.id].wake_at == QUEUED_WAKE_AT
    for name in late[1:]:
        times = [getattr(found[job.id], name) for job in (waiting, sent, busy)]
        assert all(at is None or at <= soon for at in times), name
    wake_at = found[busy.id].wake_at
    assert wake_at is not None
    assert wake_at <= soon + timedelta(seconds=60)
    due = await database.run(lambda tx: job_admission.due(tx, 10, 10, 30.0))
    assert [job.id for job in due] == [waiting.id]
    unowned = await database.run(lambda tx: jobs.unowned(tx, -1.0, 10))
    assert sent.id in [job.id for job in unowned]
    assert await mend(database) == 0


async def test_a_live_jobs_own_time_is_believed(database: Database) -> None:
    job = await running(database, timeout_ms=3_600_000)
    paused = await inserted(database, replace(pending(database), wake_at=database.now() + BACK))
    assert await mend(database) == 0
    assert [one.wake_at for one in paused] == [(await now(database, paused[0])).wake_at]
    assert (await now(database, job)).wake_at == job.wake_at


async def test_a_beat_that_is_yet_to_come_is_none(database: Database) -> None:
    await joined(database, "a-1")
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w", ["q"], 0)]))
    await put_off(database, tables.nodes, "beat_at")
    await put_off(database, tables.workers, "beat_at")
    async with database.read() as connection:
        living = await nodes.living(connection)
        assert list((await connection.execute(job_predicates.listening(connection, 30))).scalars()) == []
        assert await nodes.listed_workers(connection, 10, 600) == []
        crew = (await job_queues.queue_workers(connection, ["q"], 30))["q"]
    assert (crew.known, crew.silent) == (0, 0)
    since = living.now - timedelta(seconds=31)
    assert is_silent(living.nodes[0], now=living.now, since=since, limit=30.0)
    assert not is_silent(living.nodes[0], now=living.now, since=living.now, limit=30.0)


async def test_a_broker_that_forgot_is_not_left_to_a_node_of_the_future(database: Database) -> None:
    await database.run(lambda tx: broker_incarnation.replace(tx, None, "one"))
    await put_off(database, tables.broker_incarnation, "changed_at")
    async with database.read() as connection:
        assert await broker_incarnation.age(connection) == math.inf


async def test_a_throttle_goes_on(database: Database) -> None:
    assert await database.run(lambda tx: throttle.take(tx, "t", 5, 5.0)) == 5
    await put_off(database, tables.throttles, "at")
    await database.run(lambda tx: throttle.take(tx, "t", 5, 1e6))
    async with database.read() as connection:
        at: datetime = (await connection.execute(select(tables.throttles.c.at))).scalar_one()
    assert at <= database.now() + SECOND


async def test_an_answer_from_the_future_is_forgotten_in_the_end(database: Database) -> None:
    await database.run(lambda tx: idempotency.insert(tx, "s", "k", StoredAnswer("f", 200, {}, b"")))
    await put_off(database, tables.idempotency_keys, "created_at")
    assert await database.run(lambda tx: idempotency.purge(tx, older_than_s=7200)) == 0
    assert await database.run(lambda tx: idempotency.purge(tx, older_than_s=1800)) == 1


async def test_schedules_go_on_by_the_clock_as_it_is(database: Database) -> None:
    cluster = Cluster(database)
    made = database.now().replace(microsecond=0) + BACK
    often = schedule("often", made, interval_ms=2000, starts_at=None, due_at=made + 4 * SECOND)
    daily = schedule("daily", made, interval_ms=None, cron="0 0 * * *", starts_at=None, due_at=made + timedelta(days=9))
    await cluster.put(often, replace(daily, next_at=daily.due_at))
    scheduler = await cluster.leader()
    await scheduler._follow_clock()
    async with database.read() as connection:
        dues = [one.due_at for one in await schedules.page(connection, 10)]
    soon, tomorrow = dues[1], dues[0]
    assert soon is not None
    assert tomorrow is not None
    assert timedelta(0) < soon - database.now() <= 3 * SECOND
    assert tomorrow - database.now() <= timedelta(days=1)


@pytest.mark.parametrize(("interval_ms", "again"), [(2000, True), (7_200_000, False)])
async def test_what_comes_often_comes_again_and_what_comes_seldom_has_been(
    database: Database, interval_ms: int, again: bool
) -> None:
    cluster = Cluster(database)
    due = database.now().replace(microsecond=0) - SECOND
    one = schedule("s", due, interval_ms=interval_ms, overlap="queue")
    await cluster.put(one)
    before = replace(pending(database), schedule_id=one.id, due_at=due)
    await inserted(database, before)
    scheduler = await cluster.leader()
    await put_off(database, tables.jobs, "created_at")
    await scheduler.fire()
    async with database.read() as connection:
        found = await jobs.page(connection, jobs.JobFilter(), 10)
    assert len(found) == 1 + again
    assert {job.due_at for job in found if job.id != before.id} == ({None} if again else set())


async def test_what_comes_often_comes_again_at_times_of_which_later_ones_have_been(database: Database) -> None:
    """The job of 12:00 was made at 12:00, which is now; but one of 13:00 is there too."""
    cluster = Cluster(database)
    due = database.now().replace(microsecond=0) - SECOND
    one = schedule("s", due, interval_ms=60_000, overlap="cancel_previous")
    await cluster.put(one)
    first = replace(pending(database), schedule_id=one.id, due_at=due, created_at=due, state="SUCCEEDED", wake_at=None)
    later = replace(first, id=pending(database).id, due_at=due + BACK, created_at=due + BACK)
    await inserted(database, first, later)
    scheduler = await cluster.leader()
    await scheduler.fire()
    assert [job.due_at for job in await cluster.runs(one)] == [due, None, due + BACK]


async def test_a_due_time_that_had_its_run_ends_no_run(database: Database) -> None:
    cluster = Cluster(database)
    due = database.now().replace(microsecond=0) - SECOND
    one = schedule("s", due, interval_ms=24 * 3_600_000, overlap="cancel_previous")
    await cluster.put(one)
    scheduler = await cluster.leader()
    await scheduler.fire()
    [run] = await cluster.runs(one)
    await put_off(database, tables.jobs, "created_at")
    before = await cluster.now(one)
    await database.run(lambda tx: schedules.store(tx, before, replace(before, due_at=due, next_at=due)))
    await scheduler.fire()
    assert [(job.id, job.state) for job in await cluster.runs(one)] == [(run.id, "PENDING")]
    assert (await cluster.now(one)).due_at == before.due_at


def test_an_interval_keeps_its_step_over_a_clock_that_went_back() -> None:
    made = datetime.fromisoformat("2026-01-01T12:00:00+00:00")
    one = schedule("s", made, interval_ms=7000, starts_at=None)
    now_ = made - timedelta(minutes=10)
    due = times_of(one, made.tzinfo, now_).after(now_)  # type: ignore[arg-type]
    assert due is not None
    assert now_ < due <= now_ + timedelta(seconds=7)
    assert (made - due) % timedelta(seconds=7) == timedelta(0)
    assert times_of(replace(one, starts_at=made), made.tzinfo, now_).after(now_) == made  # type: ignore[arg-type]
    assert DueTimes(Interval(timedelta(seconds=7), made)).after(now_) == made
