"""Hindered instances: records why instances do not continue, where a queue without consumers holds up many of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy import ColumnElement, or_

from orchestrix.persistence.dialects import BulkUpdate
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.sagas.instance_rows import instances_of, selection
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.sagas.stuck_filter import WORKER_WAIT_REASONS
from orchestrix.saga.state import BACKLOG, DEADLINE, NO_CONSUMER, Instance


@dataclass(frozen=True, slots=True)
class Waiting:
    """Instances of `saga` in `states` that wait for a worker: those that are recorded as held up by a queue without
    consumers, or those that are not."""

    saga: str
    states: Collection[str]
    recorded: bool


async def lock_waiting(tx: Transaction, pair: SagaTables, wanted: Waiting, after_id: int, limit: int) -> list[Instance]:
    """Locks and reads up to `limit` of them, by id from behind `after_id`. What is locked elsewhere is left out."""
    table = pair.instances.c
    held = [] if pair.saga else [table.saga == wanted.saga]
    reasons = (*WORKER_WAIT_REASONS, NO_CONSUMER) if wanted.recorded else WORKER_WAIT_REASONS
    waits = (table.wake_at.is_not(None), table.wake_reason.in_(reasons), _recorded(pair, wanted.recorded))
    query = selection(pair).where(table.id > after_id, table.state.in_(sorted(wanted.states)), *held, *waits)
    query = query.order_by(table.id).limit(limit).with_for_update(skip_locked=True, key_share=True)
    return await instances_of(tx, pair, query)


async def record(tx: Transaction, pair: SagaTables, rows: Sequence[Instance], by: str | None) -> None:
    """Records what hinders these, where the version is unchanged. No change of version, and none of history.

    Their wake-up stays; one that a timer has put off for want of consumers is a deadline again once there are some.
    """
    values = [
        (one.id, one.version, by, DEADLINE if by is None and one.wake_reason == NO_CONSUMER else one.wake_reason)
        for one in sorted(rows, key=lambda one: one.id)
    ]
    if values:
        await tx.dialect.update(tx, _update(pair), values)


def _recorded(pair: SagaTables, recorded: bool) -> ColumnElement[bool]:
    by = pair.instances.c.hindered_by
    return by == NO_CONSUMER if recorded else or_(by.is_(None), by == BACKLOG)


@cache
def _update(pair: SagaTables) -> BulkUpdate:
    change = ("hindered_by", "wake_reason")
    return BulkUpdate(pair.instances, match=("id", "version"), change=change, guard="blocker IS NULL")
