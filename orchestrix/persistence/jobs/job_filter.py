"""Job filter: the jobs that a list shows, as SQL conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, select
from sqlalchemy.sql import ColumnElement

from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.persistence.tables import jobs


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What the jobs of a list have in common; no field set means all.

    `saga` is that of which they were steps, `step_of` the saga's name and the id of the instance. Without
    `shards`, those of broadcasts are left out.
    """

    states: Sequence[str] = ()
    queue: str | None = None
    group: str | None = None
    parent_id: str | None = None
    shards: bool = True
    handler: str | None = None
    created_by: str | None = None
    schedule_id: str | None = None
    saga: str | None = None
    step_of: tuple[str, int] | None = None


def conditions(filters: JobFilter) -> list[ColumnElement[bool]]:
    """The conditions for `filters`."""
    table = jobs.c
    names = ("queue", "parent_id", "handler", "created_by", "schedule_id", "saga")
    same = [(table.executor_group, filters.group), *((table[name], getattr(filters, name)) for name in names)]
    found: list[ColumnElement[bool]] = [column == value for column, value in same if value is not None]
    if filters.states:
        found.append(table.state.in_(sorted(set(filters.states))))
    if not filters.shards:
        # Not `IS NULL`: SQLite would take the index of the parents for it, and sort all that it finds.
        found.append(func.coalesce(table.parent_id, "") == "")
    if filters.step_of is not None:
        found.append(_step_of(*filters.step_of))
    return found


def _step_of(saga: str, id: int) -> ColumnElement[bool]:
    """A job has the id of the command that it stands for, and history, unlike jobs, is found by its instance."""
    history = saga_tables_of(saga).history.c
    commands = select(history.command_id).where(
        history[saga_tables_of(saga).owner] == id, history.command_id.is_not(None)
    )
    return and_(jobs.c.id.in_(commands), jobs.c.saga == saga, jobs.c.instance_id == id)
