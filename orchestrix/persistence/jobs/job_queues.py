"""Job queues: the queues of workers, and who serves them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, func, or_, select

from orchestrix.domain.job_diagnosis import DiagnosisContext, QueueWorkers, SilenceLimits
from orchestrix.domain.jobs import DISPATCHED, FAILED, LIVE, OWNED, RUNNING, TIMED_OUT, JobRow
from orchestrix.domain.stored_times import age_s
from orchestrix.persistence.cluster import leases, nodes
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import group_executors, job_predicates
from orchestrix.persistence.schema.column_types import UtcTime
from orchestrix.persistence.tables import jobs, outbox, workers

RECENT_DISPATCH_S: Final = 15.0
"""Seconds, longer than between two checks for lost dispatches with the default limit."""


NO_QUEUE: Final = ""
"""In place of the queue of a job for a group of executors: no worker serves it."""
_NO_WORKERS: Final = QueueWorkers()


class FailedJob(NamedTuple):
    """A job that has failed for good, or timed out. One for a `group` of executors has no queue."""

    queue: str | None
    handler: str
    state: str
    at: datetime
    error: Mapping[str, Any] | None
    group: str | None = None

    @property
    def target(self) -> tuple[str, str]:
        """The kind and the name of what it was for."""
        return ("group", self.group) if self.group is not None else ("queue", self.queue or "")


async def queue_workers(connection: Connection, queues: Iterable[str], limit: float) -> dict[str, QueueWorkers]:
    """Who serves each of these queues. A worker is lost `limit` seconds after its last heartbeat, silent after half."""
    wanted = set(queues)
    if not wanted:
        return {}
    shown = workers.c.id, workers.c.queues, workers.c.beat_at, workers.c.command_queues
    found = list(await connection.execute(select(*shown).where(*nodes.heard(connection, 2 * limit))))
    now, silent, heartbeats = connection.now(), limit / 2, defaultdict[str, list[float]](list)
    for _, served, at, _ in found:
        for queue in wanted.intersection(served):
            heartbeats[queue].append(age_s(at, now))
    ending = [id for id, served, at, commands in found if not served and not commands and age_s(at, now) < silent]
    stopping = await _at_jobs(connection, wanted, ending)
    return {queue: _queue_workers(heartbeats[queue], silent, stopping[queue]) for queue in wanted}


async def _at_jobs(connection: Connection, queues: Iterable[str], ids: Sequence[str]) -> Counter[str]:
    """How many of these workers run jobs of each queue."""
    if not ids:
        return Counter()
    query = select(jobs.c.queue, jobs.c.worker_id).where(jobs.c.state == RUNNING, jobs.c.worker_id.in_(ids)).distinct()
    return Counter([row.queue for row in await connection.execute(query.where(jobs.c.queue.in_(sorted(queues))))])


def _queue_workers(heartbeats: Sequence[float], silent: float, stopping: int) -> QueueWorkers:
    """The workers of a queue, whose last heartbeats were so many seconds ago."""
    heard = [seconds for seconds in heartbeats if seconds < silent]
    return QueueWorkers(len(heard), len(heartbeats) - len(heard), min(heard, default=0.0), stopping)


async def diagnosis_context(
    connection: Connection, found: Iterable[JobRow], limits: SilenceLimits, empty: Collection[str] = ()
) -> dict[str, DiagnosisContext]:
    """The facts by which `why` explains these jobs, by their ids.

    `empty` are the queues of workers that are known to hold no dispatch.
    """
    waiting = list(found)
    if not waiting:
        return {}
    since = await _led_since(connection)
    workers = await queue_workers(connection, {job.queue for job in waiting if job.queue is not None}, limits.workers)
    executors = await group_executors.of_groups(
        connection, {job.executor_group for job in waiting if job.executor_group is not None}
    )
    listening = set((await connection.execute(job_predicates.listening(connection, limits.workers / 2))).scalars())
    return {
        job.id: DiagnosisContext(
            workers.get(job.queue or NO_QUEUE, _NO_WORKERS),
            limits.of(job),
            since,
            is_read=job.ownership == OWNED and job.owner in listening,
            is_empty=job.queue in empty,
            executors=executors.get(job.executor_group or ""),
        )
        for job in waiting
    }


async def served(connection: Connection, queues: Iterable[str], limit: float) -> dict[str, DiagnosisContext]:
    """The facts by which `doctor` explains why dispatches to these queues are not begun; `limit` as in
    `queue_workers`.
    """
    since = await _led_since(connection)
    return {
        queue: DiagnosisContext(workers, limit, since)
        for queue, workers in (await queue_workers(connection, queues, limit)).items()
    }


async def _led_since(connection: Connection) -> datetime | None:
    """Since when there is a leader; None without one."""
    lease = await leases.read(connection)
    return None if lease is None or lease.lapsed else lease.gained_at


async def named(connection: Connection) -> set[str]:
    """The queues that known workers serve, or to which jobs were dispatched that have not ended."""
    served = await connection.execute(select(workers.c.queues))
    live = jobs.c.state.in_(LIVE), jobs.c.queue.is_not(None)
    wanted = await connection.execute(select(jobs.c.queue).where(*live).distinct())
    return {queue for (queues,) in served for queue in queues} | set(wanted.scalars())


async def not_started_counts(connection: Connection) -> dict[str, int]:
    """How many dispatched jobs of each queue no worker has begun."""
    query = select(jobs.c.queue, func.count())
    query = query.where(jobs.c.state == DISPATCHED, jobs.c.queue.is_not(None)).group_by(jobs.c.queue)
    return {str(queue): int(count) for queue, count in await connection.execute(query)}


async def failed(connection: Connection, seconds: float, limit: int) -> list[FailedJob]:
    """The last `limit` jobs that have failed for good within so many seconds, the newest end first."""
    table = jobs.c
    query = select(table.queue, table.handler, table.state, table.finished_at, table.error, table.executor_group)
    query = query.where(
        table.finished_at >= job_predicates.ago(connection, seconds),
        table.state.in_([FAILED, TIMED_OUT]),
        table.parent_id.is_(None),  # a broadcast names its shards that have failed
    )
    rows = await connection.execute(query.order_by(table.finished_at.desc(), table.id.desc()).limit(limit))
    return [FailedJob(*row) for row in rows]


async def last_dispatched_at(connection: Connection, queues: Iterable[str], seconds: float) -> dict[str, datetime]:
    """When the last one was dispatched of those jobs of each queue that were begun so many seconds ago, and run or
    ended not long before: what was dispatched earlier has left the queue too.
    """
    wanted, long_ago = sorted(set(queues)), job_predicates.ago(connection, seconds)
    if not wanted:
        return {}
    recent = jobs.c.finished_at.between(job_predicates.ago(connection, seconds + RECENT_DISPATCH_S), long_ago)
    running = and_(jobs.c.state == RUNNING, jobs.c.channels == 1)
    found = dict[str, datetime]()
    for which in (running, recent):
        query = select(jobs.c.queue, func.max(jobs.c.dispatched_at, type_=UtcTime()))
        query = query.where(which, jobs.c.started_at <= long_ago, connection.dialect.among(jobs.c.queue, wanted))
        for queue, at in await connection.execute(query.group_by(jobs.c.queue)):
            found[queue] = max(at, found.get(queue, at))
    return found


async def lost_dispatches(
    tx: Transaction,
    empty: Collection[str],
    last_dispatched: Mapping[str, datetime],
    seconds: float,
    heard: float,
    limit: int,
) -> list[str]:
    """Locks up to `limit` lost dispatches, and returns their ids: those sent so many seconds ago to queues that are
    `empty`, or before the moment of their queue in `last_dispatched`, that the broker has confirmed, and no worker
    has started or sent a heartbeat for. `heard` is as in `job_predicates.read`: of other jobs it is not known whether
    they have started.
    """
    waiting = select(outbox.c.id).where(outbox.c.id == jobs.c.history_id).exists()
    long_ago = job_predicates.ago(tx, seconds)
    behind = [and_(jobs.c.queue == queue, jobs.c.dispatched_at < at) for queue, at in sorted(last_dispatched.items())]
    query = select(jobs.c.id).where(
        jobs.c.state == DISPATCHED,
        or_(tx.dialect.among(jobs.c.queue, sorted(empty)), *behind) if empty else or_(*behind),
        jobs.c.dispatched_at <= long_ago,
        or_(jobs.c.worker_beat_at.is_(None), jobs.c.worker_beat_at <= long_ago),
        *job_predicates.read(tx, seconds, heard),
        ~waiting,
    )
    query = query.order_by(jobs.c.dispatched_at, jobs.c.id).limit(limit)
    return list((await tx.execute(query.with_for_update(skip_locked=True))).scalars())
