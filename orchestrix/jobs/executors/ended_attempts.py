"""Ended attempts: stops executors whose attempts others have ended, by a cancel, a time-out or as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final

from orchestrix.domain.jobs import CANCELLED, LOST, TIMED_OUT, JobAttempt, JobRow
from orchestrix.jobs.executors import call_spans
from orchestrix.jobs.executors.port import ExecutorCallPort
from orchestrix.persistence.engine import Connection, Database
from orchestrix.persistence.jobs import executor_jobs, jobs

LEFT: Final = timedelta(minutes=10)
"""How long ago an attempt may have ended whose executor a new owner asks to stop."""


class EndedAttempts:
    """Asks the executors of ended attempts to stop, once each by every owner of the job. What is lost is repeated in
    the answers to reports.
    """

    def __init__(self, database: Database, client: ExecutorCallPort) -> None:
        self._database, self._client = database, client
        self._calling: set[asyncio.Task[None]] = set()

    async def stop_executors(self, history_ids: Sequence[str]) -> None:
        """Begins to call those that have not reported the end of these attempts themselves. Raises `Unavailable`."""
        if not history_ids:
            return
        async with self._database.read() as connection:
            found = (await jobs.histories(connection, history_ids)).values()
            await self._stop(connection, found)

    async def stop_left(self, job_ids: Collection[str]) -> None:
        """The same for what has ended lately of jobs that this node has just taken: the owner before may have gone
        before it could say so. Raises `Unavailable`.
        """
        if not job_ids:
            return
        async with self._database.read() as connection:
            found = await executor_jobs.stopped(connection, job_ids, connection.now() - LEFT)
            await self._stop(connection, found)

    async def _stop(self, connection: Connection, found: Iterable[JobAttempt]) -> None:
        ended = [one for one in found if one.address is not None and _ended_by_others(one)]
        of = {job.id: job for job in await jobs.of_ids(connection, [one.job_id for one in ended])}
        for one in ended:
            if (job := of.get(one.job_id)) is not None:
                task = asyncio.create_task(self._cancel(job, one), name=f"stop of job {one.job_id}")
                self._calling.add(task)
                task.add_done_callback(self._calling.discard)

    async def _cancel(self, job: JobRow, attempt: JobAttempt) -> None:
        error = attempt.error if isinstance(attempt.error, dict) else {}
        reason = job.cancel_reason or str(error.get("message") or "the attempt is over")
        await call_spans.cancel(self._client, job, str(attempt.address), attempt.history_id, reason)

    async def close(self) -> None:
        """Calls no more."""
        for task in list(self._calling):
            task.cancel()
        await asyncio.gather(*self._calling, return_exceptions=True)


def _ended_by_others(attempt: JobAttempt) -> bool:
    """Whether its executor may still run it: its own report of an end is no reason to stop it."""
    if attempt.state == CANCELLED:
        return attempt.started_at is None
    return attempt.state in (TIMED_OUT, LOST)
