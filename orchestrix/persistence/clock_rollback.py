"""Clock rollback: finds times written before the clock was set back, and ends waits that became too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Table, and_, bindparam, func, not_, or_, select, update
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.jobs import LIVE, PENDING
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.domain.stored_times import CLOCK_TOLERANCE, age_s, believed
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.persistence.schema.column_types import UtcTime
from orchestrix.persistence.tables import (
    command_queues,
    handovers,
    jobs,
    leases,
    nodes,
    outbox,
    throttles,
    workers,
    write_probes,
)
from orchestrix.saga.commands import NEVER
from orchestrix.saga.state import JOB, RETRY

ROWS_PER_TRANSACTION: Final = 500
"""Rows that are corrected in one transaction."""
_SHORT: Final = timedelta(seconds=10)
"""What a wake-up may be put off by, whatever wait it ends."""
_CLAIMS: Final = 4
"""A claim may have so many times its length left: other nodes may claim for longer."""
_PAST: Final = ("dispatched_at", "worker_beat_at", "handoff_at", "taken_at")
"""What has happened to a job that is not over, and what waits count from."""


async def ahead_s(connection: Connection) -> float:
    """By how many seconds the newest of the stored times lies ahead of the database's clock; 0 if it does not."""
    small = [(nodes, "beat_at"), (workers, "beat_at"), (leases, "gained_at"), (handovers, "gained_at")]
    small += [(throttles, "at"), (write_probes, "at"), (jobs, "created_at"), (APPS.instances, "created_at")]
    newest = [
        select(func.max(table.c[name], type_=UtcTime())).scalar_subquery().label(f"c{place}")
        for place, (table, name) in enumerate(small)
    ]
    last = select(INSTANCES.instances.c.created_at).order_by(INSTANCES.instances.c.id.desc()).limit(1)
    query = select(connection.dialect.clock(connection.now()), last.scalar_subquery(), *newest)
    now, *times = (await connection.execute(query)).one()
    ahead = max((one - now for one in times if one is not None), default=timedelta(0))
    return ahead / timedelta(seconds=1) if ahead > CLOCK_TOLERANCE else 0.0


async def repair(database: Database, claim_s: float) -> int:
    """Ends every wait that is too long by the present clock when it is over by that clock; returns how many.

    `claim_s` is for how long this node claims messages. Rows that others have locked are left for the next run.
    """
    count = await database.run(lambda tx: _claims(tx, timedelta(seconds=_CLAIMS * claim_s)))
    await database.run(_queues)
    for pair in (APPS, INSTANCES):
        count += await _all(database, partial(_wake_ups, pair), 0)
    return count + await _all(database, _jobs, "")


@dataclass(frozen=True, slots=True)
class _Part:
    """So many rows were corrected; `last` is the key of the last one checked, None at the end."""

    repaired: int
    last: Any


async def _all(database: Database, part: Any, first: Any) -> int:
    count, after = 0, first
    while after is not None:
        done: _Part = await database.run(lambda tx, after=after: part(tx, after))  # type: ignore[misc]
        count, after = count + done.repaired, done.last
    return count


async def _claims(tx: Transaction, longest: timedelta) -> int:
    """Messages claimed by a node that may have been dead for long."""
    late = outbox.c.claimed_until > tx.now() + longest
    ids = await _keys(tx, outbox, [late], outbox.c.claimed_until)
    if ids:
        free = update(outbox).where(tx.dialect.among(outbox.c.id, sorted(ids)), late)
        await tx.execute(free.values(claimed_until=tx.now() - timedelta(seconds=1)))
    return len(ids)


async def _queues(tx: Transaction) -> None:
    table, now = command_queues, tx.now()
    await tx.execute(update(table).where(table.c.begun_sent_at > now + CLOCK_TOLERANCE).values(begun_sent_at=now))


async def _wake_ups(pair: SagaTables, tx: Transaction, after: int) -> _Part:
    """Sagas that wait for longer than the wait that was begun for them. What a person has set stays as it is.

    One that is corrected is not found again: its lock blocks those who want to write.
    """
    table, now = pair.instances.c, tx.now()
    query = select(
        table.id,
        table.version,
        table.wake_at,
        table.wake_reason,
        table.wait_ms,
        table.sent_at,
        table.hindered_by,
        table.trace_head,
    )
    late = and_(table.wake_at > now + _SHORT + CLOCK_TOLERANCE, table.wake_at < NEVER)
    long = and_(_longer(tx, table.wake_at, table.wait_ms), not_(_set_by_person(table)))
    query = (
        query.where(table.id > after, late, or_(long, table.sent_at > now + CLOCK_TOLERANCE))
        .order_by(table.id)
        .limit(ROWS_PER_TRANSACTION)
    )
    found = (await tx.execute(query.with_for_update(skip_locked=True, key_share=True))).all()
    rows = []
    for one in found:
        at = believed(one.wake_at, now, max(timedelta(milliseconds=one.wait_ms), _SHORT))
        if at != one.wake_at and (one.wait_ms or one.wake_reason in (RETRY, JOB)):
            rows.append(
                TimerUpdate(
                    one.id,
                    one.version,
                    at,
                    one.wake_reason,
                    one.wait_ms,
                    one.sent_at,
                    one.hindered_by,
                    one.trace_head,
                )
            )
    await instances.update_timers(tx, pair, rows)
    if sent := [one.id for one in found if one.sent_at is not None and one.sent_at > now + CLOCK_TOLERANCE]:
        await tx.execute(update(pair.instances).where(tx.dialect.among(table.id, sent)).values(sent_at=now))
    return _Part(len(rows), found[-1].id if len(found) == ROWS_PER_TRANSACTION else None)


def _set_by_person(table: Any) -> ColumnElement[bool]:
    """A wait without a length ends at a time that a request named; but the next try may just be due at once."""
    return and_(table.wait_ms == 0, table.wake_reason.not_in((RETRY, JOB)))


def _longer(tx: Transaction, until: Any, wait_ms: Any) -> ColumnElement[bool]:
    """Whether `until` is further away than a wait of that length allows."""
    longest: ColumnElement[int] = wait_ms + CLOCK_TOLERANCE // timedelta(milliseconds=1)
    return tx.dialect.ms_until(until, tx.now()) > longest


async def _jobs(tx: Transaction, after: str) -> _Part:
    """Jobs that wait to be dispatched, and those whose workers or owners had a heartbeat in the future."""
    table, now = jobs.c, tx.now()
    past = [table[name] > now + CLOCK_TOLERANCE for name in _PAST]
    not_started = and_(table.state == PENDING, table.updated_at > now + CLOCK_TOLERANCE)
    begun = and_(table.state.in_(LIVE), _longer(tx, table.wake_at, func.coalesce(table.timeout_ms, 0)))
    waits = and_(or_(not_started, begun), table.wake_at > now + CLOCK_TOLERANCE, table.wake_at < QUEUED_WAKE_AT)
    open_ = or_(table.state.in_((PENDING, *LIVE)), table.channels == 1)
    columns = [table[name] for name in ("id", "version", "state", "timeout_ms", "wake_at", "updated_at", *_PAST)]
    query = (
        select(*columns)
        .where(table.id > after, open_, or_(waits, *past))
        .order_by(table.id)
        .limit(ROWS_PER_TRANSACTION)
    )
    found = (await tx.execute(query.with_for_update(skip_locked=True))).all()
    rows = list(_repaired(found, now))
    if rows:
        same = and_(table.id == bindparam("which"), table.version == bindparam("of_version"))
        new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("wake_at", "updated_at", *_PAST)}
        await tx.execute(update(jobs).where(same).values(new), rows)
    return _Part(len(rows), found[-1].id if len(found) == ROWS_PER_TRANSACTION else None)


def _repaired(found: Sequence[Any], now: datetime) -> Iterator[dict[str, Any]]:
    for one in found:
        times = {name: _past(getattr(one, name), now) for name in ("updated_at", *_PAST)}
        times["wake_at"] = _wake_at(one, now)
        if any(getattr(one, name) != at for name, at in times.items()):
            yield {"which": one.id, "of_version": one.version, **{f"new_{name}": at for name, at in times.items()}}


def _past(at: datetime | None, now: datetime) -> datetime | None:
    return now if at is not None and age_s(at, now) == float("inf") else at


def _wake_at(job: Any, now: datetime) -> datetime | None:
    """One that has not begun waits from now on as long as it was to wait from its last change; any other is due."""
    at: datetime | None = job.wake_at
    if at is None or at >= QUEUED_WAKE_AT:
        return at
    if job.state == PENDING:
        return min(at, now + (at - job.updated_at)) if job.updated_at > now + CLOCK_TOLERANCE else at
    longest = timedelta(milliseconds=job.timeout_ms) if job.timeout_ms is not None else _SHORT
    return believed(at, now, max(longest, _SHORT))


async def _keys(tx: Transaction, table: Table, terms: Sequence[ColumnElement[bool]], by: Any) -> list[Any]:
    query = select(table.c.id).where(*terms).order_by(by.desc()).limit(ROWS_PER_TRANSACTION)
    return list((await tx.execute(query.with_for_update(skip_locked=True))).scalars())
