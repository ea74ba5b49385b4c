"""Executor groups: the group of executors of each app."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from orchestrix.errors import Contention
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import job_group

AUTO = 0
"""The addresses come from the registry (S2); 1 would be a list kept by hand."""


@dataclass(frozen=True, slots=True)
class ExecutorGroup:
    """The executors of one app. `marker` names the saga step that made the group; None if a person did."""

    id: int
    app_name: str
    address_type: int
    address_list: str
    marker: str | None
    created_at: datetime
    updated_at: datetime


async def insert_if_absent(tx: Transaction, app_name: str, marker: str, now: datetime) -> ExecutorGroup:
    """The app's group as it is now: new with `marker`, or the one that was there with the marker that it has.

    Raises `Contention` if that one was deleted meanwhile.
    """
    row = {
        "app_name": app_name,
        "address_type": AUTO,
        "address_list": "",
        "marker": marker,
        "created_at": now,
        "updated_at": now,
    }
    await tx.dialect.insert_one(tx, job_group, row)
    found = await get(tx, app_name)
    if found is None:
        raise Contention(f"the group {app_name!r} was deleted meanwhile")
    return found


async def delete_marked(tx: Transaction, app_name: str, marker: str) -> bool:
    """Deletes the app's group if it has that marker; whether it did."""
    table = job_group.c
    found = await tx.execute(delete(job_group).where(table.app_name == app_name, table.marker == marker))
    return found.rowcount > 0


async def get(connection: Connection, app_name: str) -> ExecutorGroup | None:
    """The group of an app."""
    table = job_group.c
    query = select(*(table[name] for name in ExecutorGroup.__slots__)).where(table.app_name == app_name)
    row = (await connection.execute(query)).first()
    return ExecutorGroup(*row) if row else None
