"""Reported jobs: notifies the owner of a job for a group that its executor reports, so that it reads the job's queues.

They are declared by another node than the owner that takes the first report, not before: an executor that refuses, or
that reports to the owner, costs the broker none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outgoing
from orchestrix.broker.topology import REPORTS_KIND, node_queue
from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.saga.messages import dump

log = logging.getLogger("orchestrix.jobs")

NOTIFY_TIMEOUT_S: Final = 1.0
SUBSCRIPTIONS_AT_ONCE: Final = 20


class ReportedJobs:
    """The jobs of which this node was notified, and has not begun to read the queues yet."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._wake = WakeSignal()

    def add(self, job_ids: Iterable[str]) -> None:
        """An executor has reported these."""
        self._ids.update(job_ids)
        if self._ids:
            self._wake.set()

    async def take(self) -> set[str]:
        """Waits for some, and takes all."""
        while not self._ids:
            await self._wake.wait(None)
        found, self._ids = self._ids, set()
        return found


class ReportNotifier:
    """Notifies the owner of a job: by `here` if `is_here` knows that node, else by the node's queue.

    A lost notification costs seconds: the owner reads the queues by itself once it knows that the executor has begun.
    """

    def __init__(self, broker: Broker, is_here: Callable[[str], bool], here: Callable[[Collection[str]], None]) -> None:
        self._broker, self._is_here, self._here = broker, is_here, here

    async def __call__(self, owner: str, job_id: str) -> None:
        """The job has a first report."""
        if self._is_here(owner):
            self._here([job_id])
            return
        body = dump({"kind": REPORTS_KIND, "jobs": [job_id]})
        message = Outgoing("", node_queue(owner), body, clock.uuid7(), type="node.poke")
        await self._broker.publish([message], NOTIFY_TIMEOUT_S)


class ReportedJobsReader:
    """Begins to read the queues of the jobs in `reported` that this node owns, unless it `reads` them already."""

    def __init__(
        self,
        database: Database,
        node: str,
        reported: ReportedJobs,
        *,
        reads: Callable[[str], bool],
        consume: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._database, self._node, self._reported = database, node, reported
        self._reads, self._consume = reads, consume
        self._turns = asyncio.Semaphore(SUBSCRIPTIONS_AT_ONCE)
        self._loop = Loop("reported jobs", self._round)

    async def start(self) -> None:
        """Begins to read."""
        await self._loop.start()

    async def stop(self) -> None:
        """Begins to read no more."""
        await self._loop.stop()

    async def _round(self) -> None:
        wanted = [job_id for job_id in await self._reported.take() if not self._reads(job_id)]
        if not wanted:
            return
        try:
            async with self._database.read() as connection:
                found = await jobs.of_ids(connection, wanted)
        except RetryableError as error:
            log.debug("cannot read which reported jobs are owned here: %s", error)  # the reconciler finds them
            return
        mine = [job for job in found if job.channels and job.owner == self._node]
        await asyncio.gather(*(self._begin(job.id, job.owner_epoch) for job in mine))

    async def _begin(self, job_id: str, epoch: int) -> None:
        async with self._turns:
            await self._consume(job_id, epoch)
