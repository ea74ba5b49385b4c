"""Does the leader find what nobody tells it by reading, and write only where there is something to do?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState, Outcome, Outgoing, Published
from orchestrix.domain.jobs import DISPATCHED, LOST, ORPHAN_PENDING, PENDING, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.domain.leases import Fence
from orchestrix.errors import StaleTermError
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.jobs.ownership.reconciler import OwnershipReconciler
from orchestrix.jobs.rescue.job_rescuer import JobRescuer
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.rescue.lost_dispatches import LostDispatchDetector
from orchestrix.jobs.rescue.orphan_detector import OrphanJobDetector
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_heartbeats, jobs
from tests.conformance.store.test_jobs import dispatched, now, owned, running, stored
from tests.integration.jobs.rows import joined, leading, stopped
from tests.servers import templates

NODE = "node-1"
LIMIT = 30.0
MINUTE = timedelta(minutes=1)


class Linked:
    """A broker that is there, and takes messages unless it is `blocked`, which only those hear who send one."""

    state = LinkState.UP
    generation = 1
    blocked: str | None = None

    def __init__(self) -> None:
        self.is_full = False
        self.count: tuple[int, int] | None = None

    async def publish(self, messages: Sequence[Outgoing], timeout: float) -> list[Published]:
        return [Published(Outcome.UNKNOWN if self.is_full else Outcome.RETURNED)]

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        """Nothing is there: somebody has deleted it."""
        return self.count


class Holding:
    """A node that reads one job, and clears it away when it is told to."""

    def __init__(self, job: JobRow) -> None:
        self.epochs = {job.id: job.owner_epoch}
        self.readings = {job.id: (job.owner_epoch, 1)}
        self.cleared: list[str] = []

    async def delete_channels(self, job_id: str) -> None:
        self.cleared.append(job_id)


class Silent:
    """A relay that sends nothing."""

    def notify(self) -> None:
        """There is nobody to tell."""


class Desk:
    """A leader's office, and how many transactions it has begun to write."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.stops: list[StopRequest] = []
        relay = cast(OutboxRelay, Silent())
        self.office = LeaderContext(database, Fence(1, NODE), relay, self.stops.extend, lambda: None)
        self.link = Linked()
        self.broker = cast(Broker, self.link)
        self.watchman = JobRescuer(self.office, self.broker, silent=LIMIT, listening_s=LIMIT / 2)
        self.listens()

    def listens(self, since: timedelta = MINUTE) -> None:
        """It has done so for that long."""
        self.watchman._listening_since, self.watchman._listening_on = self.database.now() - since, Linked.generation
        self.watchman._checked_at = clock.monotonic()


@pytest.fixture
async def desk(sqlite_url: str) -> AsyncIterator[Desk]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    await joined(database, NODE)
    await leading(database, Fence(1, NODE))
    yield Desk(database)
    await database.close()


async def look_at_owners(desk: Desk) -> tuple[float, float]:
    """Looks for orphan detector, and for such as have none; in how many seconds again."""
    orphanage = OrphanJobDetector(desk.office, desk.broker, interval_s=LIMIT)
    return await orphanage.orphans(), await orphanage.unowned()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The transactions that the leader has begun."""
    begun: list[object] = []
    run = Database.run

    async def counted(database: Database, work: Any) -> Any:
        begun.append(work)
        return await run(database, work)

    monkeypatch.setattr(Database, "run", counted)
    return begun


async def aged(desk: Desk, job: JobRow, **ago: timedelta) -> JobRow:
    """The job, as if these of its times were so long past."""
    times = {name: desk.database.now() - span for name, span in ago.items()}
    return await stored(desk.database, job, replace(job, version=job.version + 1, **times))  # type: ignore[arg-type]


async def test_a_look_that_finds_nothing_writes_nothing(desk: Desk, writes: list[object]) -> None:
    job = await owned(desk.database, NODE, await running(desk.database, timeout_ms=60_000))
    assert 1 < await desk.watchman.run_once() <= 5
    await look_at_owners(desk)
    assert writes == []
    assert (await now(desk.database, job)).version == job.version


async def test_what_is_spared_is_not_written_either(desk: Desk, writes: list[object]) -> None:
    late = await owned(desk.database, NODE, await running(desk.database, timeout_ms=1))
    await aged(desk, late, wake_at=MINUTE, worker_beat_at=MINUTE, taken_at=MINUTE, dispatched_at=MINUTE)
    desk.listens(timedelta(seconds=20))
    assert 0 < await desk.watchman.run_once() < 1
    assert writes == []
    desk.listens()
    await desk.watchman.run_once()
    assert (await now(desk.database, late)).state == TIMED_OUT


@pytest.mark.parametrize(("kept", "state"), [(timedelta(seconds=29), RUNNING), (MINUTE, PENDING)])
async def test_a_silence_counts_once_the_owner_has_listened_for_as_long(
    desk: Desk, kept: timedelta, state: str
) -> None:
    job = await owned(desk.database, NODE, await running(desk.database, retries=1))
    job = await aged(desk, job, worker_beat_at=2 * MINUTE, taken_at=kept)
    await desk.watchman.run_once()
    assert (await now(desk.database, job)).state == state
    assert [one.history_id for one in desk.stops] == ([] if state == RUNNING else [job.history_id])
    async with desk.database.read() as connection:
        [attempt] = await jobs.attempts(connection, job.id)
    assert attempt.state == (RUNNING if state == RUNNING else LOST)


async def test_nobody_is_silent_while_the_broker_takes_no_messages(desk: Desk) -> None:
    """Nor just after that: the first beats may be on their way."""
    job = await owned(desk.database, NODE, await running(desk.database, retries=1, timeout_ms=1))
    job = await aged(desk, job, worker_beat_at=MINUTE, taken_at=MINUTE, wake_at=MINUTE, dispatched_at=MINUTE)
    desk.link.is_full = True
    await desk.watchman.run_once()
    desk.link.is_full = False
    desk.listens()
    await desk.watchman.run_once()
    assert (await now(desk.database, job)).state == RUNNING
    desk.listens()
    await desk.watchman.run_once()
    assert (await now(desk.database, job)).state != RUNNING


async def test_what_nobody_has_begun_has_its_time_again_after_an_outage(desk: Desk) -> None:
    job = await dispatched(desk.database, timeout_ms=600_000)
    long_ago = 20 * MINUTE
    job = await aged(desk, await owned(desk.database, NODE, job), wake_at=MINUTE, dispatched_at=long_ago)
    desk.link.blocked = "low on memory"
    await desk.watchman.run_once()
    desk.link.blocked = None
    await desk.watchman.run_once()
    desk.listens()
    await desk.watchman.run_once()
    later = await now(desk.database, job)
    assert later.state == DISPATCHED
    assert later.wake_at is not None
    assert timedelta(seconds=590) < later.wake_at - desk.database.now() <= timedelta(seconds=600)
    later = await aged(desk, later, wake_at=MINUTE)
    old = JobRescuer(replace(desk.office, fence=Fence(0, "old")), desk.broker, silent=LIMIT, listening_s=LIMIT / 2)
    old._listening_since, old._listening_on, old._checked_at = desk.database.now() - MINUTE, 1, clock.monotonic()
    old._back_since = desk.database.now()
    with pytest.raises(StaleTermError):
        await old.run_once()
    assert (await now(desk.database, later)).version == later.version, "who leads no more puts nothing off"
    desk.watchman._back_since = desk.database.now() - long_ago
    await desk.watchman.run_once()
    assert (await now(desk.database, job)).state == TIMED_OUT


@pytest.fixture
async def order(desk: Desk) -> JobRow:
    """A job that was sent a minute ago, and that this node reads."""
    job = await owned(desk.database, NODE, await dispatched(desk.database, payload={"month": 3}))
    return await aged(desk, job, dispatched_at=MINUTE, taken_at=MINUTE)


async def owed(desk: Desk) -> list[tuple[str, str]]:
    """The orders in the outbox, each with its queue."""
    async with desk.database.begin() as tx:
        rows = await outbox.claim(tx, NODE, 15.0, 100)
    assert all(json.loads(row.body)["payload"] == {"month": 3} for row in rows)
    return [(row.id, row.routing_key) for row in rows]


async def test_an_order_is_not_lost_while_nobody_could_say_that_it_was_begun(desk: Desk, order: JobRow) -> None:
    lost = LostDispatchDetector(desk.office, desk.broker, after=LIMIT, listening_s=LIMIT)
    desk.link.is_full = True
    for _ in range(3):
        await lost.run_once()
    assert await owed(desk) == []
    desk.link.is_full = False
    assert await lost.run_once() == LIMIT / 3
    assert await owed(desk) == [], "it is looked at twice"
    await lost.run_once()
    assert await owed(desk) == [(order.history_id, "orchestrix.job.dispatch.q")]
    again = await now(desk.database, order)
    assert (again.state, again.history_id, again.attempt) == (DISPATCHED, order.history_id, order.attempt)
    assert again.wake_at == order.wake_at, "its time goes on"
    for _ in range(3):
        await lost.run_once()
    assert await owed(desk) == [], "the next time is a while later"


@pytest.mark.parametrize("ready", [None, 0, 1])
async def test_an_order_is_lost_whose_queue_is_empty_or_gone(desk: Desk, order: JobRow, ready: int | None) -> None:
    lost = LostDispatchDetector(desk.office, desk.broker, after=LIMIT, listening_s=LIMIT)
    desk.link.count = None if ready is None else (ready, 1)
    for _ in range(3):
        await lost.run_once()
    assert len(await owed(desk)) == (0 if ready else 1)


async def test_one_that_is_held_by_a_beat_is_not_lost(desk: Desk, order: JobRow) -> None:
    lost = LostDispatchDetector(desk.office, desk.broker, after=LIMIT, listening_s=LIMIT)
    await desk.database.run(lambda tx: job_heartbeats.record_heartbeats(tx, [str(order.history_id)], tx.now()))
    for _ in range(3):
        await lost.run_once()
    assert await owed(desk) == []


async def test_one_that_others_have_overtaken_is_lost_though_its_queue_is_never_empty(
    desk: Desk, order: JobRow
) -> None:
    lost = LostDispatchDetector(desk.office, desk.broker, after=LIMIT, listening_s=LIMIT)
    desk.link.count = (7, 1)
    later = await aged(desk, await running(desk.database), dispatched_at=MINUTE / 2, started_at=MINUTE / 4)
    other = await aged(desk, await running(desk.database, queue="other"), dispatched_at=MINUTE, started_at=MINUTE)
    assert later.queue != other.queue
    await lost.run_once()
    assert await owed(desk) == [], "that has only begun"
    await aged(desk, later, started_at=MINUTE)
    await lost.run_once()
    assert [name for name, _ in await owed(desk)] == [order.history_id]


async def test_last_lines_are_waited_for_while_nobody_could_send_them(desk: Desk) -> None:
    job = await running(desk.database)
    ended = replace(job, version=job.version + 1, state=SUCCEEDED, finished_at=desk.database.now() - MINUTE)
    job = await owned(desk.database, NODE, await stored(desk.database, job, ended))
    holdings = Holding(job)
    reconcile = OwnershipReconciler(desk.database, cast(OwnedJobs, holdings), NODE, desk.broker, interval_s=1.0)
    for desk.link.is_full, cleared in ((True, []), (False, [job.id])):
        reconcile._read_since = {job.id: (holdings.readings[job.id], clock.monotonic() - 60)}
        await reconcile.run_once()
        assert holdings.cleared == cleared


async def test_nothing_is_offered_while_no_offer_could_leave(desk: Desk, writes: list[object]) -> None:
    await joined(desk.database, "gone")
    await owned(desk.database, "gone", await running(desk.database))
    await stopped(desk.database, "gone", "DEAD")
    desk.link.blocked = "low on memory"
    await look_at_owners(desk)
    assert writes == []
    desk.link.blocked = None
    await look_at_owners(desk)
    assert len(writes) == 1


async def test_what_has_no_owner_is_offered_in_the_same_look(desk: Desk, writes: list[object]) -> None:
    await joined(desk.database, "gone")
    orphan = await owned(desk.database, "gone", await running(desk.database))
    await stopped(desk.database, "gone", "DEAD")
    lonely = await dispatched(desk.database)
    lonely = await aged(desk, lonely, dispatched_at=MINUTE)
    await look_at_owners(desk)
    assert len(writes) == 2
    assert (await now(desk.database, orphan)).ownership == ORPHAN_PENDING
    assert (await now(desk.database, lonely)).handoff_reason == "Unowned"


@pytest.mark.req("S0-71")
@pytest.mark.parametrize("every", [0.5, 30.0, 120.0])
async def test_orphans_are_looked_for_as_often_as_the_setting_says(desk: Desk, every: float) -> None:
    orphanage = OrphanJobDetector(desk.office, desk.broker, interval_s=every)
    assert await orphanage.orphans() == every
    assert await orphanage.unowned() == 10.0
    await joined(desk.database, "gone")
    await owned(desk.database, "gone", await running(desk.database))
    await stopped(desk.database, "gone", "DEAD")
    assert await orphanage.orphans() == every
    desk.link.blocked = "low on memory"
    assert await orphanage.orphans() == 1.0


async def test_an_orphan_that_others_have_in_hand_is_looked_for_again_soon(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def skipped(*_: object) -> list[JobRow]:
        return []

    await joined(desk.database, "gone")
    await owned(desk.database, "gone", await running(desk.database))
    await stopped(desk.database, "gone", "DEAD")
    monkeypatch.setattr(jobs, "orphans", skipped)
    assert await OrphanJobDetector(desk.office, desk.broker, interval_s=LIMIT).orphans() == 1.0
