"""Does a job that talks all the time live, and end with all that it has said?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.config.settings import JobsSettings
from orchestrix.domain.jobs import RUNNING, SUCCEEDED
from orchestrix.persistence.engine import Database
from tests.fault.proxy import proxied
from tests.integration.jobs.plant import HASTY, Plant, Task, pause, queues_gone
from tests.servers import templates
from tests.support import eventually

pytestmark = pytest.mark.servers
WAY = 0.002
"""Seconds to the database, and as much back."""
TALK = 8.0
"""Seconds, longer than a worker may be silent."""
SEEN = HASTY.model_copy(update={"heartbeat": 80.0, "dead": 400.0})
"""A node of these tests has beaten once, and counts as one that listens for so long."""


@pytest.fixture(params=["postgresql", "mariadb"])
async def far(request: pytest.FixtureRequest) -> AsyncIterator[Plant]:
    """A database that is 4 ms away, and a broker that is near."""
    url = str(request.getfixturevalue(f"{'postgres' if request.param == 'postgresql' else 'mariadb'}_url"))
    templates.upgraded(url)
    server = EmbeddedBroker()
    await server.start()
    with proxied(url) as proxy:
        proxy.slow(WAY)
        database = Database(proxy.through(url))
        await database.ping()
        plant = Plant(database, server.url)
        yield plant
        await plant.close()
        await database.close()
    await server.stop()


async def talk(task: Task, seconds: float) -> int:
    """Logs a line each 10 ms; how many."""
    loop = asyncio.get_running_loop()
    until, count = loop.time() + seconds, 0
    while loop.time() < until:
        count += 1
        await task.log(f"line {count}")
        await pause(0.01)
    return count


async def test_jobs_that_log_all_the_time_are_not_lost(far: Plant) -> None:
    await far.node(leads=True, tuned=JobsSettings(beat=0.3, silent=1.0))
    hand = await far.worker(beats=True)
    jobs = [await far.submit() for _ in range(3)]
    tasks = [await hand.take() for _ in jobs]
    for task in tasks:
        await task.running()
    for job in jobs:
        await far.reached(job, RUNNING)
    counts = await asyncio.gather(*(talk(task, TALK) for task in tasks))
    for task in tasks:
        await task.succeed()
    said = {str(task.order["jobId"]): count for task, count in zip(tasks, counts, strict=True)}
    for job in jobs:
        await far.reached(job, SUCCEEDED, deadline=30)
        assert [one.state for one in await far.attempts(job)] == [SUCCEEDED]
        await far.cleared(job, deadline=30)
        assert len(await far.logs(job)) == said[job.id]


async def test_a_job_that_logs_and_whose_worker_does_not_beat_is_alive(far: Plant) -> None:
    """Lines are signs of life; the first silence is not. A look of the leader may take a third of the limit."""
    await far.node(leads=True, cluster=SEEN, tuned=JobsSettings(beat=0.9, silent=3.0))
    hand = await far.worker()
    job = await far.submit()
    task = await hand.take()
    await task.running()
    await far.reached(job, RUNNING)
    await talk(task, TALK)
    assert [one.state for one in await far.attempts(job)] == [RUNNING]
    await far.reached(job, "FAILED", deadline=30)


async def test_a_log_above_its_cap_is_cut_and_the_job_goes_on(far: Plant) -> None:
    await far.node(leads=True, tuned=JobsSettings(beat=2.0, silent=20.0, log_lines=20))
    hand = await far.worker(beats=True)
    job = await far.submit()
    task = await hand.take()
    await task.running()
    await task.log(*(f"line {n}" for n in range(60)))

    async def cut() -> bool:
        return bool((await far.now(job)).log_cut)

    await eventually(cut, deadline=20, message="it is cut")
    assert (await far.now(job)).state == RUNNING
    await task.succeed({"done": True})
    done = await far.reached(job, SUCCEEDED)
    assert done.result == {"done": True}
    await far.cleared(job)
    await queues_gone(far, job)
    found = await far.logs(job)
    assert [one.message for one in found[:-1]] == [f"line {n}" for n in range(20)]
    assert "log truncated" in found[-1].message
