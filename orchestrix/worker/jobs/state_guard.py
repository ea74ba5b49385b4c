"""Job state guard: checks that the database still expects the work of a dispatch, before any of it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX
from orchestrix.domain.jobs import RUNNING, JobAttempt, JobRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.worker.jobs.dispatch import JobDispatch

SILENCE_SHARE: Final = 0.8
"""A worker without a heartbeat for this share of the silence limit has lost its attempt: decided here before the leader
ends it as a failure of that worker."""


@dataclass(frozen=True, slots=True)
class ReceivedDispatch:
    """A dispatch, and how it arrived."""

    dispatch: JobDispatch
    delivery: Delivery

    @property
    def queue(self) -> str:
        """The job queue by which it arrived."""
        return self.delivery.queue.removeprefix(DISPATCH_QUEUE_PREFIX)


@dataclass(frozen=True, slots=True)
class CurrentDispatch:
    """The database expects this work: `dispatch` as stored, and why it must stop at once, if it must."""

    dispatch: JobDispatch
    cancelled: str | None = None


@dataclass(frozen=True, slots=True)
class StaleDispatch:
    """The attempt is over, or another worker runs it: nothing is to be done."""


@dataclass(frozen=True, slots=True)
class DispatchRunsElsewhere:
    """Another worker, whose last heartbeat was at `beat_at`, has started it, yet the broker redelivers the dispatch.

    A requeue by a full worker, or a lost connection, does not prove a crash: only the next heartbeats do.
    """

    beat_at: datetime


@dataclass(frozen=True, slots=True)
class UnknownDispatch:
    """The database has no such job or attempt; perhaps a commit is not visible yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class InvalidDispatch:
    """The dispatch differs from the database: forged or garbled."""

    reason: str


DispatchVerdict: TypeAlias = CurrentDispatch | StaleDispatch | DispatchRunsElsewhere | UnknownDispatch | InvalidDispatch
StateLookup: TypeAlias = Callable[[Sequence[ReceivedDispatch]], Awaitable[list[DispatchVerdict]]]
"""One verdict for each, in order. Raises `RetryableError` where the database is unavailable; also for an empty
sequence."""


def judge(
    asked: ReceivedDispatch,
    job: JobRow | None,
    attempts: Mapping[str, JobAttempt],
    worker_id: str,
    alive_since: datetime,
) -> DispatchVerdict:
    """The verdict on a dispatch by its job's row, and by `attempts`, keyed by their names.

    Another worker with a heartbeat after `alive_since` lives.
    """
    dispatch = asked.dispatch
    if job is None:
        return UnknownDispatch("unknown-job")
    if dispatch.history_id != job.history_id:
        earlier = attempts.get(dispatch.history_id)
        return (
            StaleDispatch() if earlier is not None and earlier.job_id == job.id else UnknownDispatch("unknown-attempt")
        )
    wrong = _difference(asked, job)
    if wrong is not None:
        return InvalidDispatch(wrong)
    if not job.live:
        return StaleDispatch()
    if job.state == RUNNING and job.worker_id not in (None, worker_id):
        if not asked.delivery.redelivered:
            return StaleDispatch()
        if job.worker_beat_at is not None and job.worker_beat_at > alive_since:
            return DispatchRunsElsewhere(job.worker_beat_at)
    owed = replace(dispatch, payload=job.payload, timeout_ms=job.timeout_ms, correlation_id=job.correlation_id)
    return CurrentDispatch(owed, job.cancel_reason)


def _difference(asked: ReceivedDispatch, job: JobRow) -> str | None:
    """Which field differs from the job's. The payload is never trusted: it is taken from the row."""
    pairs = {
        "handler": (asked.dispatch.handler, job.handler),
        "attempt": (asked.dispatch.attempt, job.attempt),
        "queue": (asked.queue, job.queue),
    }
    wrong = next((name for name, (dispatched, is_so) in pairs.items() if dispatched != is_so), None)
    return None if wrong is None else f"{wrong}: does not belong to job {job.id}"


class JobStateGuard:
    """Reads the rows of many dispatches with one select on the primary, and one more where attempts differ.

    A worker is lost after `silent` seconds without a heartbeat.
    """

    def __init__(self, database: Database, worker_id: str, silent: float = 30.0) -> None:
        self._database = database
        self.worker_id = worker_id
        self._silent = timedelta(seconds=SILENCE_SHARE * silent)

    async def check(self, asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        """One verdict for each, in order. Raises `RetryableError`; also for none, where the database is unavailable."""
        if not asked:
            await self._database.ping()
            return []
        async with self._database.read() as connection:
            found = await jobs.of_ids(connection, [one.dispatch.job_id for one in asked], whole=True)
            rows = {job.id: job for job in found}
            names = [one.dispatch.history_id for one in asked if _is_unknown(one.dispatch, rows)]
            attempts = await jobs.histories(connection, names)
            since = connection.now() - self._silent
        return [judge(one, rows.get(one.dispatch.job_id), attempts, self.worker_id, since) for one in asked]


def _is_unknown(dispatch: JobDispatch, rows: Mapping[str, JobRow]) -> bool:
    job = rows.get(dispatch.job_id)
    return job is not None and job.history_id != dispatch.history_id
