"""Does the API say why a job is where it is, and who brought it there?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orchestrix import clock
from orchestrix.api.jobs.models import JobWhyBody
from orchestrix.domain import jobs as rules
from orchestrix.domain.leases import Fence
from tests.integration.jobs.rows import leading

from .answers import problem
from .test_jobs import UNKNOWN, changed, failed, running, submitted
from .world import World


async def why(world: World, id: str) -> dict[str, Any]:
    """What is said of a job."""
    answer = await world.client.get(f"/jobs/{id}/why")
    assert answer.status_code == 200, answer.text
    JobWhyBody.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


async def test_a_job_that_no_worker_begins_names_the_command(world: World) -> None:
    await leading(world.database, Fence(1, "node-1"))
    id, at = (await submitted(world))["id"], world.database.now() - timedelta(seconds=10)
    await changed(world, id, lambda job: rules.dispatched(job, clock.uuid7(), at))
    found = await why(world, id)
    assert (found["id"], found["state"], found["blocker"]) == (id, "DISPATCHED", "no_worker")
    assert found["sentence"] == "The job is DISPATCHED: no worker serves queue reports."
    assert found["nextAction"] == "Start one with `orchestrix worker --job-queue reports`."
    assert (found["since"] is not None, found["nextAt"]) == (True, None)


async def test_a_job_says_who_has_cancelled_and_who_has_retried_it(world: World) -> None:
    other, job = await failed(world), await failed(world)
    assert (await why(world, job.id))["sentence"].startswith(
        "Failed in attempt 1 (it has no retries): Broken: no paper"
    )
    for one in (job, other):
        reason = f"for {one.id}"
        await world.client.post(f"/jobs/{one.id}/retry", json={"reason": reason})
    assert f"(for {job.id}); attempt 2 begins" in (await why(world, job.id))["sentence"]
    for one in (job, other):
        await world.client.post(f"/jobs/{one.id}/cancel", json={"reason": f"not {one.id}"})
    found = await why(world, job.id)
    assert found["sentence"].startswith("Cancelled by anonymous at ")
    assert found["sentence"].endswith(f"(not {job.id}).")


async def test_a_cancel_by_no_person_names_nobody(world: World) -> None:
    id = (await submitted(world))["id"]
    await world.client.post(f"/jobs/{id}/cancel", json={"reason": "not wanted"})
    await world.client.post(f"/jobs/{id}/retry", json={})
    await changed(world, id, lambda job: rules.cancelled(job, "its schedule was deleted", world.database.now()))
    assert (await why(world, id))["sentence"] == "Cancelled: its schedule was deleted."


async def test_a_job_that_runs_and_one_that_is_not_there(world: World) -> None:
    assert (await why(world, (await running(world)).id))["blocker"] == "in_progress"
    problem(await world.client.get(f"/jobs/{UNKNOWN}/why"), 404, "not_found")
