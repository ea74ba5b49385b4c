"""Write probes: one row a process, which it changes to prove that the database takes writes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import delete, or_, select, update

from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.tables import write_probes

RETENTION_S: Final = 3600.0
"""Seconds after which the row of a process that writes no more is removed."""
_PRUNE_BATCH_ROWS: Final = 100


async def write(tx: Transaction, name: str) -> None:
    """Writes the row of the process of that name. Raises the database's error where it takes none."""
    now = tx.dialect.clock(tx.now())
    mine = update(write_probes).where(write_probes.c.name == name).values(at=now)
    if (await tx.execute(mine)).rowcount == 0:
        await tx.dialect.insert_one(tx, write_probes, {"name": name, "at": now})


async def prune(tx: Transaction, kept_s: float = RETENTION_S) -> None:
    """Removes rows of processes that have ended: not written for `kept_s` seconds, or before the clock was set back."""
    table, now, kept = write_probes.c, tx.now(), timedelta(seconds=kept_s)
    query = select(table.name).where(or_(table.at < now - kept, table.at > now + kept)).order_by(table.name)
    names = list((await tx.execute(query.limit(_PRUNE_BATCH_ROWS).with_for_update(skip_locked=True))).scalars())
    if names:
        await tx.execute(delete(write_probes).where(tx.dialect.among(table.name, names)))


async def try_once(database: Database, name: str) -> None:
    """Writes a row and removes it again, for a process that does not stay. Raises `Unavailable`."""

    async def work(tx: Transaction) -> None:
        await write(tx, name)
        await tx.execute(delete(write_probes).where(write_probes.c.name == name))

    await database.run(work)
