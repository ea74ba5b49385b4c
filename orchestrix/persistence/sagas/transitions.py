"""Transitions: writes the instances, history and outbox rows of a batch of sagas at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.state import Instance, StateChange


@dataclass(frozen=True, slots=True)
class OutboxBatch:
    """Rows for the outbox. No other node may take them for `lease_s` seconds if `claimed_by` is given."""

    rows: Sequence[OutboxRow]
    claimed_by: str | None = None
    lease_s: float = 0.0


async def write(
    tx: Transaction,
    pair: SagaTables,
    changed: Sequence[tuple[int, Instance]],
    changes: Sequence[tuple[int, StateChange]],
    *owed: OutboxBatch,
) -> set[int]:
    """`instances.update`, `history.insert` and `outbox.insert` in one, because each costs a round trip.

    The ids of those that were still at their version before; if it is not all of `changed`, the transaction must end.
    """
    messages = [row for one in owed for row in outbox.additions(tx, one.rows, one.claimed_by, one.lease_s)[1]]
    inserts = [part for part in (history.additions(pair, changes), (outbox.INSERT, messages)) if part[1]]
    update = instances.changes(pair, changed) if changed else None
    return await tx.dialect.update_and_insert(tx, update, inserts) if update or inserts else set()
