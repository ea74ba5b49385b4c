"""Command queues: how far each has been begun over all nodes, and bursts of timeouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import select, update

from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import command_queues

TIMEOUT_BURST_SIZE: Final = 10
"""So many steps of one queue that time out within `TIMEOUT_BURST_WINDOW` are a burst: its workers are too few,
or are lost.
"""
TIMEOUT_BURST_WINDOW: Final = timedelta(seconds=60)
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSERT: Final = BulkInsert(command_queues, ("queue", "begun_sent_at", "expired"), key=("queue",))


@dataclass(frozen=True, slots=True)
class TimeoutBurst:
    """So many steps of a queue timed out within a minute, the last of them `at`."""

    queue: str
    count: int
    at: datetime


async def begun_to(connection: Connection, queues: Sequence[str]) -> dict[str, datetime]:
    """When the latest command of each queue was sent that is known to have been begun or answered."""
    if not queues:
        return {}
    table = command_queues.c
    query = select(table.queue, table.begun_sent_at).where(table.queue.in_(sorted(queues)))
    return {row.queue: row.begun_sent_at for row in await connection.execute(query)}


async def advance(tx: Transaction, begun: Mapping[str, datetime]) -> None:
    """Notes how far queues have been begun; what is there and later stays."""
    if not begun:
        return
    await _make(tx, sorted(begun))
    table = command_queues
    for queue, at in sorted(begun.items()):
        further = update(table).where(table.c.queue == queue, table.c.begun_sent_at < at)
        await tx.execute(further.values(begun_sent_at=at))


async def expired(tx: Transaction, counts: Mapping[str, int]) -> list[TimeoutBurst]:
    """Counts steps that timed out, by the queues of their commands; the bursts that begin with these."""
    if not counts:
        return []
    await _make(tx, sorted(counts))
    table, now, bursts = command_queues, tx.now(), []
    rows = select(table.c.queue, table.c.expired, table.c.expired_since).where(table.c.queue.in_(sorted(counts)))
    for queue, before, since in list(await tx.execute(rows.order_by(table.c.queue).with_for_update())):
        goes_on = since is not None and since > now - TIMEOUT_BURST_WINDOW
        count = counts[queue] + (before if goes_on else 0)
        values = {"expired": count, "expired_since": since if goes_on else now}
        if count >= TIMEOUT_BURST_SIZE:
            values |= {"wave": count, "wave_at": now}
            bursts += [TimeoutBurst(queue, count, now)] if not goes_on or before < TIMEOUT_BURST_SIZE else []
        await tx.execute(update(table).where(table.c.queue == queue).values(values))
    return bursts


async def recent_bursts(connection: Connection, timeout_s: timedelta) -> list[TimeoutBurst]:
    """The bursts of the time `timeout_s` before now, by queue."""
    table = command_queues.c
    query = select(table.queue, table.wave, table.wave_at).where(table.wave_at > connection.now() - timeout_s)
    return [TimeoutBurst(*row) for row in await connection.execute(query.order_by(table.queue))]


async def _make(tx: Transaction, queues: Sequence[str]) -> None:
    await tx.dialect.insert_absent(tx, _INSERT, [(queue, _NEVER, 0) for queue in queues])
