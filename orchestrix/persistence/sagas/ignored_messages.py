"""Ignored messages: counts the messages of an instance that changed nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import select

from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.storable_text import cleaned
from orchestrix.persistence.tables import saga_notes

NOTES_PER_INSTANCE: Final = 100
"""Distinct notes that are kept per instance."""

_LENGTH: Final = 110
_KEY: Final = ("saga", "instance_id", "kind", "type", "reason")
_INSERT: Final = BulkInsert(saga_notes, (*_KEY, "count", "first_at", "last_at"), key=_KEY)

Key = tuple[str, int, str, str, str]


@dataclass(frozen=True, slots=True)
class IgnoredMessage:
    """`count` messages of a `type` were treated as `kind` (such as `ignored`) for a `reason`."""

    saga: str
    instance_id: int
    kind: str
    type: str
    reason: str
    count: int
    first_at: datetime
    last_at: datetime


async def add(tx: Transaction, rows: Sequence[IgnoredMessage]) -> None:
    """Adds the counts to what is there. Beyond 100 distinct notes of an instance, new ones are dropped."""
    merged = _merged(rows)
    present = await _present(tx, merged)
    room = Counter({owner: NOTES_PER_INSTANCE - len(known) for owner, known in present.items()})
    values = []
    for key, note in sorted(merged.items()):
        owner = key[:2]
        new = key not in present[owner]
        if not new or room[owner] > 0:
            values.append((*key, note.count, note.first_at, note.last_at))
            room[owner] -= new
    if values:
        await tx.dialect.increment(tx, _INSERT, values)


async def listing(connection: Connection, saga: str, id: int) -> list[IgnoredMessage]:
    """The notes of an instance, the oldest first."""
    table = saga_notes.c
    columns = (*(table[name] for name in _KEY), table.count, table.first_at, table.last_at)
    query = select(*columns).where(table.saga == saga, table.instance_id == id).order_by(table.first_at, table.id)
    return [IgnoredMessage(*row) for row in await connection.execute(query)]


def _merged(rows: Iterable[IgnoredMessage]) -> dict[Key, IgnoredMessage]:
    merged: dict[Key, IgnoredMessage] = {}
    for row in rows:
        key = row.saga, row.instance_id, row.kind, cleaned(row.type, _LENGTH), cleaned(row.reason, _LENGTH)
        before = merged.get(key)
        merged[key] = row if before is None else _sum(before, row)
    return merged


def _sum(one: IgnoredMessage, other: IgnoredMessage) -> IgnoredMessage:
    return replace(
        one,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


async def _present(tx: Transaction, keys: Iterable[Key]) -> dict[tuple[str, int], set[Key]]:
    wanted: dict[str, set[int]] = defaultdict(set)
    for saga, instance_id, *_ in keys:
        wanted[saga].add(instance_id)
    found: dict[tuple[str, int], set[Key]] = {(saga, id): set() for saga, ids in wanted.items() for id in ids}
    table = saga_notes.c
    for saga, ids in wanted.items():
        query = select(*(table[name] for name in _KEY)).where(
            table.saga == saga, tx.dialect.among(table.instance_id, sorted(ids))
        )
        for row in await tx.execute(query):
            found[row.saga, row.instance_id].add((row.saga, row.instance_id, row.kind, row.type, row.reason))
    return found
