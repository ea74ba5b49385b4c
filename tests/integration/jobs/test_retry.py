"""Does a job that has ended run once more when a person retries it?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.config.settings import JobsSettings
from orchestrix.domain.jobs import CANCELLED, DISPATCHED, FAILED, PENDING, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.domain.leases import Fence
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.rescue.queue_cleaner import QueueCleaner
from orchestrix.persistence.jobs import jobs
from tests.integration.jobs.plant import HASTY, Hand, Plant, Task, queues_gone
from tests.support import eventually

CALM = JobsSettings(beat=2.0, silent=20.0)
UNCHECKED = HASTY.model_copy(update={"reconcile": 60.0})
"""Nothing but the deletion of a job's queues finds that it was retried."""


async def begun(hand: Hand) -> Task:
    """The next attempt, which runs and has logged a line."""
    task = await hand.take()
    await task.running()
    await task.log("a line")
    return task


async def failed(plant: Plant, hand: Hand, job: JobRow) -> JobRow:
    """The job, whose next attempt has failed for good."""
    await (await begun(hand)).fail(retryable=False)
    return await plant.reached(job, FAILED)


async def check_success(plant: Plant, job: JobRow, task: Task) -> None:
    """Its second attempt succeeds, all of it is stored, and its queues are deleted."""
    assert (task.order["jobId"], task.order["attempt"]) == (job.id, 2)
    await task.succeed({"pages": 7})
    done = await plant.reached(job, SUCCEEDED)
    assert (done.result, done.error, done.attempt) == ({"pages": 7}, None, 2)
    first, second = await plant.attempts(job)
    assert (first.history_id != second.history_id, second.state) == (True, SUCCEEDED)
    await plant.cleared(job)
    await queues_gone(plant, job)
    lines = [(line.attempt, line.message) for line in await plant.logs(job)]
    assert lines[-1] == (2, "a line"), "what the first attempt logged is kept before it"


async def test_a_failed_job_whose_queues_are_gone_runs_again(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit()
    await failed(plant, hand, job)
    await plant.cleared(job)
    await plant.retry(job)
    task = await begun(hand)
    await check_success(plant, job, task)
    assert [line.attempt for line in await plant.logs(job)] == [1, 2]


async def test_a_job_that_is_retried_while_its_queues_are_deleted_loses_nothing(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant.node(leads=True, cluster=UNCHECKED)
    hand = await plant.worker(beats=True)
    job = await plant.submit()
    deleting, retried, delete = asyncio.Event(), asyncio.Event(), OwnedJobs._delete

    async def slow(owned: OwnedJobs, job_id: str) -> None:
        deleting.set()
        await retried.wait()
        await delete(owned, job_id)

    monkeypatch.setattr(OwnedJobs, "_delete", slow)
    await failed(plant, hand, job)
    await deleting.wait()
    assert (await plant.retry(job)).state == PENDING
    retried.set()
    await check_success(plant, job, await begun(hand))


async def test_a_job_that_is_retried_before_its_queues_are_deleted_keeps_them(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await plant.node(leads=True, cluster=UNCHECKED)
    hand = await plant.worker(beats=True)
    job = await plant.submit()
    ended, looked, look = asyncio.Event(), asyncio.Event(), OwnedJobs._ended
    deleted: list[str] = []

    async def late(owned: OwnedJobs, batch: list[str]) -> list[str]:
        ended.set()
        await looked.wait()
        deleted.extend(found := await look(owned, batch))
        return found

    monkeypatch.setattr(OwnedJobs, "_ended", late)
    await failed(plant, hand, job)
    await ended.wait()
    await plant.retry(job)
    looked.set()
    task = await begun(hand)
    assert deleted == [], "its owner has not deleted them"
    assert (await plant.now(job)).owner == node.name
    await check_success(plant, job, task)


async def test_a_job_that_timed_out_runs_again_with_all_its_time(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit(timeout_ms=600)
    first = await begun(hand)
    await plant.reached(job, TIMED_OUT)
    await hand.stopped(first)
    await plant.retry(job)
    await first.succeed()  # late, and of an attempt that has ended
    await check_success(plant, job, await begun(hand))


@pytest.mark.parametrize("state", [PENDING, DISPATCHED, RUNNING])
async def test_a_job_that_was_cancelled_runs_again_and_is_not_stopped(plant: Plant, state: str) -> None:
    if state != PENDING:
        await plant.node(leads=True, tuned=CALM)
    else:
        await plant.node(tuned=CALM)
    hand = await plant.worker(beats=True)
    job = await plant.submit()
    if state == RUNNING:
        first = await begun(hand)
        await plant.reached(job, RUNNING)
        await plant.cancel(job)
        await first.say("CANCELLED", lastLogSeq=first.last_log)
        hand.held.clear()
    else:
        await plant.reached(job, state)
        await plant.cancel(job)
    await plant.reached(job, CANCELLED)
    await plant.retry(job)
    if state == PENDING:
        await plant.nodes[0].lead()
    if state == DISPATCHED:
        await (await hand.take()).running()  # the dispatch of the first attempt, which has ended
    task = await begun(hand)
    told = [one for one in hand.told if one["historyId"] == task.order["historyId"]]
    await task.succeed()
    done = await plant.reached(job, SUCCEEDED)
    assert (done.cancel_reason, told) == (None, [])


async def test_the_queues_of_a_retried_job_are_not_deleted_with_those_of_others(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.jobs.rescue.queue_cleaner.QUEUE_CLEANER_AGE_S", 0.5)
    node = await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    first, second = await plant.submit(), await plant.submit()
    for job in (first, second):
        await failed(plant, hand, job)
        await plant.cleared(job)
    await node.resign()
    deleted: list[str] = []

    async def noted(queue: str) -> None:
        deleted.append(queue)
        await plant.retry(second)

    monkeypatch.setattr(node.control, "delete", noted)
    fence = Fence(1, node.name)
    leader = LeaderContext(plant.database, fence, node.relay, stop=lambda stops: None, notify_leader=plant.poke)
    cleaner, begun = QueueCleaner(leader, node.control), (plant.database.now() - timedelta(seconds=60), "")
    monkeypatch.setattr(cleaner, "_after", begun)

    async def due() -> bool:
        async with plant.database.read() as connection:
            return len(await jobs.cleared(connection, begun, 0.5, 10)) == 2

    await eventually(due, deadline=5, message="the queues of both are to be deleted once more")
    await cleaner.run_once()
    assert deleted == [status_queue(first.id), logs_queue(first.id)]
