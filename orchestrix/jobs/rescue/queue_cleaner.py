"""Queue cleaner: the leader's periodic deletion of the queues of ended jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from orchestrix.broker.port import Broker, LinkState
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.jobs.rescue.leader_context import RESCUE_BATCH_LIMIT, LeaderContext
from orchestrix.persistence.jobs import jobs

QUEUE_CLEANER_INTERVAL_S: Final = 30.0
QUEUE_CLEANER_AGE_S: Final = 120.0
"""Seconds after its end at which a job's queues are deleted once more."""


class QueueCleaner:
    """Deletes the queues of jobs that have ended once more, a while later.

    A late or redelivered message makes a worker declare them again; they have no consumer then.
    """

    def __init__(self, leader_context: LeaderContext, broker: Broker) -> None:
        self._leader_context = leader_context
        self._broker = broker
        self._after: tuple[datetime, str] | None = None

    async def run_once(self) -> float:
        """Checks once; seconds until the next check."""
        if self._broker.state is not LinkState.UP:
            return QUEUE_CLEANER_INTERVAL_S
        database = self._leader_context.database
        after = self._after or (database.now() - timedelta(seconds=3 * QUEUE_CLEANER_AGE_S), "")
        async with database.read() as connection:
            found = await jobs.cleared(connection, after, QUEUE_CLEANER_AGE_S, RESCUE_BATCH_LIMIT)
        for _, job_id in found:
            if await self._is_cleared(job_id):
                for queue in (status_queue(job_id), logs_queue(job_id)):
                    await self._broker.delete(queue)
        self._after = found[-1] if found else after
        return 1.0 if len(found) == RESCUE_BATCH_LIMIT else QUEUE_CLEANER_INTERVAL_S

    async def _is_cleared(self, job_id: str) -> bool:
        """Whether it has not been retried meanwhile: then its queues are needed."""
        async with self._leader_context.database.read() as connection:
            return any(job.ended and not job.channels for job in await jobs.of_ids(connection, [job_id]))
