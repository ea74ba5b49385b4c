"""Job guard: looks whether the database owes the work that an order asks for, before any of it is done."""

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
"""A worker that has not beaten for so much of the limit of silence has lost its attempt: known here before the leader
ends it as a failure of that worker."""


@dataclass(frozen=True, slots=True)
class ReceivedDispatch:
    """An order, and how it came."""

    order: JobDispatch
    delivery: Delivery

    @property
    def queue(self) -> str:
        """The queue of workers by which it came."""
        return self.delivery.queue.removeprefix(DISPATCH_QUEUE_PREFIX)


@dataclass(frozen=True, slots=True)
class CurrentDispatch:
    """The database owes this work: `order` as it has it, and why it is to stop at once, if it is."""

    order: JobDispatch
    cancelled: str | None = None


@dataclass(frozen=True, slots=True)
class StaleDispatch:
    """The attempt is over, or another worker is at it: nothing is to be done."""


@dataclass(frozen=True, slots=True)
class DispatchHeldElsewhere:
    """Another worker, last heard at `beat_at`, has begun it, yet the broker gives the order out once more.

    A full worker that gave it back, or a connection that was lost, proves no death: only the next beats tell.
    """

    beat_at: datetime


@dataclass(frozen=True, slots=True)
class UnknownDispatch:
    """Nobody knows that job or that attempt; perhaps a commit is not visible yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class InvalidDispatch:
    """The order is not as the database has it: forged or garbled."""

    reason: str


DispatchVerdict: TypeAlias = CurrentDispatch | StaleDispatch | DispatchHeldElsewhere | UnknownDispatch | InvalidDispatch
StateLookup: TypeAlias = Callable[[Sequence[ReceivedDispatch]], Awaitable[list[DispatchVerdict]]]
"""One verdict for each, in order. Raises `RetryLater` where the database cannot be asked; also without any."""


def judge(
    asked: ReceivedDispatch,
    job: JobRow | None,
    attempts: Mapping[str, JobAttempt],
    worker_id: str,
    alive_since: datetime,
) -> DispatchVerdict:
    """What the rows say about an order: the job that it names, and `attempts` by their names.

    Another worker that has beaten after `alive_since` lives.
    """
    order = asked.order
    if job is None:
        return UnknownDispatch("unknown-job")
    if order.history_id != job.history_id:
        earlier = attempts.get(order.history_id)
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
            return DispatchHeldElsewhere(job.worker_beat_at)
    owed = replace(order, payload=job.payload, timeout_ms=job.timeout_ms, correlation_id=job.correlation_id)
    return CurrentDispatch(owed, job.cancel_reason)


def _difference(asked: ReceivedDispatch, job: JobRow) -> str | None:
    """Which field is not the job's. The payload is never believed: it is taken from the row."""
    pairs = {
        "handler": (asked.order.handler, job.handler),
        "attempt": (asked.order.attempt, job.attempt),
        "queue": (asked.queue, job.queue),
    }
    wrong = next((name for name, (said, is_so) in pairs.items() if said != is_so), None)
    return None if wrong is None else f"{wrong}: is not that of job {job.id}"


class JobStateGuard:
    """Looks at the rows of many orders with one select on the primary, and one more where attempts are strange.

    A worker is lost after `silent` seconds without a beat.
    """

    def __init__(self, database: Database, worker_id: str, silent: float = 30.0) -> None:
        self._database = database
        self.worker_id = worker_id
        self._silent = timedelta(seconds=SILENCE_SHARE * silent)

    async def look(self, asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        """One verdict for each, in order. Raises `RetryLater`; also without any, where the database is away."""
        if not asked:
            await self._database.ping()
            return []
        async with self._database.read() as connection:
            found = await jobs.of_ids(connection, [one.order.job_id for one in asked], whole=True)
            rows = {job.id: job for job in found}
            names = [one.order.history_id for one in asked if _is_strange(one.order, rows)]
            attempts = await jobs.histories(connection, names)
            since = connection.now() - self._silent
        return [judge(one, rows.get(one.order.job_id), attempts, self.worker_id, since) for one in asked]


def _is_strange(order: JobDispatch, rows: Mapping[str, JobRow]) -> bool:
    job = rows.get(order.job_id)
    return job is not None and job.history_id != order.history_id
