"""Schedule store: the schedules, which of them are due, and which of their runs have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Select, case, delete, func, select, update
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.jobs import DISPATCHED, LIVE, PENDING, RUNNING
from orchestrix.domain.schedules import QUEUED_WAKE_AT, FiringOutcome, Misfire, Overlap, Schedule, UnfinishedRuns, is_id
from orchestrix.errors import ConflictError
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.schema.column_types import UtcTime
from orchestrix.persistence.tables import jobs, schedules

_FIELDS: Final = tuple(field.name for field in fields(Schedule))
_CHANGING: Final = tuple(name for name in _FIELDS if name not in ("id", "created_by", "created_at"))
_SCHEDULE: Final[Select[Any]] = select(*(schedules.c[name] for name in _FIELDS))
_values: Final = attrgetter(*_FIELDS)
_changing: Final = attrgetter(*_CHANGING)
NEWER_NODES_ONLY: Final = "known to newer nodes only: "
"""Stored before the time zone of a schedule whose jobs are for a group. A leader of the former release, which cannot
make these, would fail with all that is due; as it knows no such zone, it passes that schedule over, a minute each time.
"""


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that waits for the end of another one of its schedule."""

    job_id: str
    schedule_id: str


async def insert(tx: Transaction, schedule: Schedule) -> bool:
    """Inserts one; False where its name is taken."""
    return await tx.dialect.insert_one(
        tx, schedules, dict(zip(_FIELDS, _stored(_values(_marked(schedule))), strict=True))
    )


async def get(connection: Connection, key: str) -> Schedule | None:
    """The schedule with that id or that name."""
    found = await _schedules(connection, _SCHEDULE.where(_called(key)))
    return found[0] if found else None


async def lock(tx: Transaction, key: str) -> Schedule | None:
    """`get`, and no other node fires or changes it, or makes runs of it, until the end of the transaction.

    Waits for others up to the limit on locks, then raises `Contention`.
    """
    found = await _schedules(tx, _SCHEDULE.where(_called(key)).with_for_update())
    return found[0] if found else None


async def page(connection: Connection, limit: int, after: str | None = None) -> list[Schedule]:
    """Up to `limit` schedules by name; `after` is the name of the last one seen."""
    behind = [] if after is None else [schedules.c.name > after]
    return await _schedules(connection, _SCHEDULE.where(*behind).order_by(schedules.c.name).limit(limit))


async def due(tx: Transaction, limit: int) -> list[Schedule]:
    """Locks and reads up to `limit` schedules that are due, the longest waiting first."""
    ready = _SCHEDULE.where(schedules.c.next_at <= tx.dialect.clock(tx.now()))
    query = ready.order_by(schedules.c.next_at, schedules.c.id).limit(limit)
    return await _schedules(tx, query.with_for_update(skip_locked=True))


async def later(tx: Transaction, after: str, limit: int) -> list[Schedule]:
    """Locks and reads up to `limit` schedules whose due time is yet to come, by their ids from behind `after`."""
    coming = _SCHEDULE.where(schedules.c.id > after, schedules.c.due_at > tx.dialect.clock(tx.now()))
    query = coming.order_by(schedules.c.id).limit(limit)
    return await _schedules(tx, query.with_for_update(skip_locked=True))


async def made_after(connection: Connection, id: str, at: datetime) -> bool:
    """Whether any job of a schedule was made later than `at`."""
    query = select(jobs.c.id).where(jobs.c.schedule_id == id, jobs.c.created_at > at).limit(1)
    return (await connection.execute(query)).first() is not None


async def next_due(connection: Connection) -> float | None:
    """Seconds until the next schedule is due by the database's clock, negative if it is; None without any."""
    query = select(func.min(schedules.c.next_at, type_=UtcTime()), connection.dialect.clock(connection.now()))
    earliest, now = (await connection.execute(query)).one()
    return (earliest - now).total_seconds() if earliest is not None else None


async def store(tx: Transaction, before: Schedule, after: Schedule) -> None:
    """Compare-and-set of what people changed and of the next due time. Raises `ConflictError` if another change was
    first.
    """
    table = schedules.c
    same = [table.id == before.id, table.version == before.version, _equal(table.due_at, before.due_at)]
    change = (
        update(schedules).where(*same).values(dict(zip(_CHANGING, _stored(_changing(_marked(after))), strict=True)))
    )
    if (await tx.execute(change)).rowcount != 1:
        raise ConflictError("concurrent update of the schedule")


async def remove(tx: Transaction, id: str) -> None:
    """Deletes one; its jobs stay."""
    await tx.execute(delete(schedules).where(schedules.c.id == id))


async def busy(connection: Connection, ids: Sequence[str]) -> dict[str, UnfinishedRuns]:
    """How many runs of each of these schedules have not ended."""
    if not ids:
        return {}
    table = jobs.c
    running, queued = (func.sum(case((which, 1), else_=0)) for which in (table.state == RUNNING, _queued()))
    which = connection.dialect.among(table.schedule_id, sorted(set(ids)))
    query = select(table.schedule_id, func.count(), running, queued).where(which, table.state.in_((PENDING, *LIVE)))
    counts = {str(row[0]): map(int, row[1:]) for row in await connection.execute(query.group_by(table.schedule_id))}
    return {id: _busy(*counts.get(id, (0, 0, 0))) for id in ids}


def _busy(all: int, running: int, queued: int) -> UnfinishedRuns:
    return UnfinishedRuns(running, all - running - queued, queued)


async def unfinished(connection: Connection, ids: Sequence[str]) -> list[str]:
    """The ids of the jobs of these schedules that have not ended."""
    if not ids:
        return []
    whose = connection.dialect.among(jobs.c.schedule_id, ids)
    query = select(jobs.c.id).where(whose, jobs.c.state.in_((PENDING, *LIVE)))
    return list((await connection.execute(query.order_by(jobs.c.id))).scalars())


async def not_started_ids(connection: Connection, id: str) -> list[str]:
    """The ids of the jobs of a schedule that are `not_started_ids`; one that is not locked may be begun at any
    moment.
    """
    table = jobs.c
    first = ((table.state == PENDING) & (table.attempt == 0)) | ((table.state == DISPATCHED) & (table.attempt == 1))
    query = select(table.id).where(table.schedule_id == id, first)
    return list((await connection.execute(query.order_by(table.id))).scalars())


async def known(connection: Connection, id: str, dues: Sequence[datetime]) -> set[datetime]:
    """Those of the due times that a job was made of already."""
    if not dues:
        return set()
    query = select(jobs.c.due_at).where(jobs.c.schedule_id == id, jobs.c.due_at.between(min(dues), max(dues)))
    return set((await connection.execute(query)).scalars()) & set(dues)


async def freed(tx: Transaction, limit: int) -> list[WaitingRun]:
    """For up to `limit` schedules of which no run is running: the one that has waited longest, the schedule locked.

    A schedule that another transaction has locked is left out.
    """
    queued = select(jobs.c.schedule_id).where(jobs.c.state == PENDING, jobs.c.channels == 0, _queued()).distinct()
    ids = [id for id in (await tx.execute(queued)).scalars() if id is not None]
    free = sorted(id for id, found in (await busy(tx, ids)).items() if not (found.running or found.ready))[:limit]
    if not free:
        return []
    mine = select(schedules.c.id).where(tx.dialect.among(schedules.c.id, free)).order_by(schedules.c.id)
    locked = list((await tx.execute(mine.with_for_update(skip_locked=True))).scalars())
    still = await busy(tx, locked)  # another node may have made a run of it before it was locked
    return [
        WaitingRun(first, id)
        for id in locked
        if not (still[id].running or still[id].ready) and (first := await _first(tx, id)) is not None
    ]


async def any_queued(connection: Connection) -> bool:
    """Whether any run waits for the end of another one."""
    queued = select(jobs.c.id).where(jobs.c.state == PENDING, jobs.c.channels == 0, _queued()).limit(1)
    return (await connection.execute(queued)).first() is not None


async def _first(tx: Transaction, id: str) -> str | None:
    table = jobs.c
    query = select(table.id).where(table.schedule_id == id, table.state == PENDING, _queued())
    oldest = func.coalesce(table.due_at, table.created_at)
    return (await tx.execute(query.order_by(oldest, table.id).limit(1))).scalar_one_or_none()


def _queued() -> ColumnElement[bool]:
    return jobs.c.wake_at == QUEUED_WAKE_AT


def _called(key: str) -> ColumnElement[bool]:
    # No name looks like an id, so that a key is the one or the other.
    return schedules.c.id == key.lower() if is_id(key) else schedules.c.name == key


def _equal(column: Any, value: datetime | None) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column.is_(None) if value is None else column == value
    return found


def _stored(values: Sequence[Any]) -> list[Any]:
    return [dict(value) if hasattr(value, "keys") else value for value in values]


async def _schedules(connection: Connection, query: Select[Any]) -> list[Schedule]:
    return [_schedule(Schedule(**row._mapping)) for row in await connection.execute(query)]


def _marked(schedule: Schedule) -> Schedule:
    return schedule if schedule.group is None else replace(schedule, zone=f"{NEWER_NODES_ONLY}{schedule.zone}")


def _schedule(plain: Schedule) -> Schedule:
    last = None if plain.last_outcome is None else FiringOutcome(plain.last_outcome)
    zone = plain.zone.removeprefix(NEWER_NODES_ONLY)
    return replace(plain, zone=zone, overlap=Overlap(plain.overlap), misfire=Misfire(plain.misfire), last_outcome=last)
