"""Do the jobs of a schedule reach a worker, one after another, and each due time once while leaders change?"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from orchestrix.domain.jobs import SUCCEEDED, JobRow
from orchestrix.domain.schedules import Overlap, Schedule
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.schedules import scheduler as duty
from orchestrix.schedules.service import ScheduleRequester, ScheduleService
from tests.integration.jobs.plant import QUEUE, Plant
from tests.support import eventually, holds

ADA = ScheduleRequester("ada", "to see it")
JOB = {"queue": QUEUE, "handler": "report", "payload": {"month": 3}, "retries": 0, "timeout_ms": None}
SECOND = timedelta(seconds=1)


def timetable(plant: Plant) -> ScheduleService:
    """That of any node."""

    def changed() -> None:
        for node in plant.nodes:
            node.schedules_due.set()
            node.signals.due.set()

    return ScheduleService(plant.database, changed, lambda stops: plant.nodes[0].jobs.stops.publish(stops))


async def often(plant: Plant, **more: Any) -> Schedule:
    """One that is due each second."""
    fields = {"name": "often", "interval_ms": 1000, "job": JOB, "missed_after_ms": 60_000}
    return await timetable(plant).create({**fields, **more}, ADA)


async def runs(plant: Plant, schedule: Schedule) -> list[JobRow]:
    """Its jobs by their due times."""
    async with plant.database.read() as connection:
        found = await jobs.page(connection, JobFilter(schedule_id=schedule.id), 1000)
    return sorted(found, key=lambda job: (job.due_at or job.created_at, job.id))


async def test_runs_that_wait_begin_when_the_one_before_has_ended(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    schedule = await often(plant, overlap=Overlap.QUEUE)
    task = await hand.take()
    assert task.order["payload"] == {"month": 3}
    await task.running()
    first = (await runs(plant, schedule))[0]
    assert first.id == task.order["jobId"]

    async def three() -> bool:
        return len(await runs(plant, schedule)) >= 3

    await eventually(three, deadline=10)
    assert [job.attempt for job in (await runs(plant, schedule))[:3]] == [1, 0, 0], "the others wait"
    await task.succeed()
    await plant.reached(first, SUCCEEDED)
    following = await hand.take()
    assert following.order["jobId"] == (await runs(plant, schedule))[1].id


async def test_a_run_that_waits_begins_as_soon_as_the_one_before_ends_or_is_cancelled(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty, "QUEUED_RUNS_POLL_INTERVAL_S", 3600.0)
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    schedule = await often(plant, overlap=Overlap.QUEUE)
    task = await hand.take()
    await task.running()

    async def three() -> bool:
        return len(await runs(plant, schedule)) >= 3

    await eventually(three, deadline=10)
    await timetable(plant).pause(schedule.id, ADA)
    await holds(lambda: True, during=0.3)  # the look that the pause has led to is over
    await task.succeed()
    second = await hand.take()
    await plant.cancel((await runs(plant, schedule))[1])
    third = await hand.take()
    assert [one.order["jobId"] for one in (second, third)] == [one.id for one in (await runs(plant, schedule))[1:3]]


@pytest.mark.req("S0-3", "S0-72")
async def test_each_due_time_becomes_one_job_while_leaders_change(plant: Plant) -> None:
    nodes = [await plant.node(f"n-{n}") for n in range(2)]
    schedule = await often(plant, overlap=Overlap.QUEUE)
    for term in range(1, 9):
        await nodes[term % 2].lead(term)  # the other one does not know yet
        await nodes[(term + 1) % 2].resign()
        await eventually(partial(_at_least, plant, schedule, term // 2), deadline=10)
    found = await runs(plant, schedule)
    assert schedule.due_at is not None
    assert [job.due_at for job in found] == [schedule.due_at + n * SECOND for n in range(len(found))]


async def _at_least(plant: Plant, schedule: Schedule, count: int) -> bool:
    return len(await runs(plant, schedule)) >= count


async def test_a_change_is_seen_at_once(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    book = timetable(plant)
    schedule = await often(plant, interval_ms=3_600_000)
    await book.change("often", {"interval_ms": 1000}, ADA)
    async with asyncio.timeout(5):
        task = await hand.take()
    await book.pause("often", ADA)
    assert task.order["jobId"] == (await runs(plant, schedule))[0].id
