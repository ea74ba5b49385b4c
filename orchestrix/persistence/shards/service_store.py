"""Shard service store: reads the whole state of a service, and stores what a transition has changed of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orchestrix.domain.shards.generations import Generation, GenerationState
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.state import ShardService, free_shards
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.shards import assignments, generations, services, workers
from orchestrix.persistence.shards.services import ShardServiceRow
from orchestrix.persistence.shards.workers import StoredWorkers


@dataclass(frozen=True, slots=True)
class StoredService:
    """A service as it was read: its state, the version of that, and the id of each process's row for signs of life."""

    state: ShardService
    version: int
    ids: Mapping[Process, int]


READ_AT_ONCE: Final = 50
"""Services that are read by the same statements."""


async def lock(tx: Transaction, name: str) -> StoredService | None:
    """The service, locked until the transaction ends, also against signs of life; None if there is none."""
    row = await services.lock(tx, name)
    return (await _load(tx, [row], lock=True))[0] if row is not None else None


async def read(connection: Connection, name: str) -> StoredService | None:
    """The service, for a node's memory or a view."""
    return (await read_all(connection, [name])).get(name)


async def read_all(connection: Connection, names: Iterable[str]) -> dict[str, StoredService]:
    """These services, as far as they exist, in few statements.

    Each statement sees what is committed when it starts; a change in between is found by its version, so that such a
    service is read again.
    """
    left, found = sorted(names), dict[str, StoredService]()
    while left:
        batch, left = left[:READ_AT_ONCE], left[READ_AT_ONCE:]
        read = await _load(connection, await services.get(connection, batch), lock=False)
        versions = {row.name: row.version for row in await services.get(connection, batch)} if read else {}
        found |= {one.state.name: one for one in read if versions.get(one.state.name) == one.version}
        left = [name for name in batch if name in versions and name not in found] + left
    return found


async def save(tx: Transaction, before: ShardService, after: ShardService, now: datetime) -> None:
    """Stores the difference between two states of a service that this transaction has locked.

    Raises `ConflictError` where a generation is not as it was.
    """
    if after == before:
        return
    await generations.save(tx, before, after, now)
    await assignments.save(tx, before, after)
    await workers.save(tx, before, after)
    await services.save(tx, after, now)


async def _load(connection: Connection, rows: Collection[ShardServiceRow], *, lock: bool) -> list[StoredService]:
    names = [row.name for row in rows]
    if not names:
        return []
    found = await workers.load(connection, names, await assignments.load(connection, names), lock=lock)
    live = await generations.load(connection, names)
    return [_stored(row, found.get(row.name, StoredWorkers()), live.get(row.name, [])) for row in rows]


def _stored(row: ShardServiceRow, found: StoredWorkers, live: list[Generation]) -> StoredService:
    active = _in_state(live, GenerationState.ACTIVE)
    state = ShardService(
        name=row.name,
        shard_count=row.shard_count,
        revision=row.revision,
        counter=row.counter,
        number=row.number,
        members=found.members,
        successors=found.successors,
        departures=found.departures,
        active=active,
        pending=_in_state(live, GenerationState.PENDING),
        free=free_shards(active, found.members),
    )
    return StoredService(state, row.version, found.ids)


def _in_state(live: list[Generation], state: GenerationState) -> Generation | None:
    return next((one for one in live if one.state is state), None)
