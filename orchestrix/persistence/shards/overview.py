"""Shard overview: how the services are, read for many of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrix.domain.shards.diagnosis import UnownedShards, UnreleasedShards, unowned
from orchestrix.domain.shards.generations import Generation, GenerationState
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.shards import assignments, generations, services, workers
from orchestrix.persistence.shards.generations import GenerationRecord
from orchestrix.persistence.shards.services import ShardServiceRow


@dataclass(frozen=True, slots=True)
class ServiceOverview:
    """A service as a whole. `members` has those that are `away` too; `waiting` are second processes under their ids."""

    name: str
    shard_count: int
    members: int
    away: int
    waiting: int
    active: GenerationRecord | None
    pending: GenerationRecord | None
    unowned: UnownedShards | None
    unreleased: Sequence[UnreleasedShards] = ()


async def page(connection: Connection, after: str | None, limit: int) -> list[ServiceOverview]:
    """So many services by name, from the first one after `after` on.

    Takes five statements, and two more where a service has shards without a member. Each one sees what is committed
    when it starts: of a service that changes meanwhile some may be of before.
    """
    rows = await services.page(connection, after, limit)
    return await _overviews(connection, rows) if rows else []


async def _overviews(connection: Connection, rows: Sequence[ShardServiceRow]) -> list[ServiceOverview]:
    names = [row.name for row in rows]
    live = {
        name: {one.state: one for one in found} for name, found in (await generations.live(connection, names)).items()
    }
    active = {name: found[GenerationState.ACTIVE] for name, found in live.items() if GenerationState.ACTIVE in found}
    counts = await workers.counts(connection, names)
    unreleased = await workers.unreleased(connection, names, connection.now())
    free = await _free(connection, rows, active)
    unowned_ = await _unowned(connection, free)
    return [
        ServiceOverview(
            name=row.name,
            shard_count=row.shard_count,
            members=row.members,
            away=counts.get(row.name, {}).get(workers.AWAY, 0),
            waiting=counts.get(row.name, {}).get(workers.WAITING, 0),
            active=active.get(row.name),
            pending=live.get(row.name, {}).get(GenerationState.PENDING),
            unowned=unowned_.get(row.name),
            unreleased=unreleased.get(row.name, ()),
        )
        for row in rows
    ]


async def _free(
    connection: Connection, rows: Sequence[ShardServiceRow], active: Mapping[str, GenerationRecord]
) -> dict[str, ShardRanges]:
    """The shards that no member has: of a service without an active generation, all."""
    known = {name: one.shard_count for name, one in active.items()}
    found = await assignments.free(connection, known) if known else {}
    return found | {row.name: ShardRanges.up_to(row.shard_count) for row in rows if row.name not in known}


async def _unowned(connection: Connection, free: Mapping[str, ShardRanges]) -> dict[str, UnownedShards | None]:
    if not free:
        return {}
    live = await generations.load(connection, free.keys())
    absences = await workers.absences(connection, free.keys())

    def of(name: str, state: GenerationState) -> Generation | None:
        return next((one for one in live.get(name, ()) if one.state is state), None)

    return {
        name: unowned(
            shards, of(name, GenerationState.ACTIVE), of(name, GenerationState.PENDING), absences.get(name, {})
        )
        for name, shards in free.items()
    }
