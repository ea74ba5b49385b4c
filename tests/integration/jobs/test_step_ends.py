"""Does the event of a step leave when its job ends, whoever ends it?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrix import COMPLETED, NothingToUndo, Saga, Step
from orchestrix import Job as Work
from orchestrix.broker.port import Consumer
from orchestrix.broker.topology import saga_topology
from orchestrix.domain.jobs import CANCELLED, FAILED, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.saga.catalog import Catalog
from tests.integration.jobs.plant import Hand, Plant
from tests.support import eventually

REPORT = Step(
    "report", "REPORTING", job=Work("report"), event="evt.reported", then=COMPLETED, undo=NothingToUndo("it is paper")
)
CATALOG = Catalog([Saga("accounts", (REPORT,))])


async def step(plant: Plant, hand: Hand, **more: Any) -> tuple[JobRow, Consumer]:
    """A job that is the step of a saga, and who hears that saga's events."""
    await hand.broker.declare(saga_topology(CATALOG))
    ear = await hand.broker.consume(CATALOG.events, 10)
    given = {"payload": {"event": "evt.reported", "data": {}}, "saga": "accounts", "instance_id": 7, "step": "report"}
    return await plant.submit(**given, **more), ear


async def word(ear: Consumer) -> tuple[str, dict[str, Any]]:
    """The event that comes, and what it says."""
    found: list[Any] = []

    async def heard() -> bool:
        found.extend(await ear.receive(10))
        return True

    await eventually(heard, deadline=10)
    [one] = found
    await ear.acknowledge([one])
    return one.queue, json.loads(one.body)


async def test_a_worker_succeeds(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job, ear = await step(plant, hand)
    task = await hand.take()
    await task.running()
    await task.succeed({"pages": 7})
    queue, fields = await word(ear)
    assert (queue, fields["data"], fields["causationId"]) == ("evt.reported", {"pages": 7}, job.id)
    assert (fields["saga"], fields["appId"], fields["correlationId"]) == ("accounts", 7, job.correlation_id)
    await plant.cleared(job)
    assert (await plant.now(job)).state == SUCCEEDED


async def test_a_worker_fails_for_good(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job, ear = await step(plant, hand)
    task = await hand.take()
    await task.running()
    await task.fail("no paper")
    queue, fields = await word(ear)
    told = {"type": "Broken", "message": f"no paper (job {job.id})", "retryable": False, "unsure": False}
    assert (queue, fields["error"]) == ("evt.stepFailed", told)
    assert (await plant.now(job)).state == FAILED


async def test_a_worker_asks_for_a_person(plant: Plant) -> None:
    """The job is not tried again, and its step is to wait for that person."""
    await plant.node(leads=True)
    hand = await plant.worker()
    job, ear = await step(plant, hand, retries=3)
    task = await hand.take()
    await task.running()
    await task.fail("look at it", type="Hold", hold=True)
    queue, fields = await word(ear)
    error = fields["error"]
    assert (queue, error["type"], error["hold"], error["retryable"]) == ("evt.stepFailed", "Hold", True, False)
    assert error["message"] == f"look at it (job {job.id})"
    assert (await plant.now(job)).state == FAILED


async def test_the_leader_ends_a_job_whose_time_is_over(plant: Plant) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job, ear = await step(plant, hand, timeout_ms=400)
    task = await hand.take()
    await task.running()
    queue, fields = await word(ear)
    assert (queue, fields["error"]["type"], fields["error"]["unsure"]) == ("evt.stepFailed", "Timeout", True)
    assert (await plant.now(job)).state == TIMED_OUT


@pytest.mark.parametrize("begun", [True, False])
async def test_a_person_cancels_a_job(plant: Plant, begun: bool) -> None:
    node = await plant.node(leads=True)
    if not begun:
        await node.resign()
    hand = await plant.worker()
    job, ear = await step(plant, hand)
    if begun:
        task = await hand.take()
        await task.running()
        await plant.reached(job, RUNNING)
        await plant.cancel(job, "wrong month")
        await hand.stopped(task)
        await task.say("CANCELLED", lastLogSeq=0)
    else:
        await plant.cancel(job, "wrong month")
    _, fields = await word(ear)
    told = {"type": "JobCancelled", "message": f"wrong month (job {job.id})", "retryable": False, "unsure": begun}
    assert fields["error"] == told
    assert (await plant.now(job)).state == CANCELLED
