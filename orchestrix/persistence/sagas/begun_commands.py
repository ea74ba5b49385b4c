"""Begun commands: which commands of instances have begun, and when their time ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from orchestrix.persistence.dialects import BulkUpdate
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.state import DEADLINE, JOB, RETRY


@dataclass(frozen=True, slots=True)
class BegunCommand:
    """The command in flight of an instance, which is still at `version`, has begun: its time ends at `wake_at`."""

    id: int
    version: int
    command_id: str
    wake_at: datetime
    wait_ms: int
    begun_at: datetime | None = None


async def note(tx: Transaction, pair: SagaTables, rows: Sequence[BegunCommand]) -> set[int]:
    """Notes that these have begun, and wakes them when their time ends; the ids of those that were still so.

    Not those that a person holds, that wait for their next try or for a job, or that have ended. Not in the history.
    """
    values = [
        (row.id, row.version, row.command_id, row.wake_at, DEADLINE, row.wait_ms, None, row.begun_at)
        for row in sorted(rows, key=lambda row: row.id)
    ]
    return await tx.dialect.update(tx, _update(pair), values) if values else set()


@cache
def _update(pair: SagaTables) -> BulkUpdate:
    return BulkUpdate(
        pair.instances,
        match=("id", "version"),
        change=("begun_id", "wake_at", "wake_reason", "wait_ms", "hindered_by", "begun_at"),
        guard=f"blocker IS NULL AND wake_at IS NOT NULL AND wake_reason NOT IN ('{RETRY}', '{JOB}')",
    )
