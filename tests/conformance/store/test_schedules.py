"""Does each due time become one job, whoever leads, and do runs of one schedule never work at the same time?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptStatus, JobRow
from orchestrix.domain.leases import Candidacy, Fence, LeaderMode
from orchestrix.domain.schedules import (
    QUEUED_WAKE_AT,
    FiringOutcome,
    Misfire,
    Overlap,
    Schedule,
    ScheduleState,
    UnfinishedRuns,
)
from orchestrix.errors import ConflictError, Contention, StaleTermError
from orchestrix.jobs.events import StopRequest
from orchestrix.lifecycle import WakeSignal
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs, schedules
from orchestrix.persistence.tables import schedules as table
from orchestrix.schedules.scheduler import Scheduler, _Fired
from orchestrix.schedules.service import ScheduleRequester, ScheduleService
from tests.support import eventually

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def schedule(name: str = "nightly", due: datetime | None = None, **more: Any) -> Schedule:
    """One that is due each hour since `due`."""
    at = due or clock.now()
    fields: dict[str, Any] = {
        "id": clock.uuid7(),
        "name": name,
        "interval_ms": 3_600_000,
        "job": {"queue": "reports", "handler": "report", "payload": {"of": name}, "retries": 2},
        "created_by": "ada",
        "created_at": at,
        "updated_at": at,
        "starts_at": at,
        "due_at": at,
        "next_at": at,
    }
    return Schedule(**{**fields, **more})


class Cluster:
    """Whoever leads, and what the leader has said to the others."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.told = 0
        self.stops: list[StopRequest] = []
        self.wake = WakeSignal()

    async def leader(self, node: str = "a-1", database: Database | None = None) -> Scheduler:
        """The duty of a node that has just been elected."""
        store = database or self.database
        fence = await store.run(lambda tx: leases.campaign(tx, Candidacy(node, LeaderMode.BROKER, by_token=True), 30.0))
        assert fence is not None
        return self.under(fence, store)

    def under(self, fence: Fence, database: Database | None = None) -> Scheduler:
        """The duty of a node that believes in this term."""

        def tell() -> None:
            self.told += 1

        return Scheduler(database or self.database, fence, self.wake, notify_leader=tell, stop=self.stops.extend)

    async def put(self, *all: Schedule) -> None:
        """Makes them."""
        async with self.database.begin() as tx:
            for one in all:
                assert await schedules.insert(tx, one)

    async def now(self, one: Schedule) -> Schedule:
        """As it is now."""
        async with self.database.read() as connection:
            found = await schedules.get(connection, one.id)
        assert found is not None
        return found

    async def runs(self, one: Schedule) -> list[JobRow]:
        """Its jobs, in the order of their due times."""
        async with self.database.read() as connection:
            found = await jobs.page(connection, jobs.JobFilter(schedule_id=one.id), 1000)
        return sorted(found, key=lambda job: (job.due_at or job.created_at, job.id))

    async def move(self, job: JobRow, *steps: str) -> JobRow:
        """The job after it was dispatched, began and ended, as far as `steps` say."""
        async with self.database.begin() as tx:
            before = (await jobs.lock(tx, [job.id]))[job.id]
            moved = before
            for step in steps:
                moved = self._moved(moved, step)
            await jobs.store(tx, [(before.version, moved)])
        return moved

    def _moved(self, job: JobRow, step: str) -> JobRow:
        now = self.database.now()
        if step == "DISPATCHED":
            return replace(rules.dispatched(job, clock.uuid7(), now).job, version=job.version + 1)
        assert job.history_id is not None
        status = AttemptStatus(job.id, job.history_id, "w-1", job.seq + 1, step)
        moved = rules.reported(job, status, now, 0.0)
        assert isinstance(moved, rules.JobTransition)
        return moved.job


@pytest.fixture
def cluster(database: Database) -> Cluster:
    return Cluster(database)


def due_times(found: Sequence[JobRow]) -> list[datetime | None]:
    return [job.due_at for job in found]


@pytest.mark.req("S0-73")
async def test_a_schedule_comes_out_as_it_went_in(cluster: Cluster, database: Database) -> None:
    await database.ping()
    one = schedule(
        cron="0 9 * * *",
        interval_ms=None,
        zone="Europe/Berlin",
        ends_at=datetime(2030, 1, 1, tzinfo=UTC),
        overlap=Overlap.QUEUE,
        misfire=Misfire.CATCH_UP,
        last_outcome=FiringOutcome.SKIPPED,
        last_misfire={"ran": 1},
        trouble="x",
    )
    await cluster.put(one)
    assert await cluster.now(one) == one
    async with database.read() as connection:
        assert await schedules.get(connection, "nightly") == one
        assert await schedules.get(connection, "Nightly") is None
        assert await schedules.get(connection, clock.uuid7()) is None
    async with database.begin() as tx:
        assert not await schedules.insert(tx, schedule())
        assert await schedules.insert(tx, schedule("Nightly")), "names differ by case"


async def test_pages_are_by_name(cluster: Cluster, database: Database) -> None:
    await cluster.put(*(schedule(name) for name in ("b", "a", "C", "d")))
    async with database.read() as connection:
        first = await schedules.page(connection, 3)
        rest = await schedules.page(connection, 3, first[-1].name)
    assert [one.name for one in (*first, *rest)] == ["C", "a", "b", "d"]


async def test_a_change_that_somebody_else_has_overtaken_is_refused(cluster: Cluster, database: Database) -> None:
    one = schedule()
    await cluster.put(one)
    for other in (
        replace(one, version=2),
        replace(one, due_at=None),
        replace(one, due_at=one.starts_at and one.starts_at + HOUR),
    ):
        with pytest.raises(ConflictError):
            async with database.begin() as tx:
                await schedules.store(tx, other, replace(other, trouble="x"))
    async with database.begin() as tx:
        await schedules.store(tx, one, replace(one, due_at=None, next_at=None, version=2))
        await schedules.store(tx, replace(one, due_at=None, version=2), replace(one, version=3))


async def test_a_due_time_becomes_a_job_and_the_next_one_is_set(cluster: Cluster) -> None:
    one, later = schedule(), schedule("later", clock.now() + HOUR)
    await cluster.put(one, later)
    leader = await cluster.leader()
    assert await leader.fire() == 1
    assert await leader.fire() == 0
    (job,) = await cluster.runs(one)
    assert (job.due_at, job.state, job.queue, job.handler, job.retries) == (
        one.due_at,
        "PENDING",
        "reports",
        "report",
        2,
    )
    after = await cluster.now(one)
    assert one.due_at is not None
    assert (after.due_at, after.next_at, after.last_due_at) == (one.due_at + HOUR, one.due_at + HOUR, one.due_at)
    assert (after.fired, after.last_outcome, after.last_job_id, after.version) == (1, FiringOutcome.STARTED, job.id, 1)
    assert await cluster.runs(later) == []
    assert cluster.told == 1


@pytest.mark.req("S0-3", "S0-72")
async def test_a_leader_of_an_older_term_makes_nothing_and_loses_nothing(cluster: Cluster, peer: Database) -> None:
    one = schedule()
    await cluster.put(one)
    former = await cluster.leader("a-1")
    latter = await cluster.leader("b-1", peer)
    with pytest.raises(StaleTermError):
        await former.fire()
    assert await cluster.runs(one) == []
    assert (await cluster.now(one)).due_at == one.due_at
    assert await latter.fire() == 1
    assert due_times(await cluster.runs(one)) == [one.due_at]


async def test_a_leader_that_changes_in_the_middle_of_a_firing_doubles_and_loses_nothing(
    served: Database, served_peer: Database
) -> None:
    """The former leader has written the job and not yet checked its term when somebody else is elected."""
    cluster = Cluster(served)
    one = schedule()
    await cluster.put(one)
    former = await cluster.leader("a-1")
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slow(tx: Transaction) -> None:
        due = (await schedules.due(tx, 1))[0]
        firing = await former._firing(tx, due, UnfinishedRuns())
        assert firing is not None
        await former._fire_one(tx, due, firing, _Fired())
        written.set()
        await go_on.wait()
        await leases.check_fence(tx, former._fence)

    firing = asyncio.create_task(served.run(slow, attempts=1))
    await written.wait()
    latter = await cluster.leader("b-1", served_peer)
    assert await latter.fire() == 0, "it is in the other's hands, who cannot commit it any more"
    go_on.set()
    with pytest.raises(StaleTermError):
        await firing
    assert await latter.fire() == 1
    assert due_times(await cluster.runs(one)) == [one.due_at]


async def test_two_who_believe_to_lead_fire_each_due_time_once(cluster: Cluster, peer: Database) -> None:
    started = clock.now() - timedelta(seconds=30)
    all = [
        schedule(f"s-{n}", started, interval_ms=1000, overlap=Overlap.QUEUE, missed_after_ms=3_600_000)
        for n in range(5)
    ]
    await cluster.put(*all)
    leader = await cluster.leader()
    other = cluster.under(leader._fence, peer)

    async def run(one: Scheduler) -> int:
        fired = 0
        for _ in range(60):
            try:
                fired += await one.fire()
            except (ConflictError, Contention):
                continue
        return fired

    fired = sum(await asyncio.gather(run(leader), run(other)))
    for one in all:
        found, after = await cluster.runs(one), await cluster.now(one)
        assert due_times(found) == [started + n * SECOND for n in range(len(found))]
        assert after.due_at == started + len(found) * SECOND, "none is lost"
    assert fired == sum([len(await cluster.runs(one)) for one in all]) >= 50


async def test_leaders_that_follow_one_another_lose_no_due_time(cluster: Cluster, peer: Database) -> None:
    started = clock.now() - timedelta(seconds=20)
    one = schedule("often", started, interval_ms=1000, overlap=Overlap.QUEUE, missed_after_ms=3_600_000)
    await cluster.put(one)
    former = await cluster.leader("n-0")
    for n in range(1, 11):
        latter = await cluster.leader(f"n-{n}", peer if n % 2 else cluster.database)
        with pytest.raises(StaleTermError):
            await former.fire()
        assert await latter.fire() == 1
        former = latter
    assert due_times(await cluster.runs(one)) == [started + n * SECOND for n in range(10)]
    assert (await cluster.now(one)).due_at == started + 10 * SECOND


async def test_skip_makes_no_second_run(cluster: Cluster) -> None:
    one = schedule(due=clock.now() - 2 * SECOND, interval_ms=1000)
    await cluster.put(one)
    leader = await cluster.leader()
    assert await leader.fire() == 1
    (job,) = await cluster.runs(one)
    await cluster.move(job, "DISPATCHED", "RUNNING")
    assert await leader.fire() == 1
    after = await cluster.now(one)
    assert (after.fired, after.skipped, after.last_outcome) == (1, 1, FiringOutcome.SKIPPED)
    await cluster.move(job, "SUCCEEDED")
    await eventually(leader.fire, deadline=5)
    assert len(await cluster.runs(one)) == 2


async def test_queued_runs_begin_one_after_another(cluster: Cluster) -> None:
    one = schedule(due=clock.now() - 2 * SECOND, interval_ms=1000, overlap=Overlap.QUEUE)
    await cluster.put(one)
    leader = await cluster.leader()
    for _ in range(3):
        assert await leader.fire() == 1
    first, second, third = await cluster.runs(one)
    assert first.wake_at is not None
    assert (first.wake_at < QUEUED_WAKE_AT, second.wake_at, third.wake_at) == (True, QUEUED_WAKE_AT, QUEUED_WAKE_AT)
    assert (await cluster.now(one)).last_outcome is FiringOutcome.QUEUED
    assert await leader.release_waiting_runs() == 0, "the first has not ended"
    await cluster.move(first, "DISPATCHED", "RUNNING", "SUCCEEDED")
    assert await leader.release_waiting_runs() == 1
    assert await leader.release_waiting_runs() == 0
    _, second, third = await cluster.runs(one)
    assert second.wake_at is not None
    assert (second.wake_at <= cluster.database.now(), third.wake_at) == (True, QUEUED_WAKE_AT)
    await cluster.move(second, "DISPATCHED", "RUNNING", "FAILED", "DISPATCHED", "RUNNING")
    assert await leader.release_waiting_runs() == 0, "it is in its second try"


async def test_a_leader_of_an_older_term_lets_nothing_go(cluster: Cluster) -> None:
    one = schedule(due=clock.now() - 2 * SECOND, interval_ms=1000, overlap=Overlap.QUEUE)
    await cluster.put(one)
    former = await cluster.leader("a-1")
    await former.fire()
    await former.fire()
    first, _ = await cluster.runs(one)
    await cluster.move(first, "DISPATCHED", "RUNNING", "SUCCEEDED")
    await cluster.leader("b-1")
    with pytest.raises(StaleTermError):
        await former.release_waiting_runs()
    assert (await cluster.runs(one))[1].wake_at == QUEUED_WAKE_AT


async def test_the_previous_run_is_cancelled_and_waited_for(cluster: Cluster) -> None:
    one = schedule(due=clock.now() - 2 * SECOND, interval_ms=1000, overlap=Overlap.CANCEL_PREVIOUS)
    await cluster.put(one)
    leader = await cluster.leader()
    await leader.fire()
    (first,) = await cluster.runs(one)
    running = await cluster.move(first, "DISPATCHED", "RUNNING")
    await leader.fire()
    first, second = await cluster.runs(one)
    assert (first.state, first.cancel_reason) == ("RUNNING", "replaced by the next run of its schedule")
    assert second.wake_at == QUEUED_WAKE_AT
    assert [(stop.job.id, stop.history_id) for stop in cluster.stops] == [(first.id, running.history_id)]
    await leader.fire()
    first, second, third = await cluster.runs(one)
    assert (second.state, third.wake_at) == ("CANCELLED", QUEUED_WAKE_AT), "one that had not begun never will"
    await cluster.move(first, "CANCELLED")
    assert await leader.release_waiting_runs() == 1
    third = (await cluster.runs(one))[2]
    assert third.wake_at is not None
    assert third.wake_at < QUEUED_WAKE_AT


async def test_what_was_missed_is_caught_up_in_turn(cluster: Cluster) -> None:
    started = clock.now() - 10 * HOUR
    one = schedule("slow", started, misfire=Misfire.CATCH_UP, catch_up=3)
    once, never = schedule("once", started), schedule("never", started, misfire=Misfire.IGNORE)
    await cluster.put(one, once, never)
    leader = await cluster.leader()
    assert await leader.fire() == 3
    found = await cluster.runs(one)
    assert due_times(found) == [started + n * HOUR for n in (7, 8, 9)] or due_times(found) == [
        started + n * HOUR for n in (8, 9, 10)
    ]
    assert [job.wake_at == QUEUED_WAKE_AT for job in found] == [False, True, True]
    assert len(await cluster.runs(once)) == 1
    assert await cluster.runs(never) == []
    after = await cluster.now(never)
    assert after.last_outcome is FiringOutcome.MISSED
    assert after.last_misfire is not None
    assert (after.last_misfire["from"], after.last_misfire["ran"]) == (started.isoformat(), 0)
    assert after.due_at is not None
    assert after.due_at > clock.now() - timedelta(minutes=2)


async def test_a_due_time_that_was_run_already_makes_no_second_job(cluster: Cluster) -> None:
    one = schedule()
    await cluster.put(one)
    async with cluster.database.begin() as tx:
        made = JobRow(
            id=clock.uuid7(),
            **one.job,
            created_by="bob",
            correlation_id="c",
            created_at=tx.now(),
            updated_at=tx.now(),
            state="SUCCEEDED",
            schedule_id=one.id,
            due_at=one.due_at,
        )
        await jobs.insert(tx, [made])
        assert one.due_at is not None
        assert await schedules.known(tx, one.id, [one.due_at, one.due_at + HOUR]) == {one.due_at}
    leader = await cluster.leader()
    assert await leader.fire() == 1
    assert [job.id for job in await cluster.runs(one)] == [made.id]
    assert (await cluster.now(one)).fired == 0


async def test_one_that_cannot_be_read_does_not_stop_the_others(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = schedule("bad", cron="0 9 * * *", interval_ms=None, zone="Mars/Olympus"), schedule("good")
    await cluster.put(bad, good)
    leader = await cluster.leader()
    assert await leader.fire() == 2
    assert len(await cluster.runs(good)) == 1
    after = await cluster.now(bad)
    assert after.trouble is not None
    assert "Mars/Olympus" in after.trouble
    assert (after.due_at, after.state) == (bad.due_at, ScheduleState.ACTIVE)
    assert after.next_at is not None
    assert after.next_at > clock.now() + timedelta(seconds=50)
    assert "bad cannot be evaluated" in caplog.text
    async with cluster.database.begin() as tx:
        await tx.execute(update(table).where(table.c.id == bad.id).values(zone="Europe/Berlin", next_at=bad.due_at))
    assert await leader.fire() == 1
    assert (await cluster.now(bad)).trouble is None


async def test_one_that_could_not_be_written_any_more_is_fired_as_before(cluster: Cluster) -> None:
    old = schedule("old", cron="*/90 * * * *", interval_ms=None, zone="Factory")
    await cluster.put(old)
    assert await (await cluster.leader()).fire() == 1
    assert len(await cluster.runs(old)) == 1
    assert (await cluster.now(old)).trouble is None


async def test_the_loop_fires_in_time_and_lets_go(cluster: Cluster) -> None:
    soon = cluster.database.now() + timedelta(seconds=0.6)
    one = schedule(due=soon, interval_ms=60_000)
    far = schedule("far", clock.now() + HOUR)
    await cluster.put(one, far)
    leader = await cluster.leader()
    await leader.start()
    try:

        async def made() -> list[JobRow]:
            return await cluster.runs(one)

        (job,) = await eventually(made, deadline=5)
        assert soon <= job.created_at < soon + SECOND
        async with cluster.database.begin() as tx:
            await schedules.store(tx, far, replace(far, due_at=soon, next_at=soon, starts_at=soon))
        cluster.wake.set()

        async def far_too() -> list[JobRow]:
            return await cluster.runs(far)

        assert await eventually(far_too, deadline=2)
    finally:
        await leader.stop()


async def test_a_deposed_leader_says_so_and_is_quiet(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    one = schedule()
    await cluster.put(one)
    former = await cluster.leader("a-1")
    await cluster.leader("b-1")
    await former.start()
    await eventually(lambda: "wrote as leader of term 1" in caplog.text, deadline=5)
    await former.stop()
    assert "Traceback" not in caplog.text
    assert await cluster.runs(one) == []


async def test_however_runs_are_made_one_may_begin_at_a_time(cluster: Cluster, peer: Database) -> None:
    """Two people press the button while due times come, runs end and the next ones are let go."""
    one = schedule("busy", clock.now() - 5 * SECOND, interval_ms=1000, overlap=Overlap.QUEUE, missed_after_ms=3_600_000)
    await cluster.put(one)
    leader = await cluster.leader()
    books = [ScheduleService(store, lambda: None, cluster.stops.extend) for store in (cluster.database, peer)]
    most = 0

    async def press(book: ScheduleService) -> None:
        for _ in range(4):
            await book.run("busy", ScheduleRequester("ada", "now"))

    async def work() -> None:
        nonlocal most
        for _ in range(14):
            await leader.fire()
            await leader.release_waiting_runs()
            ready = [job for job in await cluster.runs(one) if job.state == "PENDING" and job.wake_at != QUEUED_WAKE_AT]
            most = max(most, len(ready))
            for job in ready:
                await cluster.move(job, "DISPATCHED", "RUNNING", "SUCCEEDED")

    await asyncio.gather(work(), *(press(book) for book in books))

    async def finished() -> bool:
        await work()
        return all(job.ended for job in await cluster.runs(one))

    await eventually(finished, deadline=20)
    assert most == 1
    assert len(await cluster.runs(one)) >= 8 + 5
