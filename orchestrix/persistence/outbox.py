"""Outbox: the messages that are still to be published, and which node has claimed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.sql import ColumnElement

from .dialects import BulkInsert
from .dialects.port import Row
from .engine import Connection, Transaction
from .tables import outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """One message to publish. `id` is its message id; (`version`, `n`) is its order among those of its instance.

    `topology` may name queues to declare before it is sent. The last fields are for the outbox alone: `claimed_by` is
    the last node that claimed the row, whether its claim still holds or not, and `former_claimer` the one before it.
    """

    id: str
    saga: str
    instance_id: int
    version: int
    n: int
    exchange: str
    routing_key: str
    type: str
    correlation_id: str
    body: bytes
    timeout_ms: int
    created_at: datetime
    traceparent: str | None = None
    tracestate: str | None = None
    topology: Any = None
    claimed_by: str | None = None
    claimed_until: datetime | None = None
    parked_reason: str | None = None
    former_claimer: str | None = field(default=None, compare=False)


_FIELDS: Final = tuple(one.name for one in fields(OutboxRow))[:-1]
_MESSAGE: Final = attrgetter(*_FIELDS[:-3])
"""The fields in front of the three columns that are the outbox's own."""

INSERT: Final = BulkInsert(outbox, _FIELDS, key=("id",))
_ROW: Final = select(*(outbox.c[name] for name in _FIELDS))


async def insert(tx: Transaction, rows: Sequence[OutboxRow], claimed_by: str | None, lease_s: float) -> None:
    """Inserts the rows whose id is not there; the others stay as they are.

    No other node may take them for `lease_s` seconds if `claimed_by` is given; else any node may at once.
    """
    bulk, values = additions(tx, rows, claimed_by, lease_s)
    if values:
        await tx.dialect.insert_absent(tx, bulk, values)


def additions(
    tx: Transaction, rows: Sequence[OutboxRow], claimed_by: str | None, lease_s: float
) -> tuple[BulkInsert, list[Row]]:
    """What `insert` does, for those who do more with it at once."""
    until = tx.now() + timedelta(seconds=lease_s) if claimed_by is not None else _free(tx)
    unique = {row.id: row for row in reversed(rows)}
    return INSERT, [(*_MESSAGE(unique[id]), claimed_by, until, None) for id in sorted(unique)]


async def claim(tx: Transaction, node: str, lease_s: float, limit: int) -> list[OutboxRow]:
    """Claims for `lease_s` seconds up to `limit` rows whose claim has run out by the database's clock.

    Only the first row of an instance can be claimed, so that no message overtakes an older one of its saga. The rows
    come in the order in which they were made.
    """
    table = outbox.c
    query = _ROW.where(table.claimed_until <= tx.dialect.clock(tx.now()), table.parked_reason.is_(None), _first())
    # By time alone: a batch has one time for all, and sorting within it would read it whole for every claim.
    query = query.order_by(table.claimed_until).limit(limit).with_for_update(skip_locked=True)
    locked = await tx.dialect.heads(tx, outbox, (await tx.execute(query)).all())
    until = tx.now() + timedelta(seconds=lease_s)
    claimed = [
        replace(_row(found), claimed_by=node, claimed_until=until, former_claimer=found.claimed_by) for found in locked
    ]
    await _set(tx, [row.id for row in claimed], claimed_by=node, claimed_until=until)
    return sorted(claimed, key=lambda row: row.id)


async def delete(tx: Transaction, ids: Sequence[str], claimed_by: str | None = None) -> None:
    """Removes rows that the broker has confirmed; only those that `claimed_by` was the last to claim, if it is given.

    A row that was written again meanwhile under the same id is another one, which is still to be sent.
    """
    if ids:
        mine = [outbox.c.claimed_by == claimed_by] if claimed_by is not None else []
        await tx.execute(delete_from(outbox).where(tx.dialect.among(outbox.c.id, sorted(set(ids))), *mine))


async def replace_all(tx: Transaction, rows: Sequence[OutboxRow]) -> None:
    """Writes rows that are to be sent whatever became of earlier ones under their ids; any node may take them."""
    await delete(tx, [row.id for row in rows])
    await insert(tx, rows, claimed_by=None, lease_s=0.0)


async def withdraw(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """Removes rows that need not be sent any more; the ids of those that no node has ever claimed.

    A row that a node may be sending now stays, so that the next one of its saga does not overtake it. Waits for whoever
    holds the rows up to the limit on locks, then raises `Contention`.
    """
    if not ids:
        return set()
    which = tx.dialect.among(outbox.c.id, sorted(set(ids)))
    clock = tx.dialect.clock(tx.now())
    query = select(outbox.c.id, outbox.c.claimed_by).where(which, outbox.c.claimed_until <= clock)
    found = (await tx.execute(query.order_by(outbox.c.id).with_for_update())).all()
    await delete(tx, [row.id for row in found])
    return {row.id for row in found if row.claimed_by is None}


async def release(tx: Transaction, ids: Sequence[str]) -> None:
    """Ends the claims on rows now: any node may take them. `claimed_by` stays."""
    await _set(tx, ids, claimed_until=_free(tx))


async def park(tx: Transaction, id: str, reason: str) -> None:
    """Parks a row that cannot be sent; it keeps blocking its own instance."""
    await _set(tx, [id], claimed_until=_free(tx), parked_reason=reason)


async def unpark(tx: Transaction, ids: Sequence[str]) -> None:
    """Lets rows that were parked be tried again: any node may take them now."""
    await _set(tx, ids, claimed_until=_free(tx), parked_reason=None)


async def of_instance(connection: Connection, saga: str, id: int) -> list[OutboxRow]:
    """The unsent messages of an instance, in order."""
    table = outbox.c
    query = _ROW.where(table.saga == saga, table.instance_id == id).order_by(table.version, table.n)
    return [_row(found) for found in await connection.execute(query)]


async def several(connection: Connection, ids: Sequence[str]) -> dict[str, OutboxRow]:
    """The unsent messages among these, by id."""
    if not ids:
        return {}
    query = _ROW.where(connection.dialect.among(outbox.c.id, sorted(set(ids))))
    return {row.id: row for row in map(_row, await connection.execute(query))}


async def still_stored(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Which of the ids are still in the outbox."""
    if not ids:
        return set()
    query = select(outbox.c.id).where(connection.dialect.among(outbox.c.id, sorted(set(ids))))
    return set((await connection.execute(query)).scalars())


async def next_claim(connection: Connection) -> float | None:
    """Seconds until the next row can be claimed by the database's clock, negative if it can be; None without any."""
    table = outbox.c
    clock = connection.dialect.clock(connection.now())
    query = select(table.claimed_until, clock).where(table.parked_reason.is_(None), _first())
    found = (await connection.execute(query.order_by(table.claimed_until).limit(1))).first()
    return (found[0] - found[1]).total_seconds() if found else None


async def pending(connection: Connection) -> int:
    """How many rows are in the outbox, parked ones too."""
    return int((await connection.execute(select(func.count()).select_from(outbox))).scalar_one())


def _free(tx: Transaction) -> datetime:
    """A time that has passed, although `now` is only an estimate of the clock that decides about claims."""
    return tx.now() - timedelta(seconds=1)


@cache
def _first() -> ColumnElement[bool]:
    """Whether no row of the same instance stands before this one."""
    older, row = outbox.alias("older"), outbox
    same = and_(older.c.saga == row.c.saga, older.c.instance_id == row.c.instance_id)
    before = or_(older.c.version < row.c.version, and_(older.c.version == row.c.version, older.c.n < row.c.n))
    return ~select(older.c.id).where(same, before).exists()


async def _set(tx: Transaction, ids: Sequence[str], **values: Any) -> None:
    if ids:
        await tx.execute(update(outbox).where(tx.dialect.among(outbox.c.id, sorted(set(ids)))).values(values))


def _row(found: Any) -> OutboxRow:
    return OutboxRow(**found._mapping)
