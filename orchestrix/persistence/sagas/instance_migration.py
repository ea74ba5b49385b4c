"""Instance migration: finds and writes the instances that are moved to another version of their saga."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from sqlalchemy import select

from orchestrix.persistence.dialects import BulkUpdate
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.tables import held_events
from orchestrix.saga.definition import TERMINAL
from orchestrix.saga.state import Instance, StateChange

_CHANGED: Final = (
    "state",
    "version",
    "definition_version",
    "command_id",
    "attempt",
    "wake_at",
    "updated_at",
)


async def below(
    connection: Connection, pair: SagaTables, saga: str, version: int, after_id: int, limit: int
) -> list[int]:
    """The ids of up to `limit` live instances of versions before `version`, from behind `after_id`."""
    table = pair.instances.c
    of_saga = [] if pair.saga else [table.saga == saga]
    query = select(table.id).where(table.id > after_id, table.definition_version < version, *of_saga)
    query = query.where(table.state.not_in(sorted(TERMINAL))).order_by(table.id).limit(limit)
    return list((await connection.execute(query)).scalars())


async def read(
    connection: Connection, pair: SagaTables, saga: str, ids: Sequence[int]
) -> tuple[list[Instance], set[int]]:
    """The instances as they are, by id, and the ids of those that have held events."""
    found = await instances.guard(connection, pair, ids)
    table = held_events.c
    query = select(table.instance_id).where(
        table.saga == saga, connection.dialect.among(table.instance_id, sorted(ids))
    )
    held = set((await connection.execute(query)).scalars()) if ids else set()
    return [found[id] for id in sorted(found)], held


async def write(
    tx: Transaction, pair: SagaTables, moved: Sequence[tuple[int, Instance]], changes: Iterable[tuple[int, StateChange]]
) -> set[int]:
    """Compare-and-set of (version before, instance from now on) with the history; the ids still at that version.

    If it is not all of them, the transaction must end.
    """
    if not moved:
        return set()
    rows = [
        (one.id, before, *(getattr(one, name) for name in _CHANGED), one.progress.to_json())
        for before, one in sorted(moved, key=lambda pair: pair[1].id)
    ]
    return await tx.dialect.update_and_insert(tx, (_update(pair), rows), [history.additions(pair, list(changes))])


@cache
def _update(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(pair.instances, match=("id", "version"), change=(*_CHANGED, "progress"))
