"""Executor jobs: the attempts that a node is to call executors for, and where it has called them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, or_, select, union_all, update

from orchestrix.domain.jobs import CANCELLED, DISPATCHED, LIVE, LOST, TIMED_OUT, JobAttempt, JobRow
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import job_heartbeats
from orchestrix.persistence.jobs import jobs as rows
from orchestrix.persistence.registry.registrations import EXECUTOR, Executor
from orchestrix.persistence.tables import job_attempts, job_registry, jobs


@dataclass(frozen=True, slots=True)
class OwnedAttempt:
    """An attempt that this node owns under that epoch; what it needs to know each second.

    `registered_at` is when the process registered that has the address now; None where none did.
    """

    job_id: str
    history_id: str
    owner_epoch: int
    state: str
    address: str | None
    called_at: datetime | None
    heard_at: datetime | None
    cancel_reason: str | None
    registered_at: datetime | None = None


async def owned(connection: Connection, node: str) -> list[OwnedAttempt]:
    """The live attempts of jobs for groups that a node owns: those that were not called yet first, then those that were
    called longest ago.

    All of them: one that was left out would neither be called nor followed.
    """
    return [OwnedAttempt(*row) for row in await connection.execute(_owned(), {"node": node})]


@cache
def _owned() -> Select[Any]:
    """The query of `owned`, made once: each node asks it every second."""
    table = jobs.c
    shown = (
        table.id,
        table.history_id,
        table.owner_epoch,
        table.state,
        table.address,
        table.called_at,
        table.worker_beat_at,
        table.cancel_reason,
        job_registry.c.instance_since,
    )
    mine = table.channels == 1, table.executor_group.is_not(None), table.owner == bindparam("node")
    registered = and_(
        job_registry.c.registry_group == EXECUTOR,
        job_registry.c.registry_key == table.executor_group,
        job_registry.c.registry_value == table.address,
    )
    query = select(*shown).select_from(jobs.outerjoin(job_registry, registered)).where(*mine)
    # Each state by itself, as below: without live jobs for groups nothing is read, whatever the node owns.
    every = union_all(*(query.where(table.state == state) for state in LIVE)).subquery()
    by = every.c.called_at.is_not(None), every.c.called_at, every.c.id
    return select(every).order_by(*by)


async def stopped(connection: Connection, job_ids: Collection[str], since: datetime) -> list[JobAttempt]:
    """The attempts of these jobs that have ended since then without an end that their executors had reported."""
    if not job_ids:
        return []
    attempt = job_attempts.c
    query = select(attempt.history_id).where(
        connection.dialect.among(attempt.job_id, sorted(job_ids)),
        attempt.address.is_not(None),
        attempt.finished_at >= since,
        attempt.state.in_((CANCELLED, TIMED_OUT, LOST)),
    )
    found = await rows.histories(connection, (await connection.execute(query)).scalars())
    return [found[name] for name in sorted(found)]


async def reported(connection: Connection, ids: Collection[str]) -> set[str]:
    """Those of these jobs that may have queues: executors have reported them, or are known to have begun them."""
    if not ids:
        return set()
    attempt = job_attempts.c
    begun = select(attempt.history_id).where(attempt.job_id == jobs.c.id, attempt.started_at.is_not(None)).exists()
    known = or_(jobs.c.worker_beat_at.is_not(None), jobs.c.started_at.is_not(None), begun)
    query = select(jobs.c.id).where(connection.dialect.among(jobs.c.id, sorted(ids)), known)
    return set((await connection.execute(query)).scalars())


async def attempts_of(
    connection: Connection, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[JobRow | None, JobAttempt | None]]:
    """By the ids of a job and of an attempt that may be of it: the job without its payload, and the attempt."""
    job_ids, history_ids = (sorted(set(ids)) for ids in zip(*wanted, strict=True)) if wanted else ([], [])
    attempts = await rows.histories(connection, history_ids)
    found = {job.id: job for job in await rows.of_ids(connection, job_ids)}
    return {(job_id, name): (found.get(job_id), attempts.get(name)) for job_id, name in wanted}


async def lock_own(tx: Transaction, node: str, attempts: Sequence[OwnedAttempt]) -> dict[str, JobRow]:
    """The jobs, locked, by the history ids of their attempts, where these are still the present ones, under this owner
    and epoch, and have not begun.

    Not those that another node owns, or that a person has ended: no executor is to be called for them.
    """
    locked = await rows.lock(tx, [attempt.job_id for attempt in attempts])
    found: dict[str, JobRow] = {}
    for attempt in attempts:
        job = locked.get(attempt.job_id)
        expected = (node, attempt.owner_epoch, attempt.history_id)
        if job is None or job.state != DISPATCHED or (job.owner, job.owner_epoch, job.history_id) != expected:
            continue
        found[attempt.history_id] = job
    return found


async def give(tx: Transaction, given: Sequence[tuple[JobRow, JobRow]]) -> None:
    """Stores where attempts are called, in the jobs (before, after) and in the attempts: a new owner calls that same
    address.

    Raises `ConflictError` if a job has changed since.
    """
    if not given:
        return
    await rows.store(tx, [(before.version, after) for before, after in given])
    table = job_attempts.c
    change = update(job_attempts).where(table.history_id == bindparam("given_id"))
    change = change.values(address=bindparam("given_address"), called_at=bindparam("given_at"))
    ordered = sorted((after for _, after in given), key=lambda job: str(job.history_id))
    await tx.execute(
        change,
        [{"given_id": job.history_id, "given_address": job.address, "given_at": job.called_at} for job in ordered],
    )


async def in_flight(connection: Connection, group: str | None = None) -> Counter[tuple[str, str]]:
    """How many attempts were given to each executor and have not ended, by group and address, of one group or of all.

    Found by the index of states, channels and groups, which holds the live jobs beside each other.
    """
    table = jobs.c
    of = table.executor_group.is_not(None) if group is None else table.executor_group == group
    by, given = (table.executor_group, table.address), (table.channels == 1, of, table.address.is_not(None))
    # Each state by itself: else SQLite walks an index of all jobs that groups ever had.
    each = [select(*by, func.count()).where(table.state == state, *given).group_by(*by) for state in LIVE]
    found: Counter[tuple[str, str]] = Counter()
    for name, address, count in await connection.execute(union_all(*each)):
        found[name, address] += int(count)
    return found


async def heard(tx: Transaction, history_ids: Sequence[str], at: datetime) -> set[str]:
    """Notes that the executors of these attempts sent a sign of life; the history ids of those that are live."""
    return await job_heartbeats.record_heartbeats(tx, history_ids, at)


@dataclass(frozen=True, slots=True)
class ExecutorWork:
    """The live attempts of an executor: the nodes that own them, and the last sign of life of any."""

    owners: frozenset[str]
    heard_at: datetime | None


async def work_of(connection: Connection, executors: Collection[Executor]) -> dict[Executor, ExecutorWork]:
    """What these executors were given that has not ended, of those that have work."""
    table, among = jobs.c, connection.dialect.among
    apps, addresses = (sorted({one[place] for one in executors}) for place in (0, 1))
    by, of = (table.executor_group, table.address, table.owner), among(table.executor_group, apps)
    given = table.channels == 1, of, among(table.address, addresses)
    # Each state by itself: else SQLite walks an index of all jobs that groups ever had.
    each = [select(*by, func.max(table.worker_beat_at)).where(table.state == one, *given).group_by(*by) for one in LIVE]
    found: dict[Executor, ExecutorWork] = {}
    for app, address, owner, heard_at in await connection.execute(union_all(*each)):
        before = found.get((app, address), ExecutorWork(frozenset(), None))
        owners = before.owners | {owner} if owner is not None else before.owners
        found[app, address] = ExecutorWork(owners, max(filter(None, (before.heard_at, heard_at)), default=None))
    return found


async def given_to(connection: Connection, runs: Mapping[str, Executor]) -> list[str]:
    """Those of the attempts that are live and were given to the executor that names them: its group and its address."""
    table = jobs.c
    query = select(table.history_id, table.executor_group, table.address).where(
        connection.dialect.among(table.history_id, sorted(runs)), table.state.in_(LIVE)
    )
    found = await connection.execute(query)
    return [row.history_id for row in found if runs.get(row.history_id) == (row.executor_group, row.address)]
