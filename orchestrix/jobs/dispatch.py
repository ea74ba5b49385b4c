"""Job dispatcher: sends jobs that are due to workers, and asks for an owner of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.leases import Fence
from orchestrix.jobs import outbox_rows, spans
from orchestrix.jobs.broadcasts.firing import BroadcastFiring
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence import outbox
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_admission, jobs
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")

DISPATCH_BATCH_LIMIT: Final = 100
IDLE_POLL_INTERVAL_S: Final = 5.0
"""Seconds between two polls when nothing is due earlier and no notification comes."""
NO_CAPACITY_POLL_INTERVAL_S: Final = 0.2
"""Seconds until the next poll where no due job may be dispatched now: nothing notifies that a worker has begun one."""

UNDECLARED_ROWS_LIMIT: Final = 100
"""Rows that may wait for their queues when more jobs are dispatched. A row that waits for long outlives its claim, and
is then blocked until that is over; a job that stays due can be dispatched by any leader."""
UNDECLARED_ROWS_POLL_INTERVAL_S: Final = 0.1


class JobDispatcher:
    """A duty of the leader: dispatches what is due, as `open_limit` and the share of each queue allow, each write
    fenced by its term. A worker is lost after `silent` seconds without a heartbeat. The relay's name claims the rows,
    for the leading node may have had another id when the process began. Broadcasts are left to `firing`; without it,
    they wait for a leader that can call executors. `notify_owners` tells the owners of jobs for groups that there is
    another attempt.
    """

    def __init__(
        self,
        database: Database,
        fence: Fence,
        wake: WakeSignal,
        relay: OutboxRelay,
        *,
        open_limit: int,
        silent: float,
        firing: BroadcastFiring | None = None,
        notify_owners: Callable[[Sequence[str | None]], None] = lambda owners: None,
    ) -> None:
        self._firing = firing
        self._database = database
        self._fence = fence
        self._wake = wake
        self._relay = relay
        self._open_limit = open_limit
        self._silent = silent
        self._notify_owners = notify_owners
        self._loop = Loop("job dispatch", self._round)

    async def start(self) -> None:
        """Begins to poll for jobs that are due."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is due is left to the next leader."""
        await self._loop.stop()

    async def _round(self) -> None:
        if self._relay.undeclared_rows >= UNDECLARED_ROWS_LIMIT:
            await self._wake.wait(UNDECLARED_ROWS_POLL_INTERVAL_S)
            return
        wait = await self._until_next()
        if wait > 0:
            await self._wake.wait(wait)
            return
        fired = 0 if self._firing is None else await self._firing.run_once()
        sent, rows = await self._database.run(self._write)
        if sent:
            crash.point("jobs.dispatch.after_commit")
            log.debug("dispatching jobs: %s", counted(len(rows), "message"))
            if rows:
                self._relay.take(rows)
            self._notify_owners([job.owner for job in sent if job.queue is None])
        elif not fired:
            await self._wake.wait(NO_CAPACITY_POLL_INTERVAL_S)

    async def _write(self, tx: Transaction) -> tuple[list[JobRow], list[OutboxRow]]:
        due = await job_admission.due(tx, DISPATCH_BATCH_LIMIT, self._open_limit, self._silent)
        if not due:
            return [], []
        crash.point("jobs.dispatch.after_claim")
        now = self._database.now()
        moved = spans.dispatch(tx, due, [rules.dispatched(job, clock.uuid7(), now) for job in due])
        await jobs.store(
            tx,
            [(before.version, one.job) for before, one in zip(due, moved, strict=True)],
            [one.attempt for one in moved if one.attempt is not None],
        )
        rows = [row for one in moved for row in dispatch_messages(one.job, now)]
        await outbox.insert(tx, rows, claimed_by=self._relay.node, lease_s=self._relay.lease)
        await leases.check_fence(tx, self._fence)
        crash.point("jobs.dispatch.before_commit")
        return [one.job for one in moved], rows

    async def _until_next(self) -> float:
        async with self._database.read() as connection:
            due = await jobs.next_due(connection)
        return IDLE_POLL_INTERVAL_S if due is None else min(due, IDLE_POLL_INTERVAL_S)


def dispatch_messages(job: JobRow, now: datetime) -> list[OutboxRow]:
    """The job dispatch for the worker, and beside it, for it declares the same queues, the request for an owner.

    No worker gets a job for a group: its owner calls an executor.
    """
    dispatch = [] if job.queue is None else [outbox_rows.dispatch(job, now)]
    return [*dispatch, *([outbox_rows.assigned(job, now)] if job.owner is None else [])]
