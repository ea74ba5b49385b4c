"""Suspicions: a row for each executor that did not answer a node, by that node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import delete, select

from orchestrix.domain.registry.suspicion import Suspicion
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import executor_suspicions

_KEY: Final = ("registry_key", "registry_value", "node")
_UPSERT: Final = BulkInsert(executor_suspicions, (*_KEY, "since", "probed_at"), key=_KEY)


async def record(tx: Transaction, suspicions: Sequence[Suspicion]) -> None:
    """Inserts these suspicions, or notes that they were repeated; since when they are stays as it is."""
    ordered = sorted(suspicions, key=lambda one: (*one.executor, one.node))
    rows = [(*one.executor, one.node, one.since, one.probed_at) for one in ordered]
    if rows:
        await tx.dialect.upsert(tx, _UPSERT, rows, ["probed_at"])


async def listed(connection: Connection, apps: Sequence[str] | None = None) -> list[Suspicion]:
    """All suspicions, or those of some apps, in an order that stays."""
    table = executor_suspicions.c
    query = select(table.registry_key, table.registry_value, table.node, table.since, table.probed_at)
    if apps is not None:
        query = query.where(connection.dialect.among(table.registry_key, apps))
    found = await connection.execute(query.order_by(table.registry_key, table.registry_value, table.node))
    return [Suspicion(*row) for row in found]


async def end(tx: Transaction, over: Sequence[Suspicion]) -> None:
    """These have ended, as they were read: one that has begun again meanwhile stays."""
    table = executor_suspicions.c
    for one in sorted(over, key=lambda one: (*one.executor, one.node)):
        same = table.registry_key == one.app, table.registry_value == one.address, table.node == one.node
        await tx.execute(delete(executor_suspicions).where(*same, table.since == one.since))


async def prune(tx: Transaction, before: datetime) -> None:
    """Deletes what its node has not repeated since `before`."""
    await tx.execute(delete(executor_suspicions).where(executor_suspicions.c.probed_at < before))
