"""Job admission: which jobs are due, in turn from each queue, and how many slots are taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Select, func, or_, select, union_all
from sqlalchemy.sql import ColumnElement

from orchestrix import clock
from orchestrix.domain.dispatch_capacity import DispatchCapacity, OpenJobs, fair, group_of, target_of
from orchestrix.domain.jobs import DISPATCHED, PENDING, STATES, JobRow
from orchestrix.domain.registry.routing import Strategy
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
    heartbeat within half of `silent` seconds; a group of executors counts as a queue that is always served.
    """
    ready = jobs.c.state == PENDING, jobs.c.wake_at <= tx.dialect.clock(tx.now())
    found = await rows.oldest(tx, [*ready, jobs.c.channels == 1], max(1, limit // 2))
    names = await waiting(tx)
    if not names or len(found) >= limit:
        return found
    served = await _served(tx, silent)
    served |= {name for name in names if group_of(name) is not None}
    queues = _turn(names, served)
    held = await open_jobs(tx)
    served |= {name for name in held if group_of(name) is not None}
    room = DispatchCapacity.of(queues, held, served, open_limit)
    first = await _first(tx, [(queue, min(room.queues[queue], limit)) for queue in queues])
    chosen = fair(first, room, served, limit - len(found))
    return found + (
        await rows.oldest(tx, [*ready, tx.dialect.among(jobs.c.id, sorted(chosen))], limit) if chosen else []
    )


async def waiting(connection: Connection) -> list[str]:
    """The targets of jobs that have never been sent, by name; each is found by one step in the index.

    A target is a queue, or a group of executors after `GROUP_PREFIX`.
    """
    queues = await _waiting(connection, jobs.c.queue)
    return queues + [target_of(None, name) for name in await _waiting(connection, jobs.c.executor_group)]


async def _waiting(connection: Connection, column: ColumnElement[Any]) -> list[str]:
    fresh = jobs.c.state == PENDING, jobs.c.channels == 0
    names = select(func.min(column).label("name")).where(*fresh).cte("names", recursive=True)
    following = select(func.min(column)).where(*fresh, column > names.c.name).scalar_subquery()
    names = names.union_all(select(following).where(names.c.name.is_not(None)))
    found = await connection.execute(select(names.c.name).where(names.c.name.is_not(None)))
    return [str(name) for name in found.scalars()]


async def open_jobs(connection: Connection) -> dict[str, OpenJobs]:
    """How many jobs of each target may have queues at the broker."""
    # All states are named: else SQLite walks a whole index.
    which = jobs.c.channels == 1, jobs.c.state.in_(STATES)
    by = jobs.c.queue, jobs.c.executor_group, jobs.c.state
    query = select(*by, func.count()).where(*which)
    not_started, others = defaultdict[str, int](int), defaultdict[str, int](int)
    for queue, group, state, count in await connection.execute(query.group_by(*by)):
        (not_started if state == DISPATCHED else others)[target_of(queue, group)] += int(count)
    return {queue: OpenJobs(not_started[queue], others[queue]) for queue in {*not_started, *others}}


async def slots_taken(connection: Connection, open_limit: int, silent: float) -> int:
    """How many slots are taken; `silent` as in `due`."""
    held = await open_jobs(connection)
    served = await _served(connection, silent) | {name for name in held if group_of(name) is not None}
    return open_limit - DispatchCapacity.of((), held, served, open_limit).served


async def _served(connection: Connection, silent: float) -> set[str]:
    return await blocked_job_steps.served(connection, timedelta(seconds=silent / 2))


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
        query = select(whole.c.queue, whole.c.executor_group, whole.c.id).order_by(whole.c.wake_at, whole.c.id)
        for queue, group, id in await tx.execute(query):
            found[target_of(queue, group)].append(id)
    return found


def _due_of(tx: Transaction, target: str, count: int) -> Select[Any]:
    table, group = jobs.c, group_of(target)
    query = select(table.id, table.queue, table.executor_group, table.wake_at).where(
        table.state == PENDING,
        table.channels == 0,
        table.queue == target if group is None else table.executor_group == group,
        table.wake_at <= tx.dialect.clock(tx.now()),
        # A broadcast takes no slot: it is fired, and its children are dispatched.
        or_(table.routing.is_(None), table.routing != Strategy.SHARDING_BROADCAST),
    )
    return query.order_by(table.wake_at, table.id).limit(count)
