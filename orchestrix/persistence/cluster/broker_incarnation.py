"""Broker incarnation: the id of the broker's data as the database knows it; another one after their loss."""

from __future__ import annotations

import math
from typing import Final

from sqlalchemy import select, update

from orchestrix.domain.stored_times import age_s
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import broker_incarnation

_ONLY: Final = 1


async def read(connection: Connection) -> str | None:
    """The broker's incarnation as the last node found it; None before the first."""
    query = select(broker_incarnation.c.incarnation).where(broker_incarnation.c.id == _ONLY)
    return (await connection.execute(query)).scalar_one_or_none()


async def replace(tx: Transaction, old: str | None, new: str) -> bool:
    """Replaces `old` by `new`; False if another node was first."""
    values = {"incarnation": new, "changed_at": tx.now()}
    if old is None:
        return await tx.dialect.insert_one(tx, broker_incarnation, {"id": _ONLY, **values})
    table = broker_incarnation.c
    known = update(broker_incarnation).where(table.id == _ONLY, table.incarnation == old)
    return (await tx.execute(known.values(values))).rowcount == 1


async def age(connection: Connection) -> float:
    """Seconds since the row was changed or touched, by the database's clock; infinite without one (see `age_s`)."""
    table = broker_incarnation.c
    query = select(table.changed_at, connection.dialect.clock(connection.now())).where(table.id == _ONLY)
    found = (await connection.execute(query)).first()
    return age_s(found[0], found[1]) if found else math.inf


async def touch(tx: Transaction, marker: str) -> bool:
    """Notes that the node which wrote `marker` is still alive; False if another one has taken over."""
    table = broker_incarnation.c
    known = update(broker_incarnation).where(table.id == _ONLY, table.incarnation == marker)
    return (await tx.execute(known.values(changed_at=tx.now()))).rowcount == 1
