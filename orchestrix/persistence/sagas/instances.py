"""Saga instances: written and found in batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import and_, exists, literal, not_, or_, select
from sqlalchemy.sql import ColumnElement

from orchestrix.persistence.cluster import installation
from orchestrix.persistence.dialects import BulkUpdate
from orchestrix.persistence.dialects.port import Row
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas.instance_pages import (
    After,
    InstanceFilter,
    InstanceOrder,
    order,
    queries,
    sort_value,
    stuck_of_all,
)
from orchestrix.persistence.sagas.instance_rows import (
    insertion,
    instance_of,
    instances_of,
    json_of,
    late_confirmation,
    movement,
    moving_values,
    name_of,
    progress_update,
    selection,
    timer_update,
    values_of,
)
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables
from orchestrix.persistence.sagas.stuck_filter import ExternalBlockers
from orchestrix.persistence.tables import held_events
from orchestrix.saga.commands import NEVER, SagaTransition
from orchestrix.saga.definition import FAILED
from orchestrix.saga.state import DEADLINE, PAUSED, UNSENT, Instance

__all__ = [
    "After",
    "InstanceFilter",
    "TimerUpdate",
    "by_key",
    "changes",
    "confirmed_late",
    "deadlines",
    "due",
    "get",
    "guard",
    "insert",
    "lock",
    "lock_one",
    "lock_with_held",
    "movable",
    "next_wake",
    "overdue",
    "page",
    "share_lock",
    "sort_value",
    "to_redispatch",
    "update",
    "update_timers",
    "versions",
]

Version = tuple[str, int]
"""A saga's name and a version of its definition."""


@dataclass(frozen=True, slots=True)
class TimerUpdate:
    """Another wake-up for an instance that is still at `version`; it is not in its history."""

    id: int
    version: int
    wake_at: datetime
    wake_reason: str
    wait_ms: int
    sent_at: datetime | None = None
    hindered_by: str | None = None
    trace_head: str | None = None

    @classmethod
    def of(cls, one: Instance, at: datetime) -> TimerUpdate:
        """The same instance, woken at that time."""
        assert one.wake_reason is not None, "only what has a wake-up is woken"
        return cls(one.id, one.version, at, one.wake_reason, one.wait_ms, one.sent_at, one.hindered_by, one.trace_head)


async def insert(tx: Transaction, pair: SagaTables, started: Sequence[SagaTransition]) -> list[int | None]:
    """Inserts new instances; their ids in the order given, None where the name is taken (also by an earlier one here).

    Sorted by name, so that two calls with common names wait for one another in one order.
    """
    bulk = insertion(pair)
    first: dict[tuple[Any, ...], int] = {}
    for place, moved in enumerate(started):
        first.setdefault(name_of(pair, moved.instance), place)
    rows = [values_of(pair, started[first[name]].instance) for name in sorted(first)]
    if not rows:
        return []
    ids = await tx.dialect.insert_numbered(tx, bulk, rows)
    names = [name_of(pair, moved.instance) for moved in started]
    return [ids.get(name) if first[name] == place else None for place, name in enumerate(names)]


async def lock(tx: Transaction, pair: SagaTables, ids: Sequence[int]) -> list[Instance]:
    """Locks and reads the instances that no other transaction has locked, by id. What is locked elsewhere is left
    out.
    """
    if not ids:
        return []
    query = selection(pair).where(tx.dialect.among(pair.instances.c.id, sorted(set(ids))))
    query = query.order_by(pair.instances.c.id).with_for_update(skip_locked=True, key_share=True)
    return await instances_of(tx, pair, query)


async def lock_with_held(tx: Transaction, pair: SagaTables, ids: Sequence[int]) -> tuple[list[Instance], set[int]]:
    """As `lock`, and the ids of those that have held events: nothing may overtake these."""
    if not ids:
        return [], set()
    query = selection(pair).add_columns(_holds(pair)).where(tx.dialect.among(pair.instances.c.id, sorted(set(ids))))
    query = query.order_by(pair.instances.c.id).with_for_update(skip_locked=True, key_share=True, of=pair.instances)
    known = await installation.known(tx)
    rows = [list(row) for row in await tx.execute(query)]
    held = {row[0] for row in rows if row[-1]}
    return [instance_of(row[:-1], known.of(row[0], app=pair is APPS)) for row in rows], held


async def _lock_all(tx: Transaction, pair: SagaTables, ids: Sequence[int]) -> list[Instance]:
    """Locks and reads the instances, by id; waits for others up to the limit on locks, then raises `Contention`."""
    which = tx.dialect.among(pair.instances.c.id, sorted(set(ids)))
    query = selection(pair).where(which).order_by(pair.instances.c.id).with_for_update(key_share=True)
    return await instances_of(tx, pair, query)


async def lock_one(tx: Transaction, pair: SagaTables, id: int) -> Instance | None:
    """Locks and reads one instance; waits for others up to the limit on locks, then raises `Contention`."""
    query = selection(pair).where(pair.instances.c.id == id).with_for_update(key_share=True)
    return _only(await instances_of(tx, pair, query))


async def share_lock(tx: Transaction, pair: SagaTables, id: int) -> Instance | None:
    """Reads one instance that no other transaction can change until the transaction ends; waits and raises as
    `lock_one` does.
    """
    query = selection(pair).where(pair.instances.c.id == id).with_for_update(read=True)
    return _only(await instances_of(tx, pair, query))


async def update(tx: Transaction, pair: SagaTables, changed: Sequence[tuple[int, Instance]]) -> set[int]:
    """Compare-and-set of (version before, instance from now on); the ids of those that were still at that version."""
    bulk, rows = changes(pair, changed)
    return await tx.dialect.update(tx, bulk, rows) if rows else set()


def changes(pair: SagaTables, changed: Sequence[tuple[int, Instance]]) -> tuple[BulkUpdate, list[Row]]:
    """What `update` does, for those who do more with it at once."""
    rows: list[Row] = [
        (instance.id, before, *moving_values(instance), *json_of(instance))
        for before, instance in sorted(changed, key=lambda change: change[1].id)
    ]
    return movement(pair), rows


async def update_timers(tx: Transaction, pair: SagaTables, rows: Sequence[TimerUpdate]) -> None:
    """Sets other wake-up times where the version is unchanged and the engine still acts by itself."""
    values = [
        (row.id, row.version, row.wake_at, row.wake_reason, row.wait_ms, row.sent_at, row.hindered_by, row.trace_head)
        for row in sorted(rows, key=lambda row: row.id)
    ]
    if values:
        await tx.dialect.update(tx, timer_update(pair), values)


async def write_progress(tx: Transaction, pair: SagaTables, changed: Sequence[Instance]) -> None:
    """Writes another progress where the version is unchanged."""
    rows = [
        (one.id, one.version, one.attempt, one.progress.to_json()) for one in sorted(changed, key=lambda one: one.id)
    ]
    if rows:
        await tx.dialect.update(tx, progress_update(pair), rows)


async def confirmed_late(tx: Transaction, pair: SagaTables, rows: Sequence[tuple[int, str, int]]) -> None:
    """Counts deadlines from now for (id, command id, timeout in ms) whose command is still the one in flight.

    It only ever puts them off, at most to the end of the run's own time. Waits for whoever holds a row: left as it is,
    its step would fail by a deadline that was counted from before its command could leave. Raises `Contention`.
    """
    timeouts = {(id, command_id): timeout for id, command_id, timeout in rows}
    values = []
    for one in await _lock_all(tx, pair, [id for id, _, _ in rows]):
        timeout = timeouts.get((one.id, one.command_id or ""))
        if timeout is None or one.wake_at is None or one.wake_reason not in (DEADLINE, UNSENT):
            continue
        at = min(tx.now() + timedelta(milliseconds=timeout), one.deadline_at or NEVER)
        if at > one.wake_at:
            values.append((one.id, one.command_id, DEADLINE, at, timeout, None))
    if values:
        await tx.dialect.update(tx, late_confirmation(pair), values)


async def due(
    tx: Transaction, pair: SagaTables, sagas: Sequence[str], limit: int, unrunnable: Collection[Version] = ()
) -> list[Instance]:
    """Locks and reads up to `limit` instances whose wake-up has come by the database's clock, the oldest first.

    Left out are those of versions that the caller cannot run, and those with held events, which come first.
    """
    table, here = pair.instances, _of(pair, sagas)
    if here is None:
        return []
    here = [*here, *_runnable(pair, unrunnable)]
    query = selection(pair).where(table.c.wake_at <= tx.dialect.clock(tx.now()), *here)
    query = query.order_by(table.c.wake_at, table.c.id).limit(limit)
    return await instances_of(tx, pair, query.with_for_update(skip_locked=True, key_share=True))


async def next_wake(
    connection: Connection, pair: SagaTables, sagas: Sequence[str], unrunnable: Collection[Version] = ()
) -> float | None:
    """Seconds until the earliest wake-up by the database's clock, negative if it has passed; None without any.

    Of the same instances as `due`.
    """
    here = _of(pair, sagas)
    if here is None:
        return None
    here = [*here, *_runnable(pair, unrunnable)]
    clock = connection.dialect.clock(connection.now())
    wake_at = pair.instances.c.wake_at
    query = select(wake_at, clock).where(wake_at.is_not(None), *here).order_by(wake_at).limit(1)
    found = (await connection.execute(query)).first()
    return (found[0] - found[1]).total_seconds() if found is not None else None


async def overdue(connection: Connection, pair: SagaTables, saga: str, seconds: float, limit: int) -> list[int]:
    """The ids of up to `limit` instances whose wake-up has passed by so many seconds, the longest waiting first."""
    table, here = pair.instances.c, _of(pair, [saga])
    if here is None:
        return []
    query = select(table.id).where(table.wake_at <= connection.now() - timedelta(seconds=seconds), *here)
    return list((await connection.execute(query.order_by(table.wake_at, table.id).limit(limit))).scalars())


async def movable(tx: Transaction, pair: SagaTables, limit: int) -> list[Instance]:
    """Locks and reads up to `limit` instances that the engine, or the end of a pause, would move, by id."""
    table = pair.instances.c
    query = selection(pair).where(or_(table.wake_at.is_not(None), table.blocker == PAUSED)).order_by(table.id)
    return await instances_of(tx, pair, query.limit(limit).with_for_update(key_share=True))


async def to_redispatch(
    connection: Connection, pair: SagaTables, sagas: Sequence[str], after_id: int, limit: int
) -> list[Instance]:
    """Instances without a blocker that have a command in flight, by id from behind `after_id`.

    Among them failed ones that still compensate what was done too late.
    """
    table, here = pair.instances, _of(pair, sagas)
    if here is None:
        return []
    # A wake-up is what only the live and unblocked have: the table's check says so.
    some = or_(table.c.wake_at.is_not(None), table.c.state == FAILED)
    query = selection(pair).where(table.c.id > after_id, some, table.c.command_id.is_not(None))
    return await instances_of(connection, pair, query.where(*here).order_by(table.c.id).limit(limit))


async def deadlines(
    connection: Connection,
    pair: SagaTables,
    sagas: Sequence[str],
    limit: int,
    after: tuple[datetime, int] | None = None,
) -> list[Instance]:
    """Up to `limit` instances that will be woken, the soonest first; `after` is wake-up and id of the last one seen.

    Those whose deadline a person has cancelled are not among them.
    """
    table, here = pair.instances.c, _of(pair, sagas)
    if here is None:
        return []
    query = selection(pair).where(table.wake_at < NEVER, *here)
    return await instances_of(
        connection, pair, InstanceOrder(table.wake_at, table.id, False, after).first(query, limit)
    )


async def guard(connection: Connection, pair: SagaTables, ids: Sequence[int]) -> dict[int, Instance]:
    """The instances as they are now."""
    if not ids:
        return {}
    query = selection(pair).where(connection.dialect.among(pair.instances.c.id, sorted(set(ids))))
    return {instance.id: instance for instance in await instances_of(connection, pair, query)}


async def versions(connection: Connection, pair: SagaTables, ids: Sequence[int]) -> dict[int, int]:
    """The versions of the instances as they are now."""
    if not ids:
        return {}
    table = pair.instances
    query = select(table.c.id, table.c.version).where(connection.dialect.among(table.c.id, sorted(set(ids))))
    return {row[0]: row[1] for row in await connection.execute(query)}


async def page(
    connection: Connection,
    pair: SagaTables,
    saga: str,
    filters: InstanceFilter,
    sort: str = "-createdAt",
    limit: int = 50,
    after: After | None = None,
) -> list[Instance]:
    """Up to `limit` instances that fit the filter.

    `sort` is createdAt, updatedAt, appName or key, with - in front for the other way round; `after` is the value of
    the sort and the id of the last instance seen (see `sort_value`). Raises `Invalid` for an unknown sort.
    """
    found: list[Instance] = []
    async for query in queries(connection, pair, saga, filters, order(pair, sort, after), selection(pair), limit):
        found = await instances_of(connection, pair, query)
        if len(found) == limit:
            break
    return found


async def newest_stuck(
    connection: Connection, pair: SagaTables, blockers: Mapping[str, ExternalBlockers], limit: int, after: After | None
) -> list[Instance]:
    """Up to `limit` stuck instances of these sagas, the newest first, by one statement; `after` as in `page`.

    `blockers` says for each saga what else blocks its instances.
    """
    if not blockers:
        return []
    filters = {saga: InstanceFilter(stuck=True, blockers=known) for saga, known in blockers.items()}
    by = order(pair, "-createdAt", after)
    return await instances_of(connection, pair, stuck_of_all(connection, pair, filters, by, selection(pair), limit))


async def get(connection: Connection, pair: SagaTables, saga: str, id: int) -> Instance | None:
    """One instance of a saga."""
    return await _one(connection, pair, saga, pair.instances.c.id == id)


async def by_key(connection: Connection, pair: SagaTables, saga: str, key: str) -> Instance | None:
    """The instance of a saga that has this name."""
    return await _one(connection, pair, saga, pair.instances.c[pair.key] == key)


async def _one(connection: Connection, pair: SagaTables, saga: str, which: ColumnElement[bool]) -> Instance | None:
    here = _of(pair, [saga])
    if here is None:
        return None
    return _only(await instances_of(connection, pair, selection(pair).where(which, *here)))


def _only(found: Sequence[Instance]) -> Instance | None:
    return found[0] if found else None


def _of(pair: SagaTables, sagas: Sequence[str]) -> list[ColumnElement[bool]] | None:
    """The condition that a row belongs to one of the sagas; None where none of them is stored in this pair."""
    if pair.saga:
        return [] if pair.saga in sagas else None
    return [pair.instances.c.saga.in_(sorted(sagas))] if sagas else None


def _runnable(pair: SagaTables, unrunnable: Collection[Version]) -> list[ColumnElement[bool]]:
    table = pair.instances.c
    those = [
        and_(*([] if pair.saga else [table.saga == saga]), table.definition_version == version)
        for saga, version in sorted(unrunnable)
        if pair.saga in (None, saga)
    ]
    return [not_(_holds(pair)), *(not_(one) for one in those)]


@cache
def _holds(pair: SagaTables) -> ColumnElement[bool]:
    """Whether an instance has held events."""
    saga = literal(pair.saga) if pair.saga else pair.instances.c.saga
    table = held_events.c
    return exists().where(table.saga == saga, table.instance_id == pair.instances.c.id).correlate(pair.instances)
