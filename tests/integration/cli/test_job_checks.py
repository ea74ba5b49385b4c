"""Does `doctor` tell of a queue's workers what the database knows of them?"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import update

from orchestrix.cli.doctor.jobs import _failed, facts
from orchestrix.domain.jobs import FAILED, SUCCEEDED, TIMED_OUT
from orchestrix.domain.leases import Fence
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.tables import jobs
from tests.conformance.store.test_jobs import dispatched
from tests.integration.jobs.rows import joined, leading
from tests.servers import templates


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    templates.upgraded(sqlite_url)
    opened = Database(sqlite_url)
    await joined(opened, "node-1")
    yield opened
    await opened.close()


async def test_workers_that_are_full_or_away_or_unknown_are_told_apart(database: Database) -> None:
    for queue in ("full", "empty"):
        await dispatched(database, queue=queue)
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", ["full"], 4)]))
    unled = await facts(database, 30.0, 1000)
    assert {cause for cause, _ in unled.causes.values()} == {"no leader elected (worker heartbeats are not recorded)"}
    await leading(database, Fence(1, "node-1"))
    known = await facts(database, 30.0, 1000)
    assert known.not_started == {"full": 1, "empty": 1}
    cause, fix = known.causes["full"]
    assert "queue full: its only worker (last heartbeat 0 s ago) is busy" in cause
    assert fix == "orchestrix worker --job-queue full"
    assert known.causes["empty"][0] == "no worker serves queue empty"


async def test_jobs_that_have_failed_for_good_are_counted_by_queue_and_handler(database: Database) -> None:
    now = database.now()
    unknown = {"type": "UnknownJob", "message": "a worker of queue gpu has no function for job 'render'"}

    async def ended(state: str, ago: timedelta, error: dict[str, str] | None, **more: str) -> None:
        job = await dispatched(database, **more)
        row = update(jobs).where(jobs.c.id == job.id).values(state=state, finished_at=now - ago, error=error)
        async with database.begin() as tx:
            await tx.execute(row)

    minute = timedelta(minutes=1)
    await ended(FAILED, 2 * minute, {"type": "Old", "message": "x"}, queue="gpu", handler="render")
    await ended(FAILED, minute, unknown, queue="gpu", handler="render")
    await ended(TIMED_OUT, minute, None, queue="gpu", handler="it's")
    await ended(FAILED, 61 * minute, unknown, queue="old", handler="render")
    await ended(SUCCEEDED, minute, None, queue="fine", handler="render")
    rendered, late = _failed((await facts(database, 30.0, 1000)).failed)
    assert rendered.detail.startswith("queue gpu, handler render: 2 jobs FAILED within the last hour, the last at ")
    assert rendered.detail.endswith("Z: UnknownJob: a worker of queue gpu has no function for job 'render'")
    assert rendered.fix == "orchestrix jobs list --state FAILED --queue gpu --handler render"
    assert late.fix is not None
    assert shlex.split(late.fix)[-1] == "it's"
    assert "1 job TIMED_OUT" in late.detail
