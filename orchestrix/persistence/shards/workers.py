"""Shard workers: the row of each process of a member, of those that wait, and of those that are gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, delete, func, or_, select

from orchestrix.domain.shards.diagnosis import UnreleasedShards, unreleased_by
from orchestrix.domain.shards.grants import Grants
from orchestrix.domain.shards.members import (
    AwayReason,
    Departure,
    DepartureReason,
    Process,
    Revocation,
    ServiceMember,
)
from orchestrix.domain.shards.state import ShardService
from orchestrix.persistence.dialects import BulkInsert, BulkUpdate
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.shards.ranges import from_json, to_json
from orchestrix.persistence.tables import shard_workers

ACTIVE, AWAY, WAITING, LEFT, INACTIVE = "ACTIVE", "AWAY", "WAITING", "LEFT", "INACTIVE"
"""A member; one whose share waits for its restart; one that waits for the end of the member's process; the gone."""
_GONE: Final = {LEFT: DepartureReason.LEFT, INACTIVE: DepartureReason.INACTIVE}

_KEY: Final = ("service", "worker_id", "instance")
_CHANGED: Final = (
    *("state", "shard_count", "weight", "grace_s", "seq", "generation", "version", "answered", "reply_to", "via"),
    *("joined_at", "last_seen", "away_reason", "away_at", "revoking", "absent"),
)
_UPSERT: Final = BulkInsert(shard_workers, (*_KEY, *_CHANGED), key=_KEY)
_SIGN: Final = ("last_seen", "seq")
_NOTE: Final = BulkUpdate(
    shard_workers, match=("id", "version"), change=_SIGN, rising=_SIGN, guard=f"state = '{ACTIVE}'"
)


@dataclass(frozen=True, slots=True)
class StoredWorkers:
    """All processes of a service, as `ShardService` has them, and the id of each one's row."""

    members: dict[str, ServiceMember] = field(default_factory=dict)
    successors: dict[str, ServiceMember] = field(default_factory=dict)
    departures: dict[Process, Departure] = field(default_factory=dict)
    ids: dict[Process, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """A heartbeat that changes nothing else: `id` and `version` are those of the row as the node knows it."""

    id: int
    version: int
    seq: int


async def note(tx: Transaction, signs: Sequence[SignOfLife], now: datetime) -> set[int]:
    """Stores signs of life of any services in one statement; the ids of the rows that were still as the node knew them.

    None replaces a newer one: this process may have stood still since `now`, and a member that another node has
    answered meanwhile would seem to be silent within its lease. Only these may be answered, and only after the
    commit. Waits for rows that others have locked: a sign of life is never dropped. No row may be in it twice.
    """
    if not signs:
        return set()
    rows = [(one.id, one.version, now, one.seq) for one in sorted(signs, key=lambda one: one.id)]
    return await tx.dialect.update(tx, _NOTE, rows)


async def load(
    connection: Connection,
    services: Collection[str],
    grants: Mapping[str, Mapping[Process, Grants]],
    *,
    lock: bool = False,
) -> dict[str, StoredWorkers]:
    """The processes of these services with their grants, by service; with `lock`, no sign of life is noted until the
    transaction ends: one that was would be overwritten.
    """
    table = shard_workers.c
    query = select(shard_workers).where(connection.dialect.among(table.service, sorted(services))).order_by(table.id)
    found: dict[str, StoredWorkers] = defaultdict(StoredWorkers)
    for row in await connection.execute(query.with_for_update() if lock else query):
        _add(found[row.service], row, grants.get(row.service, {}))
    return found


def _add(found: StoredWorkers, row: Row[Any], grants: Mapping[Process, Grants]) -> None:
    process = row.worker_id, row.instance or None
    found.ids[process] = row.id
    if row.state in _GONE:
        found.departures[process] = Departure(*process, _GONE[row.state], row.away_at or row.last_seen)
    elif row.state == WAITING:
        found.successors[row.worker_id] = _member(row, ())
    else:
        found.members[row.worker_id] = member = _member(row, grants.get(process, ()))
        if member.away is AwayReason.LEFT:  # its one row says both
            found.departures[process] = Departure(*process, DepartureReason.LEFT, row.away_at)


async def silent_services(connection: Connection, before: datetime, after: datetime) -> set[str]:
    """The services with a member whose last sign of life was noted until `before` and that is not away, or that was
    noted after `after`.
    """
    table = shard_workers.c
    silent = and_(table.state == ACTIVE, table.last_seen <= before)
    ahead = and_(table.state.in_((ACTIVE, AWAY)), table.last_seen > after)
    query = select(table.service).where(or_(silent, ahead)).distinct()
    return set((await connection.execute(query)).scalars())


async def counts(connection: Connection, services: Collection[str]) -> dict[str, dict[str, int]]:
    """How many processes of these services are in each state, by service and state."""
    table = shard_workers.c
    query = select(table.service, table.state, func.count()).where(_of(connection, services))
    found: dict[str, dict[str, int]] = {}
    for service, state, count in await connection.execute(query.group_by(table.service, table.state)):
        found.setdefault(service, {})[state] = int(count)
    return found


async def absences(connection: Connection, services: Collection[str]) -> dict[str, dict[str, datetime]]:
    """Since when workers of these services are away or gone, by service and worker id.

    Of one that is away, other processes under its id may be gone since a later time.
    """
    table = shard_workers.c
    is_absent = table.state.in_((AWAY, *_GONE))
    query = select(table.service, table.worker_id, table.state, table.away_at).where(_of(connection, services))
    gone, away = dict[str, dict[str, datetime]](), dict[str, dict[str, datetime]]()
    for service, worker, state, at in await connection.execute(query.where(is_absent, table.away_at.is_not(None))):
        times = (away if state == AWAY else gone).setdefault(service, {})
        times[worker] = max(at, times.get(worker, at))
    return {service: {**gone.get(service, {}), **away.get(service, {})} for service in services}


async def last_sign_of_life(connection: Connection) -> datetime | None:
    """When any member was last seen that is not away; None where there is no such member."""
    query = select(func.max(shard_workers.c.last_seen)).where(shard_workers.c.state == ACTIVE)
    found: datetime | None = (await connection.execute(query)).scalar_one()
    return found


async def unreleased(
    connection: Connection, services: Collection[str] | None, now: datetime
) -> dict[str, list[UnreleasedShards]]:
    """What members of these services, or of all, have still to let go of, by service."""
    table = shard_workers.c
    columns = table.service, table.worker_id, table.instance, table.revoking
    query = select(*columns).where(table.revoking.is_not(None)).order_by(table.service, table.worker_id)
    if services is not None:
        query = query.where(_of(connection, services))
    found: dict[str, list[UnreleasedShards]] = {}
    for service, worker, instance, revoking in await connection.execute(query):
        found.setdefault(service, []).extend(unreleased_by(worker, not instance, _revocations(revoking), now))
    return found


async def save(tx: Transaction, before: ShardService, after: ShardService) -> None:
    """Stores what has changed of the processes of a service that this transaction has locked."""
    former, now = dict(_rows(before)), dict(_rows(after))
    changed = [row for process, row in now.items() if former.get(process) != row]
    if changed:
        await tx.dialect.upsert(tx, _UPSERT, sorted(changed, key=lambda row: (row[1], row[2])), _CHANGED)
    await _delete(tx, after.name, former.keys() - now.keys())


async def _delete(tx: Transaction, service: str, processes: Collection[Process]) -> None:
    table = shard_workers.c
    for worker, instance in sorted((worker, instance or "") for worker, instance in processes):
        await tx.execute(
            delete(shard_workers).where(table.service == service, table.worker_id == worker, table.instance == instance)
        )


def _rows(state: ShardService) -> Iterator[tuple[Process, tuple[Any, ...]]]:
    """The row of each process; where one is in two places, the living one counts."""
    for process, gone in state.departures.items():
        yield process, _row_of_gone(state.name, gone)
    for waiting in state.successors.values():
        yield (waiting.worker_id, waiting.instance), _row(state.name, waiting, WAITING)
    for member in state.members.values():
        yield (member.worker_id, member.instance), _row(state.name, member, AWAY if member.away else ACTIVE)


def _row(service: str, member: ServiceMember, state: str) -> tuple[Any, ...]:
    revoking = [{"since": one.since.isoformat(), "shards": to_json(one.shards)} for one in member.revoking]
    return (
        *(service, member.worker_id, member.instance or "", state, member.shard_count, member.weight),
        *(member.grace_s, member.seq, member.generation, member.version, int(member.answered)),
        *(member.reply_to, member.via),
        *(member.joined_at, member.last_seen, member.away and member.away.value, member.away_at),
        *(revoking or None, to_json(member.absent) or None),
    )


def _row_of_gone(service: str, gone: Departure) -> tuple[Any, ...]:
    state = LEFT if gone.reason is DepartureReason.LEFT else INACTIVE
    who = service, gone.worker_id, gone.instance or "", state
    return (*who, 0, 0, 0.0, 0, 0, 0, 0, None, None, gone.at, gone.at, None, gone.at, None, None)


def _of(connection: Connection, services: Collection[str]) -> ColumnElement[bool]:
    return connection.dialect.among(shard_workers.c.service, sorted(services))


def _revocations(stored: Any) -> tuple[Revocation, ...]:
    return tuple(Revocation(from_json(one["shards"]), datetime.fromisoformat(one["since"])) for one in stored or ())


def _member(row: Row[Any], grants: Grants) -> ServiceMember:
    return ServiceMember(
        worker_id=row.worker_id,
        instance=row.instance or None,
        joined_at=row.joined_at,
        last_seen=row.last_seen,
        shard_count=row.shard_count,
        reply_to=row.reply_to,
        via=row.via,
        seq=row.seq,
        weight=row.weight,
        grace_s=row.grace_s,
        version=row.version,
        generation=row.generation,
        answered=bool(row.answered),
        away=AwayReason(row.away_reason) if row.away_reason else None,
        away_at=row.away_at,
        revoking=_revocations(row.revoking),
        absent=from_json(row.absent),
        grants=grants,
    )
