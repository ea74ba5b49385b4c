"""Shard assignments: which process has which shards now, under which epochs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from sqlalchemy import delete, func, or_, select

from orchestrix.domain.shards.grants import Grant, Grants
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.ranges import Range, ShardRanges
from orchestrix.domain.shards.state import ShardService
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import shard_assignments

_DELETED_AT_ONCE: Final = 1_000
_INSERT: Final = BulkInsert(
    shard_assignments, ("service", "first_shard", "last_shard", "worker_id", "instance", "epoch")
)
_Row = tuple[str, int, int, str, str, int]


async def load(connection: Connection, services: Collection[str]) -> dict[str, dict[Process, Grants]]:
    """The grants of each process of these services, by service."""
    table = shard_assignments.c
    columns = table.service, table.worker_id, table.instance, table.first_shard, table.last_shard, table.epoch
    among = connection.dialect.among(table.service, sorted(services))
    query = select(*columns).where(among).order_by(table.service, table.first_shard)
    found: dict[str, dict[Process, list[Grant]]] = defaultdict(lambda: defaultdict(list))
    for service, worker, instance, *grant in await connection.execute(query):
        found[service][worker, instance or None].append(Grant(*grant))
    return {
        service: {process: tuple(grants) for process, grants in processes.items()}
        for service, processes in found.items()
    }


async def free(connection: Connection, counts: Mapping[str, int]) -> dict[str, ShardRanges]:
    """Which of the first so many shards no process has, by service; of `counts` services, those with any.

    The database finds the gaps between the rows, which are far fewer than the rows.
    """
    table = shard_assignments.c
    by = table.service, table.first_shard
    former = func.lag(table.last_shard).over(partition_by=by[0], order_by=by[1]).label("former_last")
    next_ = func.lead(table.first_shard).over(partition_by=by[0], order_by=by[1]).label("next_first")
    among = connection.dialect.among(table.service, sorted(counts))
    rows = select(table.service, table.first_shard, table.last_shard, former, next_).where(among).subquery()
    at_gap = or_(rows.c.former_last.is_(None), rows.c.next_first.is_(None), rows.c.next_first > rows.c.last_shard + 1)
    gaps: dict[str, list[Range]] = {service: [] for service in counts}
    unseen = set(counts)
    for service, first, last, former_last, next_first in await connection.execute(select(rows).where(at_gap)):
        unseen.discard(service)
        if former_last is None:
            gaps[service].append((0, first - 1))
        gaps[service].append((last + 1, (counts[service] if next_first is None else next_first) - 1))
    everything = {service: ShardRanges.up_to(count) for service, count in counts.items()}
    found = {
        service: everything[service] if service in unseen else ShardRanges.of(parts) & everything[service]
        for service, parts in gaps.items()
    }
    return {service: shards for service, shards in found.items() if shards}


async def save(tx: Transaction, before: ShardService, after: ShardService) -> None:
    """Stores the grants that have changed of a service that this transaction has locked."""
    former, now = _rows(before, after), _rows(after, before)
    gone = sorted(first for _, first, *_ in former - now)
    for place in range(0, len(gone), _DELETED_AT_ONCE):
        starts = gone[place : place + _DELETED_AT_ONCE]
        table = shard_assignments.c
        await tx.execute(
            delete(shard_assignments).where(table.service == after.name, tx.dialect.among(table.first_shard, starts))
        )
    if new := sorted(now - former):
        await tx.dialect.insert(tx, _INSERT, new)


def _rows(state: ShardService, other: ShardService) -> set[_Row]:
    """The rows of the members whose grants are others in the other state."""
    found: set[_Row] = set()
    for worker, member in state.members.items():
        same = other.members.get(worker)
        if same is None or (same.grants, same.instance) != (member.grants, member.instance):
            who = worker, member.instance or ""
            found.update((state.name, one.first, one.last, *who, one.epoch) for one in member.grants)
    return found
