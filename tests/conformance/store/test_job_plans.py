"""Do the statements about jobs find their rows by an index, whatever was done long ago?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING, SUCCEEDED, JobRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import (
    blocked_job_steps,
    executor_jobs,
    job_admission,
    job_heartbeats,
    job_logs,
    job_predicates,
    job_queues,
    jobs,
)
from orchestrix.persistence.jobs.blocked_job_steps import UnservedJobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from tests.conformance.store.plans import Access, accesses, analyse, watched
from tests.conformance.store.test_jobs import pending
from tests.integration.jobs.rows import joined

Work = Callable[[Transaction], Awaitable[Any]]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
UNLED = UnservedJobs("release", dict.fromkeys((PENDING, DISPATCHED, RUNNING), NOON))
LED = UnservedJobs("app", dict.fromkeys((DISPATCHED, RUNNING), NOON), ["letters", "reports"])
ROWS = 3000
LIVE = 20


@pytest.fixture
async def busy(database: Database) -> list[JobRow]:
    """Jobs of which the last few run or wait, the others were done long ago."""
    await database.ping()
    now = database.now()
    done = [
        pending(database, state=SUCCEEDED, wake_at=None, history_id=clock.uuid7(), finished_at=now) for _ in range(ROWS)
    ]
    live = [
        pending(
            database,
            state=RUNNING,
            channels=1,
            owner="a",
            ownership="OWNED",
            history_id=clock.uuid7(),
            worker_beat_at=now,
        )
        for _ in range(LIVE)
    ]
    due = [pending(database, state=PENDING) for _ in range(LIVE)]
    async with database.begin() as tx:
        await jobs.insert(tx, [*done, *live, *due])
        lines = [JobLogLine(str(job.history_id), 1, job.id, "w", "info", "x", now) for job in done]
        await job_logs.insert(tx, lines)
    await joined(database, "a")
    await analyse(database, "jobs", "job_logs")
    return live


async def wide(database: Database, work: Work) -> list[Access]:
    """Where a statement of the work reads a table of jobs from end to end."""
    with watched(database) as sent:
        async with database.begin() as tx:
            await work(tx)
    found = [access for one in sent for access in await accesses(database, one)]
    large = [access for access in found if access.table in ("jobs", "a", "job_logs")]
    assert large, work
    return [access for access in large if access.index is None or not access.bounded]


LOOKED_FOR: Sequence[Work] = (
    partial(job_admission.due, limit=10, open_limit=1000, silent=30.0),
    partial(jobs.timed_out, limit=10, heard=15.0),
    partial(jobs.silent, seconds=30.0, limit=10, heard=15.0),
    partial(job_queues.lost_dispatches, empty=["q"], last_dispatched={"r": NOON}, seconds=30.0, heard=15.0, limit=10),
    partial(job_queues.failed, seconds=60.0, limit=1000),
    partial(job_queues.last_dispatched_at, queues=["q"], seconds=30.0),
    partial(jobs.dispatched_before_reset, limit=10),
    partial(jobs.unowned, seconds=30.0, limit=10),
    partial(jobs.orphans, seconds=30.0, limit=10),
    partial(jobs.owned_by, node="a"),
    partial(blocked_job_steps.blocked_by_jobs, pair=INSTANCES, which=UNLED, limit=9),
    partial(blocked_job_steps.blocked_by_jobs, pair=APPS, which=LED, limit=9),
    jobs.next_due,
    partial(job_predicates.jobs_to_rescue, limit=30.0, heard=15.0, since=NOON),
    partial(job_predicates.ownerless, orphaned=30.0, without=30.0),
    jobs.loads,
    job_admission.waiting,
    job_admission.open_jobs,
    jobs.occupied,
    executor_jobs.in_flight,
    partial(executor_jobs.in_flight, group="shop"),
    partial(executor_jobs.owned, node="a"),
)


async def test_what_is_looked_for(database: Database, busy: list[JobRow]) -> None:
    """Nothing is changed by looking, so that all look into the same tables: to fill them takes long."""
    for work in LOOKED_FOR:
        name = getattr(work, "func", work).__name__
        assert await wide(database, work) == [], name


async def test_what_is_written(database: Database, busy: list[JobRow]) -> None:
    some = busy[:5]
    changed = [(job.version, rules.taken(job, "b", job.updated_at + timedelta(seconds=1))) for job in some]

    async def work(tx: Transaction) -> None:
        await jobs.lock(tx, [job.id for job in some])
        await jobs.store(tx, changed)
        await job_heartbeats.record_heartbeats(tx, [str(job.history_id) for job in some], tx.now())
        await jobs.by_histories(tx, [str(job.history_id) for job in some])
        await job_logs.page(tx, busy[0].id, 10, (1, 5))
        await job_logs.stored_lines(tx, [(str(job.history_id), 1) for job in some])

    assert await wide(database, work) == []
