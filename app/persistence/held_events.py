"""Held events: those of instances whose version of a saga the node that read them could not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select

from .dialects import BulkInsert
from .engine import Connection, Transaction
from .tables import held_events

_COLUMNS: Final = ("message_id", "saga", "instance_id", "queue", "body", "headers", "reason", "held_at")
_INSERT: Final = BulkInsert(held_events, _COLUMNS, key=("message_id",))


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """One event as it came. `message_id` tells copies of it; `id` is its place in the order of arrival."""

    message_id: str
    saga: str
    instance_id: int
    queue: str
    body: bytes
    headers: Mapping[str, Any]
    reason: str
    held_at: datetime
    id: int = 0


async def add(tx: Transaction, events: Sequence[HeldEvent]) -> None:
    """Stores the events, each of them once."""
    rows = [tuple(getattr(one, name) for name in _COLUMNS) for one in events]
    if rows:
        await tx.dialect.insert_absent(tx, _INSERT, rows)


async def of_instances(tx: Transaction, saga: str, ids: Iterable[int]) -> list[HeldEvent]:
    """Those of these instances, whose rows the transaction has locked, in their order of arrival."""
    table = held_events.c
    query = select(*(table[name] for name in _COLUMNS), table.id)
    query = query.where(table.saga == saga, table.instance_id.in_(sorted(ids))).order_by(table.id)
    return [HeldEvent(*row) for row in await tx.execute(query)]


async def delete(tx: Transaction, ids: Iterable[int]) -> None:
    """Forgets events that were applied."""
    gone = sorted(ids)
    if gone:
        await tx.execute(sql_delete(held_events).where(held_events.c.id.in_(gone)))


async def waiting(connection: Connection, limit: int, after: int = 0) -> list[tuple[str, int, int]]:
    """Saga, id and place of the first event of instances with held events, the longest waiting first.

    At most `limit`, whose place is behind `after`.
    """
    table = held_events.c
    first = func.min(table.id)
    query = select(table.saga, table.instance_id, first).group_by(table.saga, table.instance_id).having(first > after)
    return [(saga, id, place) for saga, id, place in await connection.execute(query.order_by(first).limit(limit))]


async def counts(connection: Connection) -> dict[str, int]:
    """How many events are held of each saga."""
    table = held_events.c
    query = select(table.saga, func.count()).group_by(table.saga)
    found = await connection.execute(query)
    return {row[0]: row[1] for row in found}
