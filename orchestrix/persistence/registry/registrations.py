"""Registrations: the row of each registered executor, and of those removed lately."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, update

from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import job_registry, registry_removed

EXECUTOR: Final = "EXECUTOR"
"""The only registry group that there is (S2)."""
UP, DRAINING = "UP", "DRAINING"
"""What an executor reports: it takes jobs, or it takes no more."""
_PLACEHOLDER: Final = "none"
"""The state of a row that is locked so that no other transaction inserts it."""
GOODBYE, SILENT = "goodbye", "silent"
"""Why one was removed: it stopped in order, or its heartbeats ended."""

Executor = tuple[str, str]
"""The app and the address of an executor."""

_KEY: Final = ("registry_group", "registry_key", "registry_value")
_REPLACED: Final = ("update_time", "instance", "state", "weight", "load", "state_since", "instance_since")
_UPSERT: Final = BulkInsert(job_registry, (*_KEY, *_REPLACED, "first_seen"), key=_KEY)
_REMOVED: Final = BulkInsert(registry_removed, (*_KEY, "instance", "reason", "last_seen", "removed_at", "drained_at"))
_OURS: Final = job_registry.c.registry_group == EXECUTOR
_QUERY: Final[Select[Any]] = select(
    *(job_registry.c[name] for name in ("registry_key", "registry_value", "instance", "state", "weight", "load")),
    *(job_registry.c[name] for name in ("first_seen", "update_time", "state_since", "drained_at", "instance_since")),
).where(_OURS)
"""The columns of a `RegisteredExecutor`."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an executor reports about itself. `instance` is the id of its process, None for a client without one; `runs`
    are the history ids of the attempts that it runs.
    """

    app: str
    address: str
    instance: str | None = None
    state: str = UP
    weight: int = 1
    load: float | None = None
    runs: tuple[str, ...] = ()

    @property
    def executor(self) -> Executor:
        """The app and the address."""
        return self.app, self.address


@dataclass(frozen=True, slots=True)
class RegisteredExecutor:
    """A row of `job_registry`. `state_since` is when it first reported its state, `drained_at` when a person excluded
    it from new jobs, `instance_since` when this process registered; None where a node of a former release noted it.
    """

    app: str
    address: str
    instance: str | None
    state: str
    weight: int
    load: float | None
    first_seen: datetime
    last_seen: datetime
    state_since: datetime
    drained_at: datetime | None = None
    instance_since: datetime | None = None

    @property
    def takes_jobs(self) -> bool:
        """Whether it belongs in the address list of its group."""
        return self.state == UP and self.drained_at is None


@dataclass(frozen=True, slots=True)
class Removal:
    """A row of `registry_removed`. `drained_at` as in the row of the executor."""

    app: str
    address: str
    instance: str | None
    reason: str
    last_seen: datetime | None
    removed_at: datetime
    drained_at: datetime | None = None


async def record(
    tx: Transaction,
    heartbeats: Sequence[Heartbeat],
    at: datetime,
    before: Mapping[Executor, RegisteredExecutor] = MappingProxyType({}),
) -> None:
    """Inserts or refreshes the rows of these executors, in one statement. No executor may be in it twice.

    `before` are the rows as they were, of those that were registered.
    """
    ordered = sorted(heartbeats, key=lambda one: one.executor)
    rows = [
        (EXECUTOR, *one.executor, at, one.instance, one.state, one.weight, one.load, *_since(one, before, at), at)
        for one in ordered
    ]
    if rows:
        await tx.dialect.upsert(tx, _UPSERT, rows, _REPLACED)


def _since(
    one: Heartbeat, before: Mapping[Executor, RegisteredExecutor], at: datetime
) -> tuple[datetime, datetime | None]:
    """Since when it is in its state, and since when it is this process."""
    was = before.get(one.executor)
    if was is None:
        return at, at
    return was.state_since if was.state == one.state else at, was.instance_since if was.instance == one.instance else at


async def among(
    connection: Connection, executors: Collection[Executor], *, lock: bool = False
) -> dict[Executor, RegisteredExecutor]:
    """Those of the executors that are registered; with `lock`, their rows are locked until the transaction ends."""
    if not executors:
        return {}
    apps, addresses = ({one[place] for one in executors} for place in (0, 1))
    table, wanted = job_registry.c, set(executors)
    query = _QUERY.where(
        connection.dialect.among(table.registry_key, sorted(apps)),
        connection.dialect.among(table.registry_value, sorted(addresses)),
    )
    if lock:
        query = query.order_by(table.registry_key, table.registry_value).with_for_update()
    found = [RegisteredExecutor(*row) for row in await connection.execute(query)]
    return {(one.app, one.address): one for one in found if (one.app, one.address) in wanted}


async def of_apps(connection: Connection, apps: Sequence[str] | None = None) -> list[RegisteredExecutor]:
    """All registrations, or those of some apps: by app, then by the time of registration and the address."""
    table = job_registry.c
    query = _QUERY.order_by(table.registry_key, table.first_seen, table.registry_value)
    if apps is not None:
        query = query.where(connection.dialect.among(table.registry_key, apps))
    return [RegisteredExecutor(*row) for row in await connection.execute(query)]


async def counts(connection: Connection, apps: Sequence[str] | None = None) -> dict[str, int]:
    """How many executors are registered, by app."""
    table = job_registry.c
    query = select(table.registry_key, func.count()).where(_OURS).group_by(table.registry_key)
    if apps is not None:
        query = query.where(connection.dialect.among(table.registry_key, apps))
    return {row[0]: row[1] for row in await connection.execute(query)}


async def lock(tx: Transaction, executor: Executor, at: datetime) -> RegisteredExecutor | None:
    """The executor's row, locked until this transaction ends; None if there is none.

    A heartbeat that another transaction is about to record is waited for, and a later one waits for this transaction.
    """
    await tx.dialect.insert_absent(tx, _UPSERT, [(EXECUTOR, *executor, at, None, _PLACEHOLDER, 1, None, at, None, at)])
    row = (await tx.execute(_QUERY.where(_is(executor)).with_for_update())).first()
    if row is None:
        return None
    found = RegisteredExecutor(*row)
    if found.state != _PLACEHOLDER:
        return found
    await delete_rows(tx, [executor])
    return None


async def delete_rows(tx: Transaction, executors: Collection[Executor]) -> None:
    """Deletes the rows of these executors, in one statement for each app."""
    for condition in _of_each_app(tx, executors):
        await tx.execute(delete(job_registry).where(condition))


async def set_drained(tx: Transaction, executors: Collection[Executor], at: datetime | None) -> int:
    """Excludes these executors from new jobs, or with None for `at` includes them again; how many there are."""
    changed = 0
    for condition in _of_each_app(tx, executors):
        changed += (await tx.execute(update(job_registry).where(condition).values(drained_at=at))).rowcount
    return changed


async def stale(tx: Transaction, before: datetime, limit: int) -> list[RegisteredExecutor]:
    """Up to `limit` registrations without a heartbeat since `before`, locked; those locked by others are left out."""
    table = job_registry.c
    query = _QUERY.where(table.update_time < before).order_by(table.update_time, table.id).limit(limit)
    return [RegisteredExecutor(*row) for row in await tx.execute(query.with_for_update(skip_locked=True))]


async def late(connection: Connection, before: datetime, limit: int) -> list[Executor]:
    """Up to `limit` executors without a heartbeat since `before`, the latest to become silent first."""
    table = job_registry.c
    query = select(table.registry_key, table.registry_value).where(_OURS, table.update_time < before)
    found = await connection.execute(query.order_by(table.update_time.desc(), table.id).limit(limit))
    return [(row.registry_key, row.registry_value) for row in found]


async def correct_future(tx: Transaction, now: datetime) -> int:
    """Sets heartbeats that lie in the future to `now`: the clock was set back after they were noted. How many."""
    table = job_registry.c
    late = table.update_time > now + CLOCK_TOLERANCE
    query = select(table.id).where(late).order_by(table.registry_key, table.registry_value).with_for_update()
    ids = list((await tx.execute(query)).scalars())
    if not ids:
        return 0
    first = func.least if tx.dialect.name != "sqlite" else func.min
    values = {"update_time": now, "first_seen": first(table.first_seen, now)}
    await tx.execute(update(job_registry).where(tx.dialect.among(table.id, ids)).values(values))
    return len(ids)


async def record_removals(tx: Transaction, removals: Sequence[Removal]) -> None:
    """Keeps who was removed, for those who ask and for late heartbeats."""
    rows = [
        (EXECUTOR, one.app, one.address, one.instance, one.reason, one.last_seen, one.removed_at, one.drained_at)
        for one in removals
    ]
    if rows:
        await tx.dialect.insert(tx, _REMOVED, rows)


async def removals(
    connection: Connection, since: datetime, apps: Collection[str] | None = None, reason: str | None = None
) -> list[Removal]:
    """Who was removed after `since`, the latest first."""
    table = registry_removed.c
    columns = (table[name] for name in ("registry_key", "registry_value", "instance", "reason"))
    query = select(*columns, table.last_seen, table.removed_at, table.drained_at).where(table.removed_at > since)
    if apps is not None:
        query = query.where(connection.dialect.among(table.registry_key, sorted(apps)))
    if reason is not None:
        query = query.where(table.reason == reason)
    return [Removal(*row) for row in await connection.execute(query.order_by(table.removed_at.desc(), table.id.desc()))]


async def prune_removals(tx: Transaction, now: datetime, kept: timedelta) -> None:
    """Deletes removals older than `kept`, and those that lie in the future."""
    table = registry_removed.c
    await tx.execute(
        delete(registry_removed).where(
            or_(table.removed_at < now - kept, table.removed_at > now + kept + CLOCK_TOLERANCE)
        )
    )


def _of_each_app(tx: Transaction, executors: Collection[Executor]) -> Iterator[ColumnElement[bool]]:
    """For each app the condition that a row is one of its executors."""
    table = job_registry.c
    for app, found in groupby(sorted(executors), key=itemgetter(0)):
        addresses = [address for _, address in found]
        yield and_(_OURS, table.registry_key == app, tx.dialect.among(table.registry_value, addresses))


def _is(executor: Executor) -> ColumnElement[bool]:
    app, address = executor
    return and_(_OURS, job_registry.c.registry_key == app, job_registry.c.registry_value == address)
