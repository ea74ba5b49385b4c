"""Node listeners: the addresses on which living nodes listen, which no executor may have."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, or_, select

from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import node_listeners

Listener = tuple[str, int]
"""An IP address and a port."""

_KEY: Final = ("node", "ip", "port")
_UPSERT: Final = BulkInsert(node_listeners, (*_KEY, "seen_at"), key=_KEY)


async def record(tx: Transaction, node: str, listeners: Collection[Listener], at: datetime) -> None:
    """Notes that the node listens there."""
    rows = [(node, ip, port, at) for ip, port in sorted(listeners)]
    if rows:
        await tx.dialect.upsert(tx, _UPSERT, rows, ["seen_at"])


async def forget(tx: Transaction, node: str) -> None:
    """The node listens no more."""
    await tx.execute(delete(node_listeners).where(node_listeners.c.node == node))


async def living(connection: Connection, since: datetime) -> set[Listener]:
    """Where nodes listen that said so after `since`."""
    table = node_listeners.c
    query = select(table.ip, table.port).where(table.seen_at > since)
    return {(row.ip, row.port) for row in await connection.execute(query)}


async def prune(tx: Transaction, now: datetime, kept: timedelta) -> None:
    """Deletes what no node has said for that long."""
    table = node_listeners.c
    await tx.execute(
        delete(node_listeners).where(or_(table.seen_at < now - kept, table.seen_at > now + CLOCK_TOLERANCE))
    )
