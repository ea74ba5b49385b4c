"""How do jobs end that do not just succeed?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrix.config.settings import JobsSettings
from orchestrix.domain.jobs import CANCELLED, DISPATCHED, LOST, PENDING, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.errors import ConflictError, NotFound
from tests.integration.jobs.plant import Hand, Plant, Task
from tests.support import eventually, holds, stand_still

CALM = JobsSettings(beat=2.0, silent=20.0)


@pytest.mark.req("S0-12")
async def test_a_running_job_is_cancelled_by_its_worker(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit(retries=3)
    task = await hand.take()
    await task.running()
    await plant.reached(job, RUNNING)
    asked = await plant.cancel(job)
    assert (asked.state, asked.cancel_reason) == (RUNNING, "not wanted")
    told = await hand.stopped(task)
    assert (told["jobId"], told["reason"]) == (job.id, "not wanted")
    await task.say("CANCELLED", lastLogSeq=0)
    await plant.reached(job, CANCELLED)
    await plant.cleared(job)
    with pytest.raises(NotFound):
        await plant.cancel(replace(job, id="0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"))


async def test_a_worker_that_was_away_hears_of_a_cancel_when_it_beats_again(plant: Plant) -> None:
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    job = await plant.submit()
    task = await hand.take()
    await task.running()
    await plant.reached(job, RUNNING)
    await hand.deaf()
    await plant.cancel(job)
    await hand.hearing()
    assert hand.told == []
    await hand.beat()
    assert (await hand.stopped(task))["reason"] == "not wanted"


async def test_what_no_worker_has_begun_is_cancelled_at_once(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit()
    await plant.reached(job, DISPATCHED)
    assert (await plant.cancel(job)).state == CANCELLED
    task = await hand.take()
    await task.running()
    await hand.stopped(task)
    assert (await plant.now(job)).state == CANCELLED
    with pytest.raises(ConflictError):
        await plant.cancel(await _succeeded(plant, hand))


async def _succeeded(plant: Plant, hand: Hand) -> JobRow:
    job = await plant.submit()
    task = await hand.take()
    await task.running()
    await task.succeed()
    return await plant.reached(job, SUCCEEDED)


@pytest.mark.req("S0-5")
async def test_a_job_that_takes_too_long_is_tried_again_and_then_timed_out(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit(timeout_ms=700, retries=1)
    first = await hand.take()
    await first.running()
    await hand.stopped(first)
    second = await hand.take()
    await second.running()
    ended = await plant.reached(job, TIMED_OUT)
    assert ended.error["type"] == "Timeout"
    assert [one.state for one in await plant.attempts(job)] == [TIMED_OUT, TIMED_OUT]
    await second.succeed()
    await holds(lambda: True, during=0.3)
    assert (await plant.now(job)).state == TIMED_OUT


async def test_a_job_that_nobody_takes_says_so_when_its_time_is_over(plant: Plant) -> None:
    await plant.node(leads=True)
    job = await plant.submit(timeout_ms=300)
    ended = await plant.reached(job, TIMED_OUT)
    assert ended.error["type"] == "Timeout"
    assert "no worker serves queue reports: start one with `orchestrix worker" in ended.error["message"]
    assert [one.error for one in await plant.attempts(job)] == [ended.error]


async def test_the_time_of_a_job_that_a_new_leader_sends_at_once_counts_from_then(plant: Plant) -> None:
    job = await plant.submit(timeout_ms=300)
    await plant.node(leads=True, tuned=CALM)
    await plant.reached(job, TIMED_OUT, deadline=5)


async def test_time_does_not_count_while_no_attempt_is_out(plant: Plant) -> None:
    await plant.node(leads=True, tuned=JobsSettings(beat=0.2, silent=1.0, max_live=1))
    hand = await plant.worker(beats=True)
    first, second = await plant.submit(), await plant.submit(timeout_ms=400)
    task = await hand.take()
    await task.running()
    await plant.reached(first, RUNNING)
    await holds(lambda: True, during=0.8)
    assert (await plant.now(second)).state == PENDING
    await task.succeed()
    assert (await hand.take()).order["jobId"] == second.id


async def test_a_worker_that_stops_costs_no_try_and_its_wish_is_heard(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit(retries=1)
    first = await hand.take()
    await first.running()
    await first.fail(type="WorkerStopped", retryable=True)
    second = await hand.take()
    await second.running()
    await second.fail(retryAfterMs=60_000)
    waiting = await plant.reached(job, PENDING, attempt=2)
    assert waiting.wake_at is not None
    assert 50 < (waiting.wake_at - waiting.updated_at).total_seconds() <= 60


async def test_a_leader_that_stood_still_holds_its_own_silence_against_nobody(plant: Plant) -> None:
    await plant.node(leads=True, tuned=JobsSettings(beat=0.2, silent=2.0))
    hand = await plant.worker()
    job = await plant.submit(retries=1)
    await (await hand.take()).running()
    await plant.reached(job, RUNNING)
    for _ in range(11):  # for longer than a worker may be silent, so that nothing is spared any more
        await hand.beat()
        await holds(lambda: True, during=0.2)
    stand_still(2.0)
    await holds(lambda: True, during=1.0)
    assert [one.state for one in await plant.attempts(job)] == [RUNNING]


async def test_a_job_whose_worker_is_silent_is_given_to_another(plant: Plant) -> None:
    await plant.node(leads=True)
    silent = await plant.worker("w-1")
    job = await plant.submit(retries=1)
    lost = await silent.take()
    await silent.rest()
    await lost.running()
    await lost.log("before")
    other = await plant.worker("w-2", beats=True)
    again = await other.take()
    assert again.order["attempt"] == 2
    await again.running()
    await plant.reached(job, RUNNING, attempt=2)
    await lost.running({"percent": 99})
    assert (await silent.stopped(lost))["jobId"] == job.id
    await lost.log("from the dead")
    await again.log("after")
    await again.succeed()
    done = await plant.reached(job, SUCCEEDED)
    assert (done.worker_id, done.progress) == ("w-2", None)
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["before", "after"]
    assert [one.state for one in await plant.attempts(job)] == [LOST, SUCCEEDED]


async def test_a_worker_that_beats_is_not_lost(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit(retries=1)
    task = await hand.take()
    await task.running()
    first = (await plant.reached(job, RUNNING)).worker_beat_at

    async def beaten() -> bool:
        now = (await plant.now(job)).worker_beat_at
        return now is not None and first is not None and (now - first).total_seconds() > 2.5

    await eventually(beaten, deadline=30)
    assert (await plant.now(job)).state == RUNNING


async def test_a_dispatch_that_comes_twice_ends_in_one_attempt(plant: Plant) -> None:
    await plant.node(leads=True)
    one, two = await plant.worker("w-1", beats=True), await plant.worker("w-2", beats=True)
    job = await plant.submit()
    task = await one.take()
    await two.rest()
    await task.running()
    await plant.reached(job, RUNNING)
    copy = Task(two, task.order, task.headers)
    await copy.running()
    await one.stopped(task)
    again = await one.take()
    assert (again.order["attempt"], again.order["historyId"] != task.order["historyId"]) == (2, True)
    await again.running()
    await again.succeed()
    assert (await plant.reached(job, SUCCEEDED)).tries == 1


async def test_more_than_may_be_open_wait_for_their_turn(plant: Plant) -> None:
    await plant.node(leads=True, tuned=JobsSettings(max_live=2, beat=2.0, silent=20.0))
    hand = await plant.worker(beats=True)
    jobs = [await plant.submit() for _ in range(3)]
    tasks = [await hand.take()]
    assert [(await plant.now(job)).state for job in jobs] == [DISPATCHED, PENDING, PENDING], "a share of one is unbegun"
    await tasks[0].running()
    tasks.append(await hand.take())
    await tasks[1].running()
    await plant.reached(jobs[1], RUNNING)
    await holds(lambda: True, during=0.5)
    assert (await plant.now(jobs[2])).state == PENDING
    await tasks[0].succeed()
    third = await hand.take()
    assert third.order["jobId"] == jobs[2].id


async def test_a_queue_that_nobody_serves_keeps_nobody_waiting(plant: Plant) -> None:
    await plant.node(leads=True, tuned=JobsSettings(max_live=5, beat=2.0, silent=20.0))
    dead = [await plant.submit(queue=f"dead-{n % 5}") for n in range(10)]
    for job in dead[:5]:
        await plant.reached(job, DISPATCHED)
    hand = await plant.worker(beats=True)
    for _ in range(6):
        job = await plant.submit()
        task = await hand.take()
        assert task.order["jobId"] == job.id
        await task.running()
        await task.succeed()
        await plant.reached(job, SUCCEEDED)
    assert [(await plant.now(job)).state for job in dead[5:]] == [PENDING] * 5


async def test_what_cannot_be_read_is_kept_and_the_rest_goes_on(plant: Plant) -> None:
    node = await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit()
    task = await hand.take()
    await task.running()
    await hand.send("", task.order["channels"]["status"], {"jobId": job.id, "status": "BORED"})
    await hand.send("", task.order["channels"]["logs"], {"jobId": "another"})
    await task.log("fine")
    await task.succeed()
    await plant.reached(job, SUCCEEDED)

    async def buried() -> bool:
        return await node.control.message_count("orchestrator.unrouted") == (2, 0)

    await eventually(buried, deadline=10)
