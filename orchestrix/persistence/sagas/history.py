"""Saga history: what has happened to an instance, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import select

from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.dialects.port import Row
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.storable_text import cleaned
from orchestrix.saga.state import StateChange

_FIELDS: Final = (
    "version",
    "from_state",
    "to_state",
    "reason",
    "actor",
    "correlation_id",
    "caused_by",
    "command_id",
    "at",
)
_CAUSED_BY: Final = 255


async def insert(tx: Transaction, pair: SagaTables, rows: Sequence[tuple[int, StateChange]]) -> None:
    """Inserts rows of (instance id, change); raises `ConflictError` if a version of an instance is there already."""
    bulk, values = additions(pair, rows)
    if values:
        await tx.dialect.insert(tx, bulk, values)


def additions(pair: SagaTables, rows: Sequence[tuple[int, StateChange]]) -> tuple[BulkInsert, list[Row]]:
    """What `insert` does, for those who do more with it at once."""
    return _insert(pair), [_values(id, change) for id, change in sorted(rows, key=lambda row: (row[0], row[1].version))]


async def listing(
    connection: Connection, pair: SagaTables, id: int, after_version: int, limit: int
) -> list[StateChange]:
    """Up to `limit` changes of an instance behind `after_version`, the oldest first."""
    table = pair.history
    query = select(*(table.c[name] for name in _FIELDS)).where(
        table.c[pair.owner] == id, table.c.version > after_version
    )
    return [StateChange(*row) for row in await connection.execute(query.order_by(table.c.version).limit(limit))]


def _values(id: int, change: StateChange) -> tuple[Any, ...]:
    caused_by = cleaned(change.caused_by, _CAUSED_BY) if change.caused_by is not None else None
    return (
        id,
        change.version,
        change.from_state,
        change.to_state,
        cleaned(change.reason),
        change.actor,
        change.correlation_id,
        caused_by,
        change.command_id,
        change.at,
    )


@cache
def _insert(pair: SagaTables) -> BulkInsert:
    return BulkInsert(pair.history, (pair.owner, *_FIELDS))
