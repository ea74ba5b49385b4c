"""Job retrier: begins an ended job once more when a person asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import crash
from orchestrix.domain import job_broadcasts
from orchestrix.domain.job_retry import retried
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import NotFound
from orchestrix.jobs import spans
from orchestrix.jobs.broadcasts.counting import count
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import broadcasts, jobs

RETRY: Final = "retry-job"
"""The verb of retried jobs in the audit."""


class JobRetrier:
    """Retries jobs; of a broadcast, the children that have failed. `on_change` is notified of the changed job;
    `notify_leader` lets the leader poll at once.
    """

    def __init__(
        self, database: Database, on_change: Callable[[Sequence[str]], None], notify_leader: Callable[[], None]
    ) -> None:
        self._database = database
        self._on_change = on_change
        self._notify_leader = notify_leader

    async def retry(self, job_id: str, reason: str, actor: str) -> JobRow:
        """The job from now on. One that `actor` changes is in the audit.

        Raises `NotFound`, `ConflictError` for one that cannot be retried, and `Unavailable`.
        """
        job = await self._database.run(lambda tx: self._write(tx, job_id, reason, actor))
        crash.point("jobs.retry.after_commit")
        self._on_change([job_id])
        self._notify_leader()
        return job

    async def _write(self, tx: Transaction, job_id: str, reason: str, actor: str) -> JobRow:
        before, children = await broadcasts.lock_family(tx, job_id)
        if before is None:
            raise NotFound(f"there is no job {job_id}")
        now, again = self._database.now(), list[tuple[JobRow, JobRow]]()
        if before.has_children:
            job, again = job_broadcasts.retried(before, children, now)
        else:
            job = retried(before, now)
        if job is not before:
            job = spans.act(tx, RETRY, before, job)
            await jobs.store(tx, [(one.version, after) for one, after in [(before, job), *again]])
            if before.has_children and not again:  # all have succeeded since
                await count(tx, [job_id])
            detail = {"job": job.id, "state": before.state, "attempt": before.attempt}
            await audit.insert(tx, [AuditRow(at=tx.now(), actor=actor, verb=RETRY, reason=reason, detail=detail)])
        crash.point("jobs.retry.before_commit")
        return job
