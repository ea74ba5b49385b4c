"""Held events: those of instances whose version of a saga the node that read them could not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, func, or_, select
from sqlalchemy import delete as sql_delete

from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import held_events

_COLUMNS: Final = ("message_id", "saga", "instance_id", "queue", "body", "headers", "reason", "held_at")
_INSERT: Final = BulkInsert(held_events, _COLUMNS, key=("message_id",))


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """One event as it came. Its copies have the same `message_id`; `id` is the order of arrival."""

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


async def first(connection: Connection, saga: str, id: int) -> HeldEvent | None:
    """The first one of an instance."""
    table = held_events.c
    query = select(*(table[name] for name in _COLUMNS), table.id)
    query = query.where(table.saga == saga, table.instance_id == id).order_by(table.id).limit(1)
    row = (await connection.execute(query)).first()
    return HeldEvent(*row) if row is not None else None


async def delete(tx: Transaction, ids: Iterable[int]) -> None:
    """Deletes events that were applied."""
    gone = sorted(ids)
    if gone:
        await tx.execute(sql_delete(held_events).where(held_events.c.id.in_(gone)))


async def waiting(connection: Connection, limit: int, after: tuple[str, int] = ("", 0)) -> list[tuple[str, int]]:
    """Saga and id of up to `limit` instances with held events, in that order, from behind `after` on."""
    table = held_events.c
    saga, id = after
    behind = or_(table.saga > saga, and_(table.saga == saga, table.instance_id > id))
    query = select(table.saga, table.instance_id).where(behind).distinct()
    query = query.order_by(table.saga, table.instance_id).limit(limit)
    return [(saga, id) for saga, id in await connection.execute(query)]


async def counts(connection: Connection) -> dict[str, int]:
    """How many events are held of each saga."""
    table = held_events.c
    query = select(table.saga, func.count()).group_by(table.saga)
    found = await connection.execute(query)
    return {row[0]: row[1] for row in found}
