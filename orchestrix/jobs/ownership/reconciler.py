"""Ownership reconciler: makes sure that a node consumes exactly the jobs that it owns."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.broker.probe import accepts_messages
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs, Reading
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.persistence.jobs.jobs import OwnedJobRow
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")

LAST_LINES_TIMEOUT_S: Final = 30.0
"""Seconds for which the last lines of a job's log are waited for, after its end and while its queues are consumed."""

GATHER_S: Final = 0.5
"""Seconds for which ends are gathered, so that not each costs a comparison."""


class OwnershipReconciler:
    """Compares now and then what this node owns, by the database, with what it consumes, and corrects the difference.

    A job for a group has no queues before its first report. Of that the owner is notified; where that was lost, it is
    consumed once its executor is known to have begun.

    A job whose last lines do not come is cleared away after a while. That counts from when this node could consume its
    queues at the earliest: messages from before that, or from a time when the broker was down or blocked, are still in
    the queues, or with the worker.
    """

    def __init__(
        self, database: Database, owned_jobs: OwnedJobs, node: str, broker: Broker, *, interval_s: float
    ) -> None:
        self._database = database
        self._owned_jobs = owned_jobs
        self._node = node
        self._broker = broker
        self._interval_s = interval_s
        self._read_since: dict[str, tuple[Reading, float]] = {}
        self._wake = WakeSignal()
        self._loop = Loop("job reconciliation", self._round)

    async def start(self) -> None:
        """Begins to compare."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops comparing."""
        await self._loop.stop()

    def wake(self) -> None:
        """A job has ended that may have no queues: it is cleared away soon."""
        self._wake.set()

    async def run_once(self) -> None:
        """Compares once."""
        # What is consumed before what is owned: a job taken in between is in both, and nothing is amiss.
        reading = self._owned_jobs.epochs
        async with self._database.read() as connection:
            owned = {one.id: one for one in await jobs.owned_by(connection, self._node)}
            unread = [one.id for one in owned.values() if one.for_group and reading.get(one.id) != one.owner_epoch]
            unreported = set(unread) - await executor_jobs.reported(connection, unread)
        lost = [job_id for job_id, epoch in reading.items() if _is_lost(owned.get(job_id), epoch)]
        if lost:
            log.info("%s no longer owned by this node: releasing", counted(len(lost), "job"))
            await self._owned_jobs.leave(lost)
        if any(one.ended for one in owned.values()) and not await accepts_messages(self._broker):
            self._read_since.clear()
        self._note()
        for one in owned.values():
            if one.id in unreported:
                if one.ended:
                    self._owned_jobs.clear_unreported(one.id, one.owner_epoch)
            elif reading.get(one.id) != one.owner_epoch:
                await self._owned_jobs.consume(one.id, one.owner_epoch, late=True)
            elif self._waited_enough(one):
                log.debug("no more messages expected for job %s", one.id)
                await self._owned_jobs.delete_channels(one.id)

    def _note(self) -> None:
        """Since when each job's queues have been consumed without a break."""
        now, before = clock.monotonic(), self._read_since
        self._read_since = {
            job_id: before[job_id] if job_id in before and before[job_id][0] == how else (how, now)
            for job_id, how in self._owned_jobs.readings.items()
        }

    def _waited_enough(self, one: OwnedJobRow) -> bool:
        if one.finished_at is None or one.id not in self._read_since:
            return False
        read = clock.monotonic() - self._read_since[one.id][1]
        ended = (self._database.now() - one.finished_at).total_seconds()
        return one.ended and min(read, ended) > LAST_LINES_TIMEOUT_S

    async def _round(self) -> None:
        if await self._wake.wait(clock.uniform(0.5, 1.0) * self._interval_s):
            await asyncio.sleep(min(GATHER_S, self._interval_s))
        await self.run_once()


def _is_lost(owned: OwnedJobRow | None, epoch: int) -> bool:
    return owned is None or owned.owner_epoch > epoch
