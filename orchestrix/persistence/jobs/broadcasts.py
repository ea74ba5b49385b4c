"""Broadcast rows: broadcasts that are due, their children, and how many of those have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Select, func, or_, select

from orchestrix.domain.job_broadcasts import ALL, ANY, ChildEnd, ChildTally
from orchestrix.domain.jobs import FINAL, LIVE, PENDING, RUNNING, SUCCEEDED, JobRow
from orchestrix.errors import Contention
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import jobs as rows
from orchestrix.persistence.tables import jobs

_BROADCAST: Final = jobs.c.broadcast_end.in_((ALL, ANY))
"""An index has the broadcasts alone."""
_UNENDED: Final = (PENDING, *LIVE)


async def next_due(tx: Transaction, most: int) -> JobRow | None:
    """Locks and reads the broadcast that has been due for the longest time, of a group of which fewer than `most`
    children have not ended.
    """
    full = await _full_groups(tx, most)
    room = [jobs.c.executor_group.not_in(full)] if full else []
    found = await rows.oldest(tx, [*_due(tx), *room], 1)
    return found[0] if found else None


async def any_due(connection: Connection) -> bool:
    """Whether a broadcast is due."""
    query = select(jobs.c.id).where(*_due(connection)).limit(1)
    return (await connection.execute(query)).first() is not None


def _due(connection: Connection) -> list[ColumnElement[bool]]:
    now = connection.dialect.clock(connection.now())
    return [_BROADCAST, jobs.c.state == PENDING, jobs.c.wake_at <= now]


async def _full_groups(tx: Transaction, most: int) -> list[str]:
    group, left = jobs.c.executor_group, func.sum(jobs.c.children_left)
    query = select(group).where(_BROADCAST, jobs.c.state == RUNNING).group_by(group).having(left >= most)
    return sorted(str(name) for name in (await tx.execute(query)).scalars())


async def child_ids(connection: Connection, parents: Iterable[str]) -> list[str]:
    """The ids of the children of these jobs."""
    wanted = sorted(set(parents))
    if not wanted:
        return []
    query = select(jobs.c.id).where(connection.dialect.among(jobs.c.parent_id, wanted)).order_by(jobs.c.id)
    return list((await connection.execute(query)).scalars())


async def lock_family(tx: Transaction, parent: str) -> tuple[JobRow | None, list[JobRow]]:
    """Locks a broadcast and its children in one statement; the children by their index.

    Raises `Contention` where it was fired between the look for its children and the lock.
    """
    found = await rows.lock(tx, [parent, *await child_ids(tx, [parent])])
    job = found.pop(parent, None)
    if job is not None and job.has_children and len(found) != job.children_total:
        raise Contention("the job has just been fired")
    return job, sorted(found.values(), key=lambda one: one.shard_index or 0)


async def try_lock(tx: Transaction, ids: Iterable[str]) -> dict[str, JobRow]:
    """Locks and reads those of these jobs that no other transaction has locked: it waits for none."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    query = select(jobs.c.id).where(tx.dialect.among(jobs.c.id, wanted)).order_by(jobs.c.id)
    free = list((await tx.execute(query.with_for_update(skip_locked=True))).scalars())
    return {job.id: job for job in await rows.of_ids(tx, free)}


async def with_free_parents(tx: Transaction, found: Sequence[JobRow]) -> list[JobRow]:
    """Those of these locked jobs whose broadcasts could be locked too; the others are found again soon.

    For whoever has locked jobs in another order than that of their ids: waiting for a broadcast could be a deadlock.
    """
    free = await try_lock(tx, {job.parent_id for job in found if job.parent_id is not None})
    return [job for job in found if job.parent_id is None or job.parent_id in free]


async def tallies(connection: Connection, parents: Collection[str]) -> dict[str, ChildTally]:
    """How many children of each of these broadcasts have ended, and how."""
    if not parents:
        return {}
    table, counts = jobs.c, dict[str, dict[str, int]]()
    query = select(table.parent_id, table.state, func.count())
    query = query.where(connection.dialect.among(table.parent_id, sorted(parents)))
    for parent, state, count in await connection.execute(query.group_by(table.parent_id, table.state)):
        counts.setdefault(str(parent), {})[state] = int(count)
    return {id: _tally(found) for id, found in counts.items()}


def _tally(counts: dict[str, int]) -> ChildTally:
    left, succeeded = sum(counts.get(state, 0) for state in _UNENDED), counts.get(SUCCEEDED, 0)
    return ChildTally(left, sum(counts.values()) - left - succeeded, succeeded)


async def ends(connection: Connection, parent: str) -> list[ChildEnd]:
    """The children of a broadcast with their results and errors."""
    table = jobs.c
    query = select(table.shard_index, table.state, table.result, table.error).where(table.parent_id == parent)
    return [ChildEnd(*row) for row in await connection.execute(query.order_by(table.shard_index))]


async def unsettled(connection: Connection, limit: int) -> list[str]:
    """The ids of up to `limit` broadcasts that have reached their deadline or whose children are to be cancelled."""
    due = jobs.c.wake_at <= connection.dialect.clock(connection.now())
    return await _ids(connection, _fired((RUNNING, *FINAL)).where(due).order_by(jobs.c.wake_at, jobs.c.id).limit(limit))


async def miscounted(connection: Connection, limit: int) -> list[str]:
    """The ids of up to `limit` broadcasts that run and have not as many children left as they say."""
    child = jobs.alias("child").c
    left = select(func.count()).where(child.parent_id == jobs.c.id, child.state.in_(_UNENDED)).scalar_subquery()
    wrong: ColumnElement[bool] = or_(jobs.c.children_left != left, jobs.c.children_left == 0)
    return await _ids(connection, _fired((RUNNING,)).where(wrong).order_by(jobs.c.id).limit(limit))


def _fired(states: Sequence[str]) -> Select[tuple[str]]:
    return select(jobs.c.id).where(_BROADCAST, jobs.c.state.in_(states), jobs.c.children_left.is_not(None))


async def _ids(connection: Connection, query: Select[tuple[str]]) -> list[str]:
    return list((await connection.execute(query)).scalars())
