"""Generation rows: who leads a generation, its transitions, and the history of a service (S4: GenerationStore)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, Row, ScalarSelect, and_, delete, insert, select, update

from orchestrix.domain.shards.generations import (
    Cause,
    CauseKind,
    Generation,
    GenerationState,
    check_transition,
    led,
)
from orchestrix.domain.shards.state import ShardService
from orchestrix.errors import ConflictError
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.shards.ranges import shares_from_json, shares_to_json
from orchestrix.persistence.tables import generations

_LIVE: Final = (GenerationState.PENDING.value, GenerationState.ACTIVE.value)
_OF_HISTORY: Final = (
    *("number", "state", "cause", "cause_worker", "leader_id", "began_at", "activated_at", "ended_at"),
    *("shard_count", "members", "moved", "closes_at"),
)


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One generation of a service's history; `shard_count`, `members` and `moved` are known from its activation on.

    `shard_count_before` is that of the active generation before it; `history` alone reads it. None where none is kept.
    """

    number: int
    state: str
    cause: str
    cause_worker: str | None
    leader_id: str | None
    began_at: datetime
    activated_at: datetime | None
    ended_at: datetime | None
    shard_count: int
    members: int
    moved: int
    closes_at: datetime
    shard_count_before: int | None = None


async def acquire_leader_lock(tx: Transaction, node_id: str, now: datetime, limit: int = 100) -> list[tuple[str, int]]:
    """Makes the node the leader of pending generations that have none; their services and numbers (S4).

    Those that another node is about to lead are left out: of several nodes exactly one leads each. Needs no lock of the
    service, and is short: the node activates them later, in a transaction of its own that asks for its lead again.
    """
    table = generations.c
    free = and_(table.live == GenerationState.PENDING.value, table.leader_id.is_(None))
    query = select(generations).where(free).order_by(table.service, table.number).limit(limit)
    taken: list[tuple[str, int]] = []
    for row in list(await tx.execute(query.with_for_update(skip_locked=True))):
        one = led(_generation(row), node_id, now)
        await _set_leader(tx, row.service, one)
        taken.append((row.service, row.number))
    return taken


async def _set_leader(tx: Transaction, service: str, one: Generation) -> None:
    """Stores the leader of a pending generation that had none. Raises `ConflictError` where another one leads it."""
    table = generations.c
    where = table.service == service, table.number == one.number, table.leader_id.is_(None)
    values = {"leader_id": one.leader_id, "leader_until": one.leader_until}
    if (await tx.execute(update(generations).where(*where).values(values))).rowcount != 1:
        raise ConflictError(f"generation {one.number} of {service!r} has another leader")


async def release_leader_lock(tx: Transaction, node_id: str) -> int:
    """Leaves the pending generations that this node leads to whichever node asks next; how many."""
    table = generations.c
    where = table.live == GenerationState.PENDING.value, table.leader_id == node_id
    values = {"leader_id": None, "leader_until": None}
    return (await tx.execute(update(generations).where(*where).values(values))).rowcount


async def transition_state(
    tx: Transaction,
    service: str,
    generation: Generation,
    state: GenerationState,
    values: Mapping[str, Any],
    leader_id: str | None = None,
) -> None:
    """Moves a stored generation to that state, if it still is in the state of `generation` (S4).

    With `leader_id` only if that node leads it. Raises `IllegalTransition` for a transition that there is not, and
    `ConflictError` where another node was first.
    """
    check_transition(generation, state)
    table = generations.c
    where = [table.service == service, table.number == generation.number, table.state == generation.state.value]
    if leader_id is not None:
        where.append(table.leader_id == leader_id)
    live = state.value if state.value in _LIVE else None
    stored = {"state": state.value, "live": live, "leader_until": None, **values}
    if (await tx.execute(update(generations).where(*where).values(stored))).rowcount != 1:
        raise ConflictError(f"generation {generation.number} of {service!r} is no longer {generation.state}")


async def load(connection: Connection, services: Collection[str]) -> dict[str, list[Generation]]:
    """The active and the pending generations of these services, by service."""
    table = generations.c
    among = connection.dialect.among(table.service, sorted(services))
    query = select(generations).where(among, table.live.is_not(None)).order_by(table.service, table.number)
    found: dict[str, list[Generation]] = {}
    for row in await connection.execute(query):
        found.setdefault(row.service, []).append(_generation(row))
    return found


async def save(tx: Transaction, before: ShardService, after: ShardService, now: datetime) -> None:
    """Stores the transitions from one state of a service to the next; this transaction has locked the service."""
    for former in (before.active, before.pending):
        if former is not None and all(former.number != one.number for one in _live(after)):
            await transition_state(
                tx, after.name, former, GenerationState.SUPERSEDED, {"ended_at": now, "shares": None}
            )
    known = {one.number: one for one in _live(before)}
    for one in _live(after):
        was = known.get(one.number)
        if was is None:
            await tx.execute(insert(generations).values({"service": after.name, **_values(one)}))
        elif was.state is not one.state:
            changed = {name: value for name, value in _values(one).items() if name not in ("number", "state", "live")}
            await transition_state(tx, after.name, was, one.state, changed, was.leader_id)
        elif was.leader_id != one.leader_id:
            await _set_leader(tx, after.name, one)


async def history(
    connection: Connection, service: str, limit: int = 100, before: int | None = None
) -> list[GenerationRecord]:
    """The generations of a service, the newest first; those with numbers below `before`, if that is given."""
    where = [generations.c.service == service, *([] if before is None else [generations.c.number < before])]
    query = select(*_history_columns(), _count_before()).where(*where).order_by(generations.c.number.desc())
    return [GenerationRecord(*row) for row in await connection.execute(query.limit(limit))]


async def live(connection: Connection, services: Collection[str]) -> dict[str, list[GenerationRecord]]:
    """The active and the pending generations of these services, without their shares, by service."""
    among = connection.dialect.among(generations.c.service, sorted(services))
    query = select(generations.c.service, *_history_columns()).where(among, generations.c.live.is_not(None))
    found: dict[str, list[GenerationRecord]] = {}
    for service, *row in await connection.execute(query.order_by(generations.c.service, generations.c.number)):
        found.setdefault(service, []).append(GenerationRecord(*row))
    return found


async def prune(tx: Transaction, before: datetime) -> int:
    """Deletes generations that were superseded before that time; how many."""
    table = generations.c
    return (await tx.execute(delete(generations).where(table.live.is_(None), table.ended_at < before))).rowcount


def _history_columns() -> list[Column[Any]]:
    return [generations.c[name] for name in _OF_HISTORY]


def _count_before() -> ScalarSelect[int]:
    """The shard count of the newest generation before that was active."""
    former = generations.alias("former").c
    is_former = former.service == generations.c.service, former.number < generations.c.number
    query = select(former.shard_count).where(*is_former, former.activated_at.is_not(None))
    return query.order_by(former.number.desc()).limit(1).correlate(generations).scalar_subquery()


def _live(state: ShardService) -> list[Generation]:
    """The active one first: of two that change, it makes room for the other."""
    return [one for one in (state.active, state.pending) if one is not None]


def _values(one: Generation) -> dict[str, Any]:
    return {
        "number": one.number,
        "state": one.state.value,
        "live": one.state.value,
        "leader_id": one.leader_id,
        "leader_until": one.leader_until,
        "cause": one.cause.kind.value,
        "cause_worker": one.cause.worker_id,
        "began_at": one.began_at,
        "closes_at": one.closes_at,
        "activated_at": one.activated_at,
        "revision": one.revision,
        "shard_count": one.shard_count,
        "members": len(one.shares),
        "moved": one.moved,
        "shares": shares_to_json(one.shares) if one.state is GenerationState.ACTIVE else None,
    }


def _generation(row: Row[Any]) -> Generation:
    return Generation(
        number=row.number,
        state=GenerationState(row.state),
        cause=Cause(CauseKind(row.cause), row.cause_worker),
        began_at=row.began_at,
        closes_at=row.closes_at,
        leader_id=row.leader_id,
        leader_until=row.leader_until,
        activated_at=row.activated_at,
        ended_at=row.ended_at,
        revision=row.revision,
        shard_count=row.shard_count,
        moved=row.moved,
        shares=shares_from_json(row.shares),
    )
