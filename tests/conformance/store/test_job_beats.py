"""Is a sign of life noted on each database, though others have the row in hand?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from orchestrix.domain.jobs import DISPATCHED, JobRow
from orchestrix.jobs.worker_heartbeats import DeferredHeartbeats
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_heartbeats, jobs
from tests.conformance.store.test_jobs import dispatched, now, running, stored
from tests.support import eventually, holds

LATER = timedelta(seconds=5)


async def beaten(database: Database, *found: JobRow, wait: bool = True) -> set[str]:
    """Notes a beat for each, five seconds from now."""
    names = [str(job.history_id) for job in found]
    return await database.run(lambda tx: job_heartbeats.record_heartbeats(tx, names, database.now() + LATER, wait=wait))


@asynccontextmanager
async def held(database: Database, job: JobRow) -> AsyncIterator[None]:
    """The owner has the row in hand, as while it writes lines."""
    async with database.begin() as tx:
        await jobs.lock(tx, [job.id])
        yield


async def test_a_beat_is_noted_and_an_older_one_changes_nothing(database: Database) -> None:
    job, other = await running(database), await dispatched(database)
    assert await beaten(database, job, other) == {job.history_id, other.history_id}
    after = await now(database, job)
    assert after.worker_beat_at is not None
    assert after.worker_beat_at - database.now() > timedelta(seconds=3)
    assert (after.version, (await now(database, other)).state) == (job.version, DISPATCHED)
    await database.run(lambda tx: job_heartbeats.record_heartbeats(tx, [str(job.history_id)], tx.now()))
    assert (await now(database, job)).worker_beat_at == after.worker_beat_at
    done = await stored(database, job, replace(job, version=job.version + 1, state="FAILED"))
    assert await beaten(database, done) == set()


async def test_a_row_in_hand_is_owed_or_waited_for(served: Database, served_peer: Database) -> None:
    busy, free = await running(served), await running(served)
    waiting = None
    async with held(served_peer, busy):
        assert await beaten(served, busy, free, wait=False) == {free.history_id}
        waiting = asyncio.create_task(beaten(served, busy))
        await holds(lambda: not waiting.done(), during=0.2)
    assert await waiting == {busy.history_id}


async def test_a_beat_is_noted_once_the_owner_has_written(database: Database, peer: Database) -> None:
    """However long that takes, and whoever else is owed one."""
    busy, free = await running(database), await running(database)
    heard = database.now() + LATER
    late = DeferredHeartbeats(database)
    await late.start()

    async def noted(job: JobRow) -> bool:
        return (await now(database, job)).worker_beat_at == heard

    async with held(peer, busy):
        late.defer([str(busy.history_id), str(free.history_id)], heard)
        if not database.dialect.single_writer:
            await eventually(lambda: noted(free), deadline=20, message="the other one is noted meanwhile")
    await eventually(lambda: noted(busy), deadline=20, message="its row is free again")
    await late.stop()


async def test_what_is_touched_keeps_its_version(database: Database) -> None:
    job, other = await running(database), await running(database)
    at = database.now() + LATER
    fresh = replace(job, worker_beat_at=at, log_lines=3, log_bytes=2**40)
    async with database.begin() as tx:
        await jobs.lock(tx, [job.id])
        await job_heartbeats.touch(tx, [fresh])
        await job_heartbeats.touch(tx, [])
    assert await now(database, job) == fresh
    assert await now(database, other) == other
