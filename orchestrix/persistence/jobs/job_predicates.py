"""Job predicates: SQL conditions for the jobs that the leader may have to rescue or to hand off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, func, literal, or_, select
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.jobs import DISPATCHED, LIVE, ORPHAN_PENDING, OWNED, RUNNING
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.schema.column_types import UtcTime
from orchestrix.persistence.tables import broker_incarnation, jobs, nodes

Terms = Sequence[ColumnElement[bool]]
"""Conditions that all have to hold."""
_JOB: Final = jobs.c
_UP: Final = ("ALIVE", "DRAINING")
"""The states of nodes that may still read what they own."""


@dataclass(frozen=True, slots=True)
class JobsToRescue:
    """Whether there is a job of each kind, and how many seconds are left until the next one's timeout.

    That is negative where a timeout is over, also if it is spared, and None where none has a timeout.
    """

    dispatched_before_reset: bool
    timed_out: bool
    silent: bool
    left: float | None


async def jobs_to_rescue(
    connection: Connection, limit: float | None, heard: float, since: datetime | None
) -> JobsToRescue:
    """What there is now, by `dispatched_before_reset`, `timed_out` and `silent`, after `limit` seconds: with None,
    no worker is silent.

    With `since`, no job that was sent before that counts as timed out.
    """
    sent = () if since is None else (_JOB.dispatched_at >= since,)
    query = select(
        _any(dispatched_before_reset()),
        _any([*timed_out(connection, heard), *sent]),
        literal(False) if limit is None else _any(silent(connection, limit, heard)),
        select(func.min(_JOB.wake_at, type_=UtcTime()))
        .where(_JOB.state.in_(LIVE), _JOB.channels == 1)
        .scalar_subquery(),
        connection.dialect.clock(connection.now()),
    )
    forgotten, late, quiet, earliest, now = (await connection.execute(query)).one()
    left = None if earliest is None else (earliest - now).total_seconds()
    return JobsToRescue(bool(forgotten), bool(late), bool(quiet), left)


async def ownerless(connection: Connection, orphaned: float, without: float) -> tuple[bool, bool]:
    """Whether there is any of `orphans`, and any of `unowned`, each with its seconds."""
    query = select(_any(orphans(connection, orphaned)), _any(unowned(connection, without)))
    gone, never = (await connection.execute(query)).one()
    return bool(gone), bool(never)


def dispatched_before_reset() -> Terms:
    """They were dispatched to workers by a broker that has lost its data since."""
    pruned = select(func.max(broker_incarnation.c.changed_at)).scalar_subquery()
    return _JOB.state == DISPATCHED, _JOB.channels == 1, _JOB.queue.is_not(None), _JOB.dispatched_at < pruned


def timed_out(connection: Connection, heard: float) -> Terms:
    """Their timeout has passed, and no hand-off of them is in progress.

    Not those of an owner without a heartbeat for `heard` seconds: their workers may have sent what was not read yet.
    """
    return (
        _JOB.state.in_(LIVE),
        _JOB.channels == 1,
        _JOB.wake_at <= connection.dialect.clock(connection.now()),
        or_(_JOB.ownership.is_(None), _JOB.ownership == OWNED),
        or_(_JOB.owner.is_(None), _JOB.owner.in_(listening(connection, heard))),
    )


def silent(connection: Connection, seconds: float, heard: float) -> Terms:
    """No heartbeat of their worker for so many seconds, and their owner has owned them for as long: it had time to read
    what was sent while there was no reader. `heard` is as in `timed_out`.
    """
    no_heartbeat = _JOB.worker_beat_at <= ago(connection, seconds)
    return (
        _JOB.state == RUNNING,
        _JOB.channels == 1,
        _JOB.queue.is_not(None),
        no_heartbeat,
        *read(connection, seconds, heard),
    )


def read(connection: Connection, seconds: float, heard: float) -> Terms:
    """Their queues have been read for so many seconds, by a node with a heartbeat in the last `heard` seconds."""
    since = or_(_JOB.taken_at.is_(None), _JOB.taken_at <= ago(connection, seconds))
    return _JOB.ownership == OWNED, _JOB.owner.in_(listening(connection, heard)), since


def unowned(connection: Connection, seconds: float) -> Terms:
    """They have no owner, and were not offered for so many seconds."""
    offered = func.coalesce(_JOB.handoff_at, _JOB.dispatched_at, type_=UtcTime())
    return _JOB.channels == 1, _JOB.owner.is_(None), offered <= ago(connection, seconds)


def orphans(connection: Connection, seconds: float) -> Terms:
    """Their owner is gone, or they are ORPHAN_PENDING, and they were not offered for so many seconds."""
    up = select(nodes.c.id).where(nodes.c.state.in_(_UP))
    gone = or_(_JOB.ownership == ORPHAN_PENDING, _JOB.owner.not_in(up))
    long_ago = _JOB.handoff_at <= ago(connection, seconds)
    offered = or_(_JOB.handoff_at.is_(None), _JOB.handoff_reason != "NodeCrash", long_ago)
    return _JOB.channels == 1, _JOB.owner.is_not(None), gone, offered


def listening(connection: Connection, seconds: float) -> Select[tuple[str]]:
    """The ids of the nodes with a heartbeat within so many seconds."""
    recent = nodes.c.beat_at > ago(connection, seconds), nodes.c.beat_at <= connection.now() + CLOCK_TOLERANCE
    return select(nodes.c.id).where(nodes.c.state.in_(_UP), *recent)


def ago(connection: Connection, seconds: float) -> datetime:
    """So many seconds before now."""
    return connection.now() - timedelta(seconds=seconds)


def _any(terms: Terms) -> ColumnElement[Any]:
    return select(_JOB.id).where(*terms).exists()
