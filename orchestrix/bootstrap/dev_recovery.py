"""Dev recovery: ends what the last `dev` of a folder had in progress when it was killed."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import CANCELLED, LOST, PENDING, RUNNING, WORKER_STOPPED, AttemptEnding
from orchestrix.errors import ConflictError, RetryableError
from orchestrix.jobs import step_results
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.job_filter import JobFilter
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix")

JOBS_PER_TRANSACTION: Final = 200
CUT_OFF: Final = AttemptEnding(
    LOST, {"type": WORKER_STOPPED, "message": "a second signal stopped `orchestrix dev` before the job"}, counts=False
)
DIED: Final = AttemptEnding(LOST, {"type": "WorkerLost", "message": "the worker was killed with `orchestrix dev`"})


@dataclass(frozen=True, slots=True)
class PreviousDev:
    """A `dev` whose process has certainly ended, by the name that its node and its worker had.

    `cut_off` says that a person has killed it: then no job is to blame.
    """

    node: str
    cut_off: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Its jobs in progress: so many begin again, and so many have failed, for they had no retries left."""

    again: int = 0
    failed: int = 0

    def sentences(self) -> list[str]:
        """A sentence about that, if there is anything to say."""
        both = ((self.again, "restarted"), (self.failed, "failed"))
        parts = [f"{counted(count, 'job')} {outcome}" for count, outcome in both if count]
        return [f"the previous `orchestrix dev` was killed with jobs running: {', '.join(parts)}"] if parts else []


async def declare_dead(database: Database, previous: PreviousDev) -> RecoveryResult:
    """Does at once what the time-outs would do after a minute: declares its node dead, and its worker's attempts lost.

    Other workers of its broker continue, and so do their attempts. Where that cannot be written now, the time-outs will
    do it.
    """
    try:
        await database.run(lambda tx: nodes.found_ended(tx, previous.node))
        ids = await _running_jobs(database, previous.node)
        moved = [
            one
            for begin in range(0, len(ids), JOBS_PER_TRANSACTION)
            for one in await _end(database, previous, ids[begin:][:JOBS_PER_TRANSACTION])
        ]
    except (RetryableError, ConflictError) as error:
        log.warning(
            "cannot end the jobs of the killed `orchestrix dev` now; they end after the heartbeat timeout: %s", error
        )
        return RecoveryResult()
    except Exception:  # a bug; it would keep each `dev` of the folder from starting
        log.exception("cannot end the running jobs of the killed `orchestrix dev`")
        return RecoveryResult()
    again, cancelled = moved.count(PENDING), moved.count(CANCELLED)
    return RecoveryResult(again, len(moved) - again - cancelled)


async def _running_jobs(database: Database, worker: str) -> list[str]:
    """The ids of the jobs that this worker had begun and not ended."""
    found: list[str] = []
    after: jobs.After | None = None
    async with database.read() as connection:
        while page := await jobs.page(connection, JobFilter(states=[RUNNING]), JOBS_PER_TRANSACTION, after):
            found += [job.id for job in page if job.worker_id == worker]
            after = page[-1].created_at, page[-1].id
    return found


async def _end(database: Database, previous: PreviousDev, ids: Collection[str]) -> list[str]:
    return await database.run(partial(_write, previous, ids))


async def _write(previous: PreviousDev, ids: Collection[str], tx: Transaction) -> list[str]:
    """The states in which the jobs are now."""
    found = [
        job for job in (await jobs.lock(tx, ids)).values() if (job.state, job.worker_id) == (RUNNING, previous.node)
    ]
    ending = CUT_OFF if previous.cut_off else DIED
    moved = [rules.ended(job, ending, tx.now(), clock.uniform(0, 1)) for job in found]
    changed = [(before.version, one.job) for before, one in zip(found, moved, strict=True)]
    await step_results.store_with_results(tx, changed, [one.attempt for one in moved if one.attempt is not None])
    return [one.job.state for one in moved]
