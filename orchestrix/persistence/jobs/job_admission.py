"""Job admission: which jobs are due, in turn from each queue, and how many slots are taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Select, func, select, union_all

from orchestrix import clock
from orchestrix.domain.dispatch_capacity import DispatchCapacity, OpenJobs, fair
from orchestrix.domain.jobs import DISPATCHED, PENDING, STATES, JobRow
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import blocked_job_steps
from orchestrix.persistence.jobs import jobs as rows
from orchestrix.persistence.tables import jobs

QUEUES_PER_ROUND: Final = 50
"""So many queues have their turn in one transaction, beginning behind a random one."""
SERVED_QUEUES_PER_ROUND: Final = 40
"""So many of them may be served by workers, and come first: a client can name queues that have no workers."""


async def due(tx: Transaction, limit: int, open_limit: int, silent: float) -> list[JobRow]:
    """Locks and reads up to `limit` jobs that wait for a worker and whose time has come.

    Half of them may have queues already, the longest waiting first; the others come in turn from each queue,
    as `DispatchCapacity` allows while `open_limit` jobs may be open. A queue is served while it has a worker with a
    heartbeat within half of `silent` seconds.
    """
    ready = jobs.c.state == PENDING, jobs.c.wake_at <= tx.dialect.clock(tx.now())
    found = await rows.oldest(tx, [*ready, jobs.c.channels == 1], max(1, limit // 2))
    names = await waiting(tx)
    if not names or len(found) >= limit:
        return found
    served = await blocked_job_steps.served(tx, timedelta(seconds=silent / 2))
    queues = _turn(names, served)
    room = DispatchCapacity.of(queues, await open_jobs(tx), served, open_limit)
    first = await _first(tx, [(queue, min(room.queues[queue], limit)) for queue in queues])
    chosen = fair(first, room, served, limit - len(found))
    return found + (
        await rows.oldest(tx, [*ready, tx.dialect.among(jobs.c.id, sorted(chosen))], limit) if chosen else []
    )


async def waiting(connection: Connection) -> list[str]:
    """The queues of jobs that have never been sent, by name; each is found by one step in the index."""
    fresh = jobs.c.state == PENDING, jobs.c.channels == 0
    names = select(func.min(jobs.c.queue).label("queue")).where(*fresh).cte("names", recursive=True)
    following = select(func.min(jobs.c.queue)).where(*fresh, jobs.c.queue > names.c.queue).scalar_subquery()
    names = names.union_all(select(following).where(names.c.queue.is_not(None)))
    found = await connection.execute(select(names.c.queue).where(names.c.queue.is_not(None)))
    return [str(name) for name in found.scalars()]


async def open_jobs(connection: Connection) -> dict[str, OpenJobs]:
    """How many jobs of each queue have queues at the broker."""
    # All states are named: else SQLite walks a whole index.
    which = jobs.c.channels == 1, jobs.c.state.in_(STATES)
    query = select(jobs.c.queue, jobs.c.state, func.count()).where(*which)
    not_started, others = defaultdict[str, int](int), defaultdict[str, int](int)
    for queue, state, count in await connection.execute(query.group_by(jobs.c.queue, jobs.c.state)):
        (not_started if state == DISPATCHED else others)[queue] += int(count)
    return {queue: OpenJobs(not_started[queue], others[queue]) for queue in {*not_started, *others}}


async def slots_taken(connection: Connection, open_limit: int, silent: float) -> int:
    """How many slots are taken; `silent` as in `due`."""
    served = await blocked_job_steps.served(connection, timedelta(seconds=silent / 2))
    return open_limit - DispatchCapacity.of((), await open_jobs(connection), served, open_limit).served


def _turn(queues: Sequence[str], served: Collection[str]) -> list[str]:
    if len(queues) <= QUEUES_PER_ROUND:
        return list(queues)
    first = _in_random_order([queue for queue in queues if queue in served])[:SERVED_QUEUES_PER_ROUND]
    return first + _in_random_order([queue for queue in queues if queue not in served])[: QUEUES_PER_ROUND - len(first)]


def _in_random_order(queues: Sequence[str]) -> list[str]:
    start = int(clock.uniform(0, len(queues)))
    return [*queues[start:], *queues[:start]]


async def _first(tx: Transaction, wanted: Iterable[tuple[str, int]]) -> dict[str, list[str]]:
    """The ids of the first jobs of each queue, so many of each."""
    parts = [_due_of(tx, queue, count) for queue, count in wanted if count > 0]
    found: dict[str, list[str]] = defaultdict(list)
    if parts:
        whole = union_all(*(select(part.subquery()) for part in parts)).subquery()
        query = select(whole.c.queue, whole.c.id).order_by(whole.c.wake_at, whole.c.id)
        for queue, id in await tx.execute(query):
            found[queue].append(id)
    return found


def _due_of(tx: Transaction, queue: str, count: int) -> Select[Any]:
    table = jobs.c
    query = select(table.id, table.queue, table.wake_at).where(
        table.state == PENDING,
        table.channels == 0,
        table.queue == queue,
        table.wake_at <= tx.dialect.clock(tx.now()),
    )
    return query.order_by(table.wake_at, table.id).limit(count)
