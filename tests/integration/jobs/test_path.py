"""Does a job get to a worker, and what the worker says into the database?"""

from __future__ import annotations

import pytest

from orchestrix.domain.jobs import FAILED, RUNNING, SUCCEEDED, JobRow
from tests.integration.jobs.plant import Plant, queues_gone
from tests.support import eventually


@pytest.mark.req("S0-4", "S0-11", "S0-21", "S0-23", "S0-24", "S0-25", "S0-26")
async def test_a_job_runs_to_its_end(plant: Plant) -> None:
    node = await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit(payload={"month": 3}, timeout_ms=60_000)
    task = await hand.take()
    assert task.order == {
        "jobId": job.id,
        "historyId": task.order["historyId"],
        "handler": "report",
        "payload": {"month": 3},
        "attempt": 1,
        "timeoutMs": 60_000,
        "correlationId": job.correlation_id,
        "channels": {"status": f"orchestrix.job.{job.id}.status", "logs": f"orchestrix.job.{job.id}.logs"},
    }
    await task.running()
    await task.log("one", "two")
    await task.running({"percent": 50})
    running = await plant.reached(job, RUNNING)
    await eventually(lambda: _progress(plant, job), deadline=5)
    assert (running.owner, running.ownership, running.worker_id) == (node.name, "OWNED", "w-1")
    await task.log("three")
    await task.succeed({"pages": 7})
    done = await plant.reached(job, SUCCEEDED)
    assert (done.result, done.progress, done.error) == ({"pages": 7}, {"percent": 50}, None)
    await plant.cleared(job)
    assert [(one.seq, one.message) for one in await plant.logs(job)] == [(2, "one"), (3, "two"), (5, "three")]
    assert [(one.attempt, one.state, one.worker_id) for one in await plant.attempts(job)] == [(1, SUCCEEDED, "w-1")]
    await queues_gone(plant, job)


async def _progress(plant: Plant, job: JobRow) -> bool:
    found: object = (await plant.now(job)).progress
    return found == {"percent": 50}


@pytest.mark.req("S0-75")
async def test_what_a_worker_says_before_anybody_listens_is_kept(plant: Plant) -> None:
    leader = await plant.node(leads=True)
    hand = await plant.worker()
    await leader.jobs.handoff_subscriber.stop()
    job = await plant.submit()
    task = await hand.take()
    await task.running()
    await task.log("early")
    await task.succeed()
    other = await plant.node("other")
    done = await plant.reached(job, SUCCEEDED)
    assert done.state == SUCCEEDED
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["early"]
    assert other.name


async def test_a_failure_is_tried_again_and_its_log_kept(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit(retries=1)
    first = await hand.take()
    await first.running()
    await first.log("first")
    await first.fail()
    second = await hand.take()
    assert (second.order["attempt"], second.order["historyId"] != first.order["historyId"]) == (2, True)
    await second.running()
    await second.log("second")
    await second.fail("still none")
    ended = await plant.reached(job, FAILED)
    assert ended.error == {"type": "Broken", "message": "still none"}
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["first", "second"]
    assert [one.state for one in await plant.attempts(job)] == [FAILED, FAILED]


async def test_every_attempt_joins_the_trace_of_whoever_wanted_the_job(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"}
    await plant.submit(retries=1, **trace)
    first = await hand.take()
    await first.running()
    await first.fail()
    second = await hand.take()
    assert [{name: task.headers.get(name) for name in trace} for task in (first, second)] == [trace, trace]


async def test_lines_of_an_earlier_attempt_are_waited_for_where_the_last_one_had_none(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit(retries=1)
    first = await hand.take()
    await first.running()
    await first.say("FAILED", seq=4, error={"type": "Broken", "message": "no paper"}, lastLogSeq=3)
    second = await hand.take()
    await second.running()
    await second.succeed()
    await plant.reached(job, SUCCEEDED)
    first.seq = 1
    await first.log("one", "two")
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["one", "two"]
