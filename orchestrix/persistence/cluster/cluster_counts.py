"""Cluster counts: how many of everything there are in the whole database, for metrics. Few statements, none by id."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Select, case, func, literal, select, union_all

from orchestrix.domain.shards.generations import GenerationState
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.persistence.sagas.stuck_filter import (
    ExternalBlockers,
    by_wake_up,
    hindered_by_queue,
    stuck_by_row,
)
from orchestrix.persistence.shards.workers import ACTIVE
from orchestrix.persistence.tables import (
    dead_letters,
    generations,
    job_registry,
    nodes,
    outbox,
    shard_assignments,
    shard_services,
    shard_workers,
)
from orchestrix.saga.definition import TERMINAL

SILENT: Final = "silent"
DRAINED: Final = "drained"


@dataclass(frozen=True, slots=True)
class OutboxCounts:
    """The messages of the outbox, and the age in seconds of the oldest that does not wait for a person."""

    pending: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class ServiceShards:
    """A service with members: of its shards each member has between `fewest` and `most`. `number` is that of its active
    generation, 0 without one; `live` are the states of its generations.
    """

    service: str
    shards: int
    assigned: int
    fewest: int
    most: int
    number: int
    live: tuple[str, ...]


async def active_sagas(connection: Connection, states: Mapping[str, Collection[str]]) -> Counter[str]:
    """How many instances are in each of these states, which are given by saga."""
    found: Counter[str] = Counter()
    for pair in (APPS, INSTANCES):
        table: Any = pair.instances.c
        sagas = [saga for saga in states if (saga == APPS.saga) == (pair is APPS)]
        wanted = sorted({state for saga in sagas for state in states[saga]})
        if not wanted:
            continue
        query = select(table.state, func.count()).where(table.state.in_(wanted)).group_by(table.state)
        if pair.saga is None:
            query = query.where(table.saga.in_(sorted(sagas)))
        for state, count in await connection.execute(query):
            found[state] += count
    return found


async def stuck_sagas(connection: Connection, sagas: Collection[str], late_by: timedelta) -> Counter[str]:
    """How many instances of each of these sagas are stuck by what their rows say, or were due longer ago than
    `late_by`.
    """
    late = ExternalBlockers(overdue_since=connection.now() - late_by)
    found: Counter[str] = Counter()
    for pair in (APPS, INSTANCES):
        table: Any = pair.instances.c
        mine = [table.saga.in_(sorted({*sagas} - {APPS.saga}))] if pair.saga is None else []
        live = table.state.not_in(sorted(TERMINAL))
        by_state = f"{'saga_' if pair.saga is None else ''}state_created_at_id"  # MySQL has no index of the stuck alone
        found_by = (
            (by_state, stuck_by_row(table)),
            (by_state, [live, *hindered_by_queue(table)]),
            ("wake_at", by_wake_up(connection, table, late)),
        )
        query = union_all(*(_by_saga(pair, [*mine, *conditions], index) for index, conditions in found_by))
        for saga, count in await connection.execute(query):
            found[saga] += count
    return +found


async def late_timers(connection: Connection, late_by: timedelta) -> int:
    """How many instances were due longer ago than that."""
    before, count = connection.now() - late_by, 0
    for pair in (APPS, INSTANCES):
        table = pair.instances
        query = select(func.count()).select_from(table).where(table.c.wake_at <= before)
        count += int((await connection.execute(query)).scalar_one())
    return count


async def outbox_counts(connection: Connection) -> OutboxCounts:
    """How much is in the outbox, and for how long."""
    table = outbox.c
    waiting = case((table.parked_reason.is_(None), table.created_at))
    count, oldest = (await connection.execute(select(func.count(), func.min(waiting)).select_from(outbox))).one()
    age_s = 0.0 if oldest is None else (connection.now() - oldest).total_seconds()
    return OutboxCounts(count, max(0.0, age_s))


async def open_dead_letters(connection: Connection) -> int:
    """How many dead letters were not sent again."""
    query = select(func.count()).select_from(dead_letters).where(dead_letters.c.redriven_at.is_(None))
    return int((await connection.execute(query)).scalar_one())


async def nodes_by_state(connection: Connection) -> dict[str, int]:
    """How many nodes are in each state."""
    query = select(nodes.c.state, func.count()).group_by(nodes.c.state)
    return dict(_pairs(await connection.execute(query)))


async def executors(connection: Connection, silent: timedelta) -> dict[tuple[str, str], int]:
    """How many executors each app has in each status: what they say themselves in lower case, `DRAINED` by a person, or
    `SILENT` for longer than that.
    """
    table = job_registry.c
    status = case(
        (table.update_time < connection.now() - silent, SILENT),
        (table.drained_at.is_not(None), DRAINED),
        else_=func.lower(table.state),
    )
    query = select(table.registry_key.label("app"), status.label("status")).subquery()
    counted = select(query.c.app, query.c.status, func.count()).group_by(query.c.app, query.c.status)
    return {(app, status): count for app, status, count in await connection.execute(counted)}


async def shards(connection: Connection) -> list[ServiceShards]:
    """Every service that has members."""
    services = await connection.execute(
        select(shard_services.c.name, shard_services.c.shard_count).where(shard_services.c.members > 0)
    )
    known = dict(_pairs(services))
    if not known:
        return []
    table = shard_workers.c
    query = select(table.service, func.count()).where(table.state == ACTIVE).group_by(table.service)
    members = dict(_pairs(await connection.execute(query)))
    assigned = await _assigned(connection)
    live: dict[str, list[tuple[int, str]]] = defaultdict(list)
    rows = select(generations.c.service, generations.c.number, generations.c.live)
    for service, number, state in await connection.execute(rows.where(generations.c.live.is_not(None))):
        live[service].append((number, state))
    return [
        _service(name, count, members.get(name, 0), assigned.get(name, []), live[name])
        for name, count in sorted(known.items())
    ]


async def _assigned(connection: Connection) -> dict[str, list[int]]:
    """How many shards each process has that has any, by service."""
    table = shard_assignments.c
    size = func.sum(table.last_shard - table.first_shard + 1)
    query = select(table.service, size).group_by(table.service, table.worker_id, table.instance)
    found: dict[str, list[int]] = defaultdict(list)
    for service, count in await connection.execute(query):
        found[service].append(int(count))
    return found


def _service(
    name: str, shard_count: int, members: int, assigned: list[int], live: list[tuple[int, str]]
) -> ServiceShards:
    fewest = min(assigned, default=0) if len(assigned) >= members else 0
    number = max((number for number, state in live if state == GenerationState.ACTIVE.value), default=0)
    states = tuple(state for _, state in live)
    return ServiceShards(name, shard_count, sum(assigned), fewest, max(assigned, default=0), number, states)


def _pairs(rows: Iterable[Any]) -> Iterator[tuple[str, int]]:
    return ((name, count) for name, count in rows)


def _by_saga(pair: SagaTables, conditions: Collection[Any], index: str) -> Select[Any]:
    table = pair.instances
    saga = literal(pair.saga) if pair.saga is not None else table.c.saga
    query = select(saga.label("saga"), func.count().label("count")).select_from(table).where(*conditions)
    query = query.with_hint(table, f"FORCE INDEX (ix_{table.name}_{index})", "mysql")
    return query.group_by(table.c.saga) if pair.saga is None else query
