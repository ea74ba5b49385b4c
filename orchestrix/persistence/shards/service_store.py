"""Shard service store: reads the whole state of a service, and stores what a transition has changed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from orchestrix.domain.shards.generations import Generation, GenerationState
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.state import ShardService, free_shards
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.shards import assignments, generations, services, workers
from orchestrix.persistence.shards.services import ShardServiceRow


@dataclass(frozen=True, slots=True)
class StoredService:
    """A service as it was read: its state, the version of that, and the id of each process's row for signs of life."""

    state: ShardService
    version: int
    ids: Mapping[Process, int]


async def lock(tx: Transaction, name: str) -> StoredService | None:
    """The service, locked until the transaction ends, also against signs of life; None if there is none."""
    row = await services.lock(tx, name)
    return await _load(tx, row, lock=True) if row is not None else None


async def read(connection: Connection, name: str) -> StoredService | None:
    """The service, for a node's memory or a view.

    Each statement sees what is committed when it starts; a change in between is found by its version, so that the state
    is read again.
    """
    while rows := await services.get(connection, [name]):
        found = await _load(connection, rows[0], lock=False)
        if [found.version] == [row.version for row in await services.get(connection, [name])]:
            return found
    return None


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


async def _load(connection: Connection, row: ShardServiceRow, *, lock: bool) -> StoredService:
    found = await workers.load(connection, row.name, await assignments.load(connection, row.name), lock=lock)
    live = (await generations.load(connection, [row.name])).get(row.name, [])
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
