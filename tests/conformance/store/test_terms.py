"""Does a leader whose term is over write nothing, whatever it finds to do, on each database?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from sqlalchemy import func, select

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Delivery, LinkState, Outcome, Published
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.leases import Fence
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.errors import StaleTermError
from orchestrix.jobs.dispatch import JobDispatcher
from orchestrix.jobs.events import ChannelBatch, ChannelState, JobEventListener
from orchestrix.jobs.log_lines import LogLimit
from orchestrix.jobs.rescue.job_rescuer import JobRescuer
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.rescue.lost_dispatches import LostDispatchDetector
from orchestrix.jobs.rescue.orphan_detector import OrphanJobDetector
from orchestrix.lifecycle import WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.cluster import broker_incarnation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import schedules
from orchestrix.persistence.tables import outbox
from orchestrix.saga.messages import dump
from orchestrix.schedules.scheduler import Scheduler
from tests.conformance.store.test_jobs import dispatched, inserted, now, owned, pending, running, stored
from tests.conformance.store.test_schedules import schedule
from tests.integration.jobs.rows import joined, leading, stopped

LONG_AGO = timedelta(minutes=2)
LIMIT = 30.0
MINE, STALE = Fence(7, "node-1"), Fence(6, "node-1")


class Up:
    """A broker that is there and has lost all orders."""

    state, generation, blocked = LinkState.UP, 1, None

    async def publish(self, messages: Sequence[object], timeout: float) -> list[object]:
        return [Published(Outcome.RETURNED)]

    async def message_count(self, queue: str) -> None:
        """It is not there."""


class Still:
    """A relay that sends nothing."""

    node, lease, undeclared_rows = "node-1", 15.0, 0

    def notify(self) -> None:
        """Nobody is to be told."""

    def take(self, rows: Sequence[object]) -> None:
        """Nor here."""


@pytest.fixture
async def led(database: Database) -> Database:
    """A database in which `MINE` is the term."""
    await database.ping()
    await joined(database, "node-1")
    await joined(database, "gone")
    await leading(database, MINE)
    return database


def office(database: Database, fence: Fence) -> LeaderContext:
    return LeaderContext(database, fence, cast(OutboxRelay, Still()), lambda stops: None, lambda: None)


async def aged(database: Database, job: JobRow, *names: str) -> JobRow:
    """The job, as if these of its times were long past."""
    at = dict.fromkeys(names, database.now() - LONG_AGO)
    return await stored(database, job, replace(job, version=job.version + 1, **at))  # type: ignore[arg-type]


Act = Callable[[Database, Fence], Awaitable[object]]


async def watch(database: Database, fence: Fence) -> None:
    """Everything that is held against workers."""
    watchman = JobRescuer(office(database, fence), cast(Broker, Up()), silent=LIMIT, listening_s=LIMIT)
    watchman._listening_since, watchman._listening_on = database.now() - LONG_AGO / 2, 1
    watchman._checked_at = clock.monotonic()
    await watchman.run_once()


async def late(database: Database) -> JobRow:
    job = await owned(database, "node-1", await running(database, timeout_ms=1, retries=1))
    return await aged(database, job, "wake_at")


async def silent(database: Database) -> JobRow:
    job = await owned(database, "node-1", await running(database, retries=1))
    return await aged(database, job, "worker_beat_at", "taken_at")


async def forgotten(database: Database) -> JobRow:
    job = await aged(database, await dispatched(database), "dispatched_at")
    await database.run(lambda tx: broker_incarnation.replace(tx, None, clock.uuid7()))
    return job


async def offer(database: Database, fence: Fence) -> None:
    await OrphanJobDetector(office(database, fence), cast(Broker, Up()), interval_s=LIMIT).orphans()


async def orphan(database: Database) -> JobRow:
    job = await owned(database, "gone", await running(database))
    await stopped(database, "gone", "DEAD")
    return job


async def assign(database: Database, fence: Fence) -> None:
    await OrphanJobDetector(office(database, fence), cast(Broker, Up()), interval_s=LIMIT).unowned()


async def lonely(database: Database) -> JobRow:
    return await aged(database, await dispatched(database), "dispatched_at")


async def resend(database: Database, fence: Fence) -> None:
    lost = LostDispatchDetector(office(database, fence), cast(Broker, Up()), after=LIMIT, listening_s=LIMIT)
    await lost.run_once()
    await lost.run_once()


async def lost(database: Database) -> JobRow:
    job = await owned(database, "node-1", await dispatched(database))
    return await aged(database, job, "dispatched_at", "taken_at")


async def send(database: Database, fence: Fence) -> None:
    dispatcher = JobDispatcher(database, fence, WakeSignal(), cast(OutboxRelay, Still()), open_limit=9, silent=LIMIT)
    await database.run(dispatcher._write)


async def due(database: Database) -> JobRow:
    [job] = await inserted(database, pending(database))
    return job


CASES: dict[str, tuple[Callable[[Database], Awaitable[JobRow]], Act]] = {
    "time is over": (late, watch),
    "worker is silent": (silent, watch),
    "broker forgot": (forgotten, watch),
    "owner is gone": (orphan, offer),
    "no owner": (lonely, assign),
    "order is lost": (lost, resend),
    "due": (due, send),
}


async def rows(database: Database) -> int:
    async with database.read() as connection:
        return int((await connection.execute(select(func.count()).select_from(outbox))).scalar_one())


@pytest.mark.parametrize("case", CASES)
async def test_a_duty_of_a_term_that_is_over_writes_nothing(led: Database, case: str) -> None:
    given, act = CASES[case]
    job = await given(led)
    with pytest.raises(StaleTermError):
        await act(led, STALE)
    assert (await now(led, job), await rows(led)) == (job, 0)
    with pytest.raises(StaleTermError):
        await act(led, replace(MINE, holder="node-2"))
    assert (await now(led, job), await rows(led)) == (job, 0)
    await act(led, MINE)
    assert (await now(led, job)).version > job.version, "there was something to do"


def scheduler(database: Database, fence: Fence) -> Scheduler:
    return Scheduler(database, fence, WakeSignal(), notify_leader=lambda: None, stop=lambda stops: None)


async def test_schedules_of_a_term_that_is_over_fire_nothing(led: Database) -> None:
    one = schedule(due=led.now() - LONG_AGO)
    await led.run(lambda tx: schedules.insert(tx, one))
    with pytest.raises(StaleTermError):
        await scheduler(led, STALE).fire()
    async with led.read() as connection:
        assert await schedules.unfinished(connection, [one.id]) == []
    assert await scheduler(led, MINE).fire() == 1


async def test_runs_are_not_let_go_by_a_term_that_is_over(led: Database) -> None:
    one = schedule(due=led.now() + LONG_AGO)
    await led.run(lambda tx: schedules.insert(tx, one))
    [held] = await inserted(led, pending(led, schedule_id=one.id, due_at=led.now(), wake_at=QUEUED_WAKE_AT))
    with pytest.raises(StaleTermError):
        await scheduler(led, STALE).release_waiting_runs()
    assert await now(led, held) == held
    assert await scheduler(led, MINE).release_waiting_runs() == 1


class Ear:
    """A consumer that notes what is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[object] = []

    async def acknowledge(self, deliveries: Sequence[object]) -> None:
        self.acknowledged += deliveries


@pytest.mark.parametrize(("owner", "epoch"), [("node-1", 1), ("node-2", 3), ("node-1", 3)])
async def test_words_are_written_and_acknowledged_by_the_owner_of_this_epoch_alone(
    led: Database, owner: str, epoch: int
) -> None:
    """The job went from this node to another and back: what it still has in hand of the first time is not its own."""
    job = await running(led)
    for node in ("node-1", "node-2", "node-1"):
        job = await owned(led, node, job)
    events = JobEventListener(led, owner, stop=lambda stops: None, notify_leader=lambda: None)
    body = {"jobId": job.id, "historyId": job.history_id, "workerId": "w", "seq": 2, "status": "SUCCEEDED"}
    queue, ear = status_queue(job.id), Ear()
    said = Delivery(dump(body), queue, "", queue, None, None, None, {}, False, 0, 1, 1)
    heard = ChannelBatch(job.id, epoch, cast(Broker, Up()), cast(Consumer, ear), [said])
    await events.start()
    verdict = await events.handle(heard)
    await events.stop()
    is_mine = (owner, epoch) == ("node-1", 3)
    assert (verdict is ChannelState.LOST, ear.acknowledged == [said]) == (not is_mine, is_mine)
    assert ((await now(led, job)).state == "SUCCEEDED") is is_mine


async def test_lines_that_are_given_out_once_more_count_once(led: Database) -> None:
    """An owner wrote them and died before it acknowledged them; the next one gets them again, with others."""
    job = await owned(led, "node-1", await running(led))

    def line(seq: int, *, again: bool) -> Delivery:
        body = {"jobId": job.id, "historyId": job.history_id, "workerId": "w", "seq": seq, "at": "2026-01-31T12:00:00Z"}
        queue = logs_queue(job.id)
        text = dump({**body, "level": "info", "message": "four"})
        return Delivery(text, queue, "", queue, None, None, None, {}, again, 0, 1, 1)

    async def said(lines: Sequence[Delivery]) -> None:
        events = JobEventListener(
            led, "node-1", stop=lambda stops: None, notify_leader=lambda: None, limit=LogLimit(5, 1000)
        )
        await events.start()
        await events.handle(ChannelBatch(job.id, job.owner_epoch, cast(Broker, Up()), cast(Consumer, Ear()), lines))
        await events.stop()

    await said([line(seq, again=False) for seq in (2, 3, 4)])
    await said([line(seq, again=True) for seq in (2, 3, 4, 5, 5)])
    found = await now(led, job)
    assert (found.log_lines, found.log_bytes, found.log_cut) == (4, 16, 0)
