"""Shard services: the row of each service, whose lock decides the order of all changes to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, delete, func, select, update

from orchestrix.domain.shards.state import ShardService
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import generations, shard_services, shard_workers

PRUNED: Final = ""
"""The name of the row that keeps the highest number that was given out for a service that is pruned. No service can
have that name, and no query for services finds it."""
PRUNED_AT_ONCE: Final = 100
_COLUMNS: Final = ("name", "shard_count", "members", "revision", "counter", "number", "version")


@dataclass(frozen=True, slots=True)
class ShardServiceRow:
    """A row of `shard_services`. `version` rises whenever anything of the service but signs of life is stored."""

    name: str
    shard_count: int
    members: int
    revision: int
    counter: int
    number: int
    version: int


async def insert_if_absent(tx: Transaction, name: str, shard_count: int, now: datetime) -> bool:
    """Makes a service without members; False where there is one of that name, which stays as it is.

    Its numbers begin above those of all that were pruned: a former member of one of that name may still wake up, and
    stores of the user's own know its former epochs.
    """
    if not await _insert(tx, name, shard_count, now):
        return False
    # Only now: the insert has waited for whoever was pruning a service of that name.
    floor = (await tx.execute(select(shard_services.c.counter).where(shard_services.c.name == PRUNED))).scalar()
    if floor:
        values = {"counter": floor, "number": floor}
        await tx.execute(update(shard_services).where(shard_services.c.name == name).values(values))
    return True


async def _insert(tx: Transaction, name: str, shard_count: int, now: datetime) -> bool:
    row = dict.fromkeys(("members", "revision", "counter", "number", "version"), 0)
    times = {"created_at": now, "updated_at": now}
    return await tx.dialect.insert_one(tx, shard_services, {"name": name, "shard_count": shard_count, **row, **times})


async def prune(tx: Transaction, before: datetime, limit: int = PRUNED_AT_ONCE) -> int:
    """Deletes all that is stored of services which have had no members, and no other change, since `before`; how many.

    New services begin above their numbers: see `insert_if_absent`.
    """
    table = shard_services.c
    empty = select(table.name, table.counter, table.number).where(
        table.name != PRUNED, table.members == 0, table.updated_at < before
    )
    rows = (await tx.execute(empty.order_by(table.name).limit(limit).with_for_update(skip_locked=True))).all()
    if not rows:
        return 0
    await _raise_lowest_number(tx, max(max(row.counter, row.number) for row in rows), before)
    names = [row.name for row in rows]
    for column in (shard_workers.c.service, generations.c.service, table.name):
        await tx.execute(delete(column.table).where(tx.dialect.among(column, names)))
    return len(rows)


async def _raise_lowest_number(tx: Transaction, number: int, now: datetime) -> None:
    await _insert(tx, PRUNED, 0, now)
    table = shard_services.c
    where = table.name == PRUNED, table.counter < number
    await tx.execute(update(shard_services).where(*where).values({"counter": number, "number": number}))


async def lock(tx: Transaction, name: str) -> ShardServiceRow | None:
    """The service, which no other transaction changes until this one ends."""
    row = (await tx.execute(_query().where(shard_services.c.name == name).with_for_update())).first()
    return ShardServiceRow(*row) if row else None


async def get(connection: Connection, names: Collection[str]) -> list[ShardServiceRow]:
    """The services of these names, by name."""
    query = _query().where(connection.dialect.among(shard_services.c.name, sorted(names)))
    return [ShardServiceRow(*row) for row in await connection.execute(query.order_by(shard_services.c.name))]


async def page(connection: Connection, after: str | None, limit: int) -> list[ShardServiceRow]:
    """So many services by name, from the first one after `after` on; also those without members."""
    query = _query() if after is None else _query().where(shard_services.c.name > after)
    return [
        ShardServiceRow(*row) for row in await connection.execute(query.order_by(shard_services.c.name).limit(limit))
    ]


async def versions(connection: Connection) -> dict[str, int]:
    """The version of each service: a node reads again those that differ from its memory."""
    table = shard_services.c
    query = select(table.name, table.version).where(table.name != PRUNED)
    return {row.name: row.version for row in await connection.execute(query)}


async def count_with_members(connection: Connection) -> int:
    """How many services have members."""
    query = select(func.count()).select_from(shard_services).where(shard_services.c.members > 0)
    return int((await connection.execute(query)).scalar_one())


async def save(tx: Transaction, after: ShardService, now: datetime) -> None:
    """Stores the counts of a service that this transaction has locked, and raises its version."""
    values = {
        "shard_count": after.shard_count,
        "members": len(after.members),
        "revision": after.revision,
        "counter": after.counter,
        "number": after.number,
        "version": shard_services.c.version + 1,
        "updated_at": now,
    }
    await tx.execute(update(shard_services).where(shard_services.c.name == after.name).values(values))


def _query() -> Select[Any]:
    return select(*(shard_services.c[name] for name in _COLUMNS))
