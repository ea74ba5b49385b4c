"""Redelivered commands: those that came back from workers that died, how often, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import and_, delete, select, update

from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.sagas.stuck_filter import WORKER_WAIT_REASONS
from orchestrix.persistence.tables import suspects

SET_ASIDE_PREFIX: Final = "it waits"
"""How `place` begins for a command that was set aside and is in its queue once more."""
_FIELDS = ("command_id", "queue", "saga", "instance_id", "deaths", "place")


@dataclass(frozen=True, slots=True)
class RedeliveryRecord:
    """A command, the number of workers that died while handling it, and its `place`: a part of a sentence."""

    command_id: str
    queue: str
    saga: str
    instance_id: int
    deaths: int
    place: str


async def put(tx: Transaction, suspect: RedeliveryRecord) -> None:
    """Stores the record of a command, in place of the former one."""
    row = {**asdict(suspect), "place": suspect.place[:200], "noted_at": tx.now()}
    known = update(suspects).where(suspects.c.command_id == suspect.command_id)
    if (await tx.execute(known.values(row))).rowcount == 0:
        await tx.dialect.insert_one(tx, suspects, row)


async def of_command(connection: Connection, command_id: str) -> RedeliveryRecord | None:
    """The record of a command; None where workers have died with it less than three times."""
    table = suspects.c
    query = select(*(table[name] for name in _FIELDS)).where(table.command_id == command_id)
    row = (await connection.execute(query)).first()
    return RedeliveryRecord(*row) if row is not None else None


async def several(connection: Connection, command_ids: Sequence[str]) -> dict[str, RedeliveryRecord]:
    """The records of these commands, as in `of_command`."""
    if not command_ids:
        return {}
    table = suspects.c
    query = select(*(table[name] for name in _FIELDS)).where(connection.dialect.among(table.command_id, command_ids))
    return {row.command_id: RedeliveryRecord(*row) for row in await connection.execute(query)}


async def set_aside(connection: Connection, command_ids: Sequence[str]) -> dict[str, datetime]:
    """When it was last noted of each of these commands that it was set aside; the others are left out."""
    if not command_ids:
        return {}
    table = suspects.c
    query = select(table.command_id, table.noted_at).where(table.command_id.in_(sorted(command_ids)))
    return {
        row.command_id: row.noted_at
        for row in await connection.execute(query.where(table.place.startswith(SET_ASIDE_PREFIX)))
    }


async def page(connection: Connection, limit: int) -> Sequence[RedeliveryRecord]:
    """The latest ones, also of commands that have been answered since."""
    table = suspects.c
    query = select(*(table[name] for name in _FIELDS)).order_by(table.noted_at.desc()).limit(limit)
    return [RedeliveryRecord(*row) for row in await connection.execute(query)]


async def waited_for(connection: Connection, pair: SagaTables, limit: int) -> list[tuple[str, int]]:
    """Up to `limit` instances of these tables that wait for such a command: their sagas and ids."""
    table = pair.instances.c
    same = suspects.c.saga == (pair.saga or pair.instances.c.saga)
    known = suspects.join(pair.instances, and_(table.id == suspects.c.instance_id, same))
    query = select(suspects.c.saga, table.id).select_from(known).where(table.command_id == suspects.c.command_id)
    waiting = table.blocker.is_(None), table.wake_reason.in_(WORKER_WAIT_REASONS)
    found = await connection.execute(query.where(*waiting).order_by(suspects.c.noted_at.desc()).limit(limit))
    return [(row[0], row[1]) for row in found]


async def purge(tx: Transaction, older_than_s: float, limit: int) -> int:
    """Deletes up to `limit` records that were not changed for so many seconds; how many."""
    table = suspects.c
    before = tx.now() - timedelta(seconds=older_than_s)
    old = select(table.command_id).where(table.noted_at < before).limit(limit)
    ids = [row.command_id for row in await tx.execute(old)]
    if ids:
        await tx.execute(delete(suspects).where(table.command_id.in_(ids)))
    return len(ids)
