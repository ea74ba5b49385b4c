"""Does what a node writes about a job count only under the epoch under which it has it, though it owns it again?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import SHUTDOWN, HandoffLimits
from orchestrix.domain.jobs import HANDING_OFF, OWNED, JobRow
from orchestrix.jobs.ownership.handoff_publisher import JobHandoffPublisher
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.persistence.engine import Database
from tests.conformance.store.test_jobs import dispatched, now, stored

NODE = "a-1"
NOTHING = cast(Any, None)


async def came_back(database: Database) -> JobRow:
    """A job that the node had, gave away, and has again: under its third epoch."""
    job = await dispatched(database)
    for node in (NODE, "b-1", NODE):
        job = await stored(database, job, rules.taken(job, node, database.now()))
    assert (job.owner, job.owner_epoch, job.ownership) == (NODE, 3, OWNED)
    return job


async def test_a_job_that_came_back_is_not_closed_by_what_was_done_before(database: Database) -> None:
    job = await came_back(database)
    ended = rules.cancelled(job, "unwanted", database.now())
    job = await stored(database, job, replace(ended, attempt=None))
    holdings = OwnedJobs(database, NOTHING, NODE, NOTHING)
    await database.run(lambda tx: holdings._close(tx, {job.id: 1}))
    assert await now(database, job) == job
    await database.run(lambda tx: holdings._close(tx, {job.id: 3}))
    closed = await now(database, job)
    assert (closed.channels, closed.owner) == (0, None)


async def test_a_job_that_came_back_is_not_marked_for_a_hand_off_that_is_over(database: Database) -> None:
    job = await came_back(database)
    giver = JobHandoffPublisher(database, NOTHING, NOTHING, NOTHING, NODE, HandoffLimits())
    mark = partial(rules.offered, reason=SHUTDOWN, ownership=HANDING_OFF)
    await database.run(lambda tx: giver._write_marks({job.id: 1}, mark, tx))
    assert await now(database, job) == job
    await database.run(lambda tx: giver._write_marks({job.id: 3}, mark, tx))
    marked = await now(database, job)
    assert (marked.ownership, marked.handoff_reason, marked.handoff_tries) == (HANDING_OFF, SHUTDOWN, 1)
