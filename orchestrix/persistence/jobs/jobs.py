"""Job store: jobs and their attempts, written and read in batches; the specification's `IJobOwnershipStore`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, func, null, or_, select, update
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.jobs import DISPATCHED, FINAL, PENDING, JobAttempt, JobRow
from orchestrix.errors import ConflictError
from orchestrix.persistence.dialects import BulkInsert, BulkUpdate
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import job_predicates
from orchestrix.persistence.jobs.job_filter import JobFilter, conditions
from orchestrix.persistence.schema.column_types import UtcTime
from orchestrix.persistence.tables import job_attempts, jobs, nodes

__all__ = [
    "JobFilter",
    "OwnedJobRow",
    "attempts",
    "balance",
    "by_histories",
    "cleared",
    "dispatched_before_reset",
    "get",
    "histories",
    "insert",
    "loads",
    "lock",
    "lock_with_parents",
    "next_due",
    "occupied",
    "of_ids",
    "oldest",
    "orphans",
    "owned_by",
    "page",
    "parents",
    "payloads",
    "silent",
    "store",
    "timed_out",
    "unowned",
]

_FIELDS: Final = tuple(field.name for field in fields(JobRow))
_ORDER: Final = ("id", "queue", "executor_group", "handler", "payload", "routing", "retries", "timeout_ms")
_ROUTED: Final = ("routing_key", "routing_address", "broadcast_end", "parent_id", "shard_index", "shard_total")
_TIMES: Final = ("deadline_ms",)
_ORIGIN: Final = ("created_by", "correlation_id", "created_at", "schedule_id", "due_at", "saga", "instance_id", "step")
_TRACE: Final = ("traceparent", "tracestate")
_FIXED: Final = frozenset(_ORDER + _ROUTED + _TIMES + _ORIGIN + _TRACE)
_MOVING: Final = tuple(name for name in _FIELDS if name not in _FIXED)
_INSERT: Final = BulkInsert(jobs, _FIELDS, key=("id",))
_UPDATE: Final = BulkUpdate(jobs, match=("id", "version"), change=_MOVING)
_ATTEMPT: Final = tuple(field.name for field in fields(JobAttempt))
_NEW_ATTEMPT: Final = BulkInsert(job_attempts, _ATTEMPT, key=("history_id",))
_values: Final = attrgetter(*_FIELDS)
_moved: Final = attrgetter(*_MOVING)
_attempt_values: Final = attrgetter(*_ATTEMPT)


@dataclass(frozen=True, slots=True)
class OwnedJobRow:
    """A job that a node owns: the columns that reading its queues needs."""

    id: str
    owner_epoch: int
    ownership: str | None
    ended: bool
    finished_at: datetime | None
    for_group: bool = False
    """Whether executors run it, so that it has no queues before its first report."""


After = tuple[datetime, str]


async def insert(tx: Transaction, new: Sequence[JobRow]) -> set[str]:
    """Inserts new jobs; the ids of those that are there now.

    One is left out whose id is taken, or that came of its schedule for the same time before.
    """
    if not new:
        return set()
    await tx.dialect.insert_absent(tx, _INSERT, [_values(job) for job in sorted(new, key=lambda job: job.id)])
    query = select(jobs.c.id).where(tx.dialect.among(jobs.c.id, sorted(job.id for job in new)))
    return set((await tx.execute(query)).scalars())


async def get(connection: Connection, id: str) -> JobRow | None:
    """One job."""
    found = await _jobs(connection, _select().where(jobs.c.id == id))
    job = found[0] if found else None
    if job is None or job.parent_id is None:
        return job
    # A child is stored without the payload of its broadcast, which can be long.
    return replace(job, payload=(await payloads(connection, [job.parent_id])).get(job.parent_id))


async def of_ids(connection: Connection, ids: Iterable[str], *, whole: bool = False) -> list[JobRow]:
    """The jobs of these ids; without their payloads unless they are wanted."""
    wanted = sorted(set(ids))
    if not wanted:
        return []
    return await _jobs(connection, _select(whole).where(connection.dialect.among(jobs.c.id, wanted)))


async def payloads(connection: Connection, ids: Iterable[str]) -> dict[str, Any]:
    """The payloads of these jobs."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    query = select(jobs.c.id, jobs.c.payload).where(connection.dialect.among(jobs.c.id, wanted))
    return {row[0]: row[1] for row in await connection.execute(query)}


async def attempts(connection: Connection, job_id: str) -> list[JobAttempt]:
    """The attempts of a job, the first one first."""
    table = job_attempts.c
    query = select(*(table[name] for name in _ATTEMPT)).where(table.job_id == job_id).order_by(table.attempt)
    return [JobAttempt(*row) for row in await connection.execute(query)]


async def histories(connection: Connection, history_ids: Iterable[str]) -> dict[str, JobAttempt]:
    """The attempts with these history ids."""
    wanted = sorted(set(history_ids))
    if not wanted:
        return {}
    query = _select_attempts().where(connection.dialect.among(job_attempts.c.history_id, wanted))
    return {row[0]: JobAttempt(*row) for row in await connection.execute(query)}


async def page(connection: Connection, filters: JobFilter, limit: int, after: After | None = None) -> list[JobRow]:
    """Up to `limit` jobs that fit, the newest first; `after` is `created_at` and `id` of the last one seen."""
    table = jobs.c
    query = _select(whole=False).where(*conditions(filters))
    if after is not None:
        at, id = after
        query = query.where(table.created_at <= at, or_(table.created_at < at, table.id < id))
    return await _jobs(connection, query.order_by(table.created_at.desc(), table.id.desc()).limit(limit))


async def lock(tx: Transaction, ids: Iterable[str]) -> dict[str, JobRow]:
    """Locks and reads jobs, without their payloads; waits for others up to the limit, then raises `Contention`."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    query = _select(whole=False).where(tx.dialect.among(jobs.c.id, wanted)).order_by(jobs.c.id)
    return {job.id: job for job in await _jobs(tx, query.with_for_update())}


async def lock_with_parents(tx: Transaction, ids: Iterable[str]) -> dict[str, JobRow]:
    """`lock` for jobs that may end: the broadcasts whose children they are, are locked in the same statement."""
    wanted = set(ids)
    locked = await lock(tx, wanted | await parents(tx, wanted))
    return {id: job for id, job in locked.items() if id in wanted}


async def parents(connection: Connection, ids: Iterable[str]) -> set[str]:
    """The broadcasts whose children are among these jobs, which never changes."""
    wanted = sorted(set(ids))
    if not wanted:
        return set()
    among = connection.dialect.among(jobs.c.id, wanted)
    query = select(jobs.c.parent_id).where(among, jobs.c.parent_id.is_not(None)).distinct()
    return set((await connection.execute(query)).scalars())


async def store(tx: Transaction, changed: Sequence[tuple[int, JobRow]], tried: Iterable[JobAttempt] = ()) -> None:
    """Compare-and-set of (version before, job from now on), and the attempts that changed with them.

    Raises `ConflictError` if a job is not at its version any more.
    """
    rows = [(job.id, before, *_moved(job)) for before, job in sorted(changed, key=lambda one: one[1].id)]
    if rows and len(await tx.dialect.update(tx, _UPDATE, rows)) != len(rows):
        raise ConflictError("concurrent update of a job")
    await _put(tx, {attempt.history_id: attempt for attempt in tried})


async def oldest(tx: Transaction, which: Sequence[ColumnElement[bool]], limit: int) -> list[JobRow]:
    """Locks and reads up to `limit` whole jobs for which all conditions hold, the longest due first."""
    return await _jobs(tx, _first(_select().where(*which), jobs.c.wake_at, limit))


async def next_due(connection: Connection) -> float | None:
    """Seconds until the next job is due by the database's clock, negative if it is; None without any."""
    clock = connection.dialect.clock(connection.now())
    query = select(func.min(jobs.c.wake_at, type_=UtcTime()), clock).where(jobs.c.state == PENDING)
    earliest, now = (await connection.execute(query)).one()
    return (earliest - now).total_seconds() if earliest is not None else None


async def occupied(connection: Connection) -> int:
    """How many jobs may have queues at the broker."""
    query = select(func.count()).select_from(jobs).where(jobs.c.channels == 1)
    return int((await connection.execute(query)).scalar_one())


async def timed_out(tx: Transaction, limit: int, heard: float) -> list[JobRow]:
    """Locks and reads up to `limit` jobs whose timeout has passed; `heard` as in `job_predicates.timed_out`."""
    return await _found(tx, job_predicates.timed_out(tx, heard), jobs.c.wake_at, limit)


async def silent(tx: Transaction, seconds: float, limit: int, heard: float) -> list[JobRow]:
    """Locks and reads up to `limit` jobs whose worker is silent; `seconds` and `heard` as in
    `job_predicates.silent`.
    """
    return await _found(tx, job_predicates.silent(tx, seconds, heard), jobs.c.worker_beat_at, limit)


async def dispatched_before_reset(tx: Transaction, limit: int) -> list[JobRow]:
    """Locks and reads up to `limit` jobs that were dispatched by a broker that has lost its data since."""
    return await _found(tx, job_predicates.dispatched_before_reset(), jobs.c.dispatched_at, limit)


async def unowned(tx: Transaction, seconds: float, limit: int) -> list[JobRow]:
    """Locks and reads up to `limit` jobs without an owner that were not offered for so many seconds."""
    return await _found(tx, job_predicates.unowned(tx, seconds), jobs.c.dispatched_at, limit)


async def orphans(tx: Transaction, seconds: float, limit: int) -> list[JobRow]:
    """Locks and reads up to `limit` orphaned jobs that were not offered for so many seconds."""
    return await _found(tx, job_predicates.orphans(tx, seconds), jobs.c.dispatched_at, limit)


async def cleared(
    connection: Connection, after: tuple[datetime, str], seconds: float, limit: int
) -> list[tuple[datetime, str]]:
    """When they ended, and the ids, of up to `limit` jobs whose queues were deleted, the first to end first.

    `after` is the last one seen; they have ended so many seconds ago at least. Not those for which no executor was ever
    called: they had no queues.
    """
    table, (at, id) = jobs.c, after
    tried = job_attempts.c.job_id == table.id, job_attempts.c.address.is_not(None)
    called = select(job_attempts.c.history_id).where(*tried).exists()
    behind = or_(table.finished_at > at, and_(table.finished_at == at, table.id > id))
    query = select(table.finished_at, table.id).where(
        table.finished_at >= at,
        behind,
        table.finished_at <= job_predicates.ago(connection, seconds),
        table.channels == 0,
        or_(table.queue.is_not(None), called),
    )
    found = await connection.execute(query.order_by(table.finished_at, table.id).limit(limit))
    return [(row[0], row[1]) for row in found]


async def owned_by(connection: Connection, node: str) -> list[OwnedJobRow]:
    """What a node owns, by id."""
    table = jobs.c
    query = select(table.id, table.owner_epoch, table.ownership, table.state, table.finished_at, table.queue)
    found = await connection.execute(query.where(table.channels == 1, table.owner == node))
    rows = sorted(found, key=lambda row: row.id)
    return [
        OwnedJobRow(id, epoch, ownership, state in FINAL, at, queue is None)
        for id, epoch, ownership, state, at, queue in rows
    ]


async def loads(connection: Connection) -> dict[str, int]:
    """How many jobs each node owns that owns any."""
    table = jobs.c
    query = select(table.owner, func.count()).where(table.channels == 1, table.owner.is_not(None))
    return {str(node): int(count) for node, count in await connection.execute(query.group_by(table.owner))}


async def balance(connection: Connection) -> dict[str, int]:
    """How many jobs each coordinator that takes jobs owns; those without any too."""
    table = nodes.c
    query = select(table.id, table.roles).where(table.state == "ALIVE")
    takers = {row.id: 0 for row in await connection.execute(query) if "coordinator" in row.roles.split(",")}
    owned = await loads(connection)
    return {node: owned.get(node, 0) for node in takers}


async def by_histories(connection: Connection, history_ids: Iterable[str]) -> dict[str, JobRow]:
    """The jobs whose present or last attempts have these history ids, by them, without payloads."""
    wanted = sorted(set(history_ids))
    if not wanted:
        return {}
    query = _select(whole=False).where(connection.dialect.among(jobs.c.history_id, wanted))
    return {str(job.history_id): job for job in await _jobs(connection, query)}


async def _put(tx: Transaction, tried: dict[str, JobAttempt]) -> None:
    """Writes attempts, whether they are there already or not."""
    new = [one for one in tried.values() if one.state == DISPATCHED]
    if new:
        rows = [_attempt_values(one) for one in sorted(new, key=lambda one: one.history_id)]
        await tx.dialect.insert_absent(tx, _NEW_ATTEMPT, rows)
    old = sorted((one for one in tried.values() if one.state != DISPATCHED), key=lambda one: one.history_id)
    if old:
        await tx.execute(_attempt_update(), [{f"new_{name}": getattr(one, name) for name in _ATTEMPT} for one in old])


@cache
def _attempt_update() -> Any:
    change = update(job_attempts).where(job_attempts.c.history_id == bindparam("new_history_id"))
    changing = [name for name in _ATTEMPT if name not in ("history_id", "job_id", "attempt", "dispatched_at")]
    return change.values({name: bindparam(f"new_{name}") for name in changing})


async def _found(tx: Transaction, terms: job_predicates.Terms, by: ColumnElement[Any], limit: int) -> list[JobRow]:
    return await _jobs(tx, _first(_select(whole=False).where(*terms), by, limit))


def _first(query: Select[Any], by: ColumnElement[Any], limit: int) -> Select[Any]:
    """The first ones by that column that no other transaction has locked. By the key alone, SQLite would walk all of
    it.
    """
    return query.order_by(by, jobs.c.id).limit(limit).with_for_update(skip_locked=True)


@cache
def _select_attempts() -> Select[Any]:
    """The columns of `JobAttempt` in its own order."""
    return select(*(job_attempts.c[name] for name in _ATTEMPT))


@cache
def _select(whole: bool = True) -> Select[Any]:
    """The columns of `JobRow` in its own order; without the payload, which can be long, unless it is asked for."""
    return select(*(jobs.c[name] if whole or name != "payload" else null().label(name) for name in _FIELDS))


async def _jobs(connection: Connection, query: Select[Any]) -> list[JobRow]:
    return [JobRow(**row._mapping) for row in await connection.execute(query)]
