"""Stuck filter: which instances are stuck, by their own rows and by what else blocks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, false, func, literal_column, not_, or_, select
from sqlalchemy.sql import ColumnElement

from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs.blocked_job_steps import UnservedJobs, is_waited_for, without_worker
from orchestrix.persistence.schema.saga_columns import HINDERED, STUCK
from orchestrix.persistence.tables import jobs
from orchestrix.saga.definition import TERMINAL
from orchestrix.saga.state import BACKLOG, BROKER_DOWN, DEADLINE, JOB, NO_CONSUMER, RETRY, UNSENT

_OWN: Final = (UNSENT, BROKER_DOWN, NO_CONSUMER)
"""Why instances are woken that are stuck by what their rows say."""
NORMAL_WAIT_REASONS: Final = (DEADLINE, BACKLOG, RETRY, JOB)
"""Why instances are woken that are not stuck."""
WORKER_WAIT_REASONS: Final = (DEADLINE, BACKLOG)
"""Why instances are woken that wait for a worker."""

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class ExternalBlockers:
    """Instances that the engine wakes, as their rows say, but that are blocked by something not in any row.

    Of those that wait for their worker all in `states`; and all with these `ids`. Besides, where those are too many to
    be named by their ids: all whose wake-up was at `overdue_since` or before, and all that wait for an `unserved_jobs`
    job.
    """

    states: Sequence[str] = ()
    ids: Sequence[int] = ()
    overdue_since: datetime | None = None
    unserved_jobs: UnservedJobs | None = None

    @property
    def many(self) -> bool:
        """Whether they are too many to be counted."""
        return self.overdue_since is not None or self.unserved_jobs is not None


NO_BLOCKERS: Final = ExternalBlockers()
"""Nothing blocks any instance."""


def stuck_by_row(table: Any) -> list[Condition]:
    """That an instance is stuck by its own row."""
    # The text of the index, for the planners that compare it character by character; the states for the one without it.
    return [table.state.not_in(sorted(TERMINAL)), literal_column(f"({STUCK})")]


def hindered_by_queue(table: Any) -> list[Condition]:
    """That an instance waits for its worker, and its row says that the queue has no consumer. Only live ones wait."""
    waits = (table.blocker.is_(None), table.wake_reason.in_(WORKER_WAIT_REASONS))
    return [*waits, table.hindered_by == NO_CONSUMER, literal_column(HINDERED)]


def stuck(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    """That a row is stuck.

    `table` are the columns of a row, of whatever query; no index helps to find it.
    """
    found = [table.blocker.is_not(None), table.wake_reason.in_(_OWN), _late(table, hindered)]
    found.append(not_(_is_unhindered(table)))
    found += [and_(*condition) for condition in in_states(connection, table, hindered)]
    if hindered.ids:
        found.append(connection.dialect.among(table.id, hindered.ids))
    if hindered.unserved_jobs is not None:
        found.append(_waits_for_worker(table, hindered.unserved_jobs))
    return [table.state.not_in(sorted(TERMINAL)), or_(*found)]


def moving(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    """The opposite."""
    never = table.wake_reason.is_(None)
    found = [table.blocker.is_(None), or_(never, table.wake_reason.in_(NORMAL_WAIT_REASONS))]
    found.append(or_(never, _is_unhindered(table)))
    if hindered.states:
        found.append(
            or_(never, table.wake_reason.not_in(WORKER_WAIT_REASONS), table.state.not_in(sorted(hindered.states)))
        )
    if hindered.ids:
        found.append(or_(never, not_(connection.dialect.among(table.id, hindered.ids))))
    if hindered.overdue_since is not None:
        found.append(or_(never, table.wake_at > hindered.overdue_since))
    if hindered.unserved_jobs is not None:
        found.append(or_(never, not_(_waits_for_worker(table, hindered.unserved_jobs))))
    return found


def in_states(connection: Connection, table: Any, hindered: ExternalBlockers) -> Iterator[list[Condition]]:
    """One condition after the other, each within one state; no row fits two of them, or says itself that it is stuck.

    So that none of those that wait for their worker is found by its id or its wake-up too.
    """
    waiting = [table.blocker.is_(None), table.wake_reason.in_(WORKER_WAIT_REASONS), _is_unhindered(table)]
    for state in hindered.states:
        yield [table.state == state, *waiting]


def by_id(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    """That a row is blocked by its id, and is none of those `in_states`."""
    return [connection.dialect.among(table.id, hindered.ids), *_blocked_by_index(table, hindered)]


def by_wake_up(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    """That it is by its wake-up, and not by its id, or as one of those `in_states`."""
    return [_late(table, hindered), *_blocked_by_index(table, hindered), *_unnamed(connection, table, hindered)]


def by_job(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    """That it is by its job, beside which the row stands, and by nothing else."""
    assert hindered.unserved_jobs is not None, "there are such jobs"
    found = [is_waited_for(table), *without_worker(hindered.unserved_jobs), *_unnamed(connection, table, hindered)]
    in_time = func.coalesce(table.wake_at, table.wake_at)  # no index of it is to be used: the jobs are fewer
    return [*found, in_time > hindered.overdue_since] if hindered.overdue_since is not None else found


def _blocked_by_index(table: Any, hindered: ExternalBlockers) -> list[Condition]:
    found = [table.blocker.is_(None), table.wake_reason.in_(NORMAL_WAIT_REASONS), _is_unhindered(table)]
    if hindered.states:
        states = sorted(hindered.states)
        found.append(or_(table.wake_reason.not_in(WORKER_WAIT_REASONS), table.state.not_in(states)))
    return found


def _is_unhindered(table: Any) -> Condition:
    """Of one with a wake-up that it is none of `hindered_by_queue`. What no longer waits for a worker may still say so:
    nodes of an earlier release do not clear it."""
    by = func.coalesce(table.hindered_by, "")
    return or_(by != NO_CONSUMER, table.wake_reason.is_(None), table.wake_reason.not_in(WORKER_WAIT_REASONS))


def _unnamed(connection: Connection, table: Any, hindered: ExternalBlockers) -> list[Condition]:
    return [not_(connection.dialect.among(table.id, hindered.ids))] if hindered.ids else []


def _late(table: Any, hindered: ExternalBlockers) -> Condition:
    late: Condition = table.wake_at <= hindered.overdue_since if hindered.overdue_since is not None else false()
    return late


def _waits_for_worker(table: Any, which: UnservedJobs) -> Condition:
    return select(jobs.c.id).where(is_waited_for(table), *without_worker(which)).exists()
