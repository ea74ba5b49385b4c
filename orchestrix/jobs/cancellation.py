"""Job cancellation: stops a job in any state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrix import crash
from orchestrix.broker.port import Broker
from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import may_wake_leader
from orchestrix.domain.jobs import JobRow, JobTransition
from orchestrix.errors import NotFound
from orchestrix.jobs import outbox_rows, spans, step_results
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.executors.owner_notifier import OwnerNotifier
from orchestrix.jobs.step_results import StoredEnds
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs

log = logging.getLogger("orchestrix.jobs")

CANCEL: Final = "cancel-job"
"""The verb of cancelled jobs in the audit."""


class StopPublisher:
    """Notifies all workers that an attempt is to stop, or its owner where that is to call an executor. A lost stop
    message is repeated at the worker's next heartbeat.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._notify_owners = OwnerNotifier(broker)
        self._sending: set[asyncio.Task[None]] = set()

    def publish(self, stops: Sequence[StopRequest]) -> None:
        """Begins to publish; returns at once."""
        self._notify_owners(one.job.owner for one in stops if one.job.queue is None)
        if not (told := [one for one in stops if one.job.queue is not None]):
            return
        task = asyncio.create_task(self._send(told), name="cancel requests")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, stops: Sequence[StopRequest]) -> None:
        # Where no worker listens they are returned, which is no failure: then no worker processes the attempt.
        await self._broker.publish([outbox_rows.stop(one.job, one.history_id, one.reason) for one in stops])


class JobCanceller:
    """Cancels jobs: the database decides, the stop message to the workers is only faster.

    `on_change` is notified of the changed job; `sent` says that the outbox has something to send, `notify_leader` that
    another run of its schedule may begin.
    """

    def __init__(
        self,
        database: Database,
        stop: Callable[[Sequence[StopRequest]], None],
        on_change: Callable[[Sequence[str]], None],
        sent: Callable[[], None] = lambda: None,
        notify_leader: Callable[[], None] = lambda: None,
    ) -> None:
        self._sent = sent
        self._notify_leader = notify_leader
        self._database = database
        self._stop = stop
        self._on_change = on_change

    async def cancel(self, job_id: str, reason: str, actor: str) -> JobRow:
        """The job from now on. A running one ends when its worker has received the stop. One that `actor` changes is
        in the audit.

        Raises `NotFound`, `ConflictError` for one that has ended otherwise, and `Unavailable`.
        """
        moved = await self._database.run(lambda tx: self._write(tx, job_id, reason, actor))
        crash.point("jobs.cancel.after_commit")
        if moved.stop is not None:
            self._stop([StopRequest(moved.job, moved.stop, reason)])
        self._on_change([job_id])
        if may_wake_leader(moved.job):
            self._notify_leader()
        return moved.job

    async def _write(self, tx: Transaction, job_id: str, reason: str, actor: str) -> JobTransition:
        job = (await jobs.lock_with_parents(tx, [job_id])).get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        moved = rules.cancelled(job, reason, self._database.now())
        if moved.job is not job:
            moved = replace(moved, job=spans.act(tx, CANCEL, job, moved.job))
            tried = [moved.attempt] if moved.attempt else []
            stored = await step_results.store_with_results(tx, [(job.version, moved.job)], tried)
            if stored.results:
                tx.then(self._sent)
            tx.then(lambda: self._announce(stored))
            detail = {"job": job.id, "state": job.state}
            await audit.insert(tx, [AuditRow(at=tx.now(), actor=actor, verb=CANCEL, reason=reason, detail=detail)])
        crash.point("jobs.cancel.before_commit")
        return moved

    def _announce(self, stored: StoredEnds) -> None:
        self._on_change([job.id for job in stored.broadcasts])
        if stored.wakes_leader:
            self._notify_leader()


async def cancel_jobs(tx: Transaction, reasons: Mapping[str, str]) -> list[StopRequest]:
    """Cancels those that have not ended, by their ids; the stops that workers are to get after the commit.

    All in one call: whoever locks jobs does so in the order of their ids, and a second call would begin that order
    again.
    """
    found = [job for job in (await jobs.lock_with_parents(tx, reasons)).values() if not job.ended]
    moved = [rules.cancelled(job, reasons[job.id], tx.now()) for job in found]
    changed = [(job.version, one.job) for job, one in zip(found, moved, strict=True) if one.job.version != job.version]
    await step_results.store_with_results(tx, changed, [one.attempt for one in moved if one.attempt is not None])
    return [StopRequest(one.job, one.stop, reasons[one.job.id]) for one in moved if one.stop is not None]
