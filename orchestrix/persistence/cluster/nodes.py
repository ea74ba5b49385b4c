"""Nodes and workers: their rows, and the time of each one's last heartbeat, by the database's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import bindparam, case, delete, or_, select, update
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import LIVE, NodeRow, NodeState
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.tables import nodes, workers

_WORDS: Final = (
    "id",
    "queues",
    "jobs",
    "started_at",
    "beat_at",
    "said_at",
    "lost_places",
    "host",
    "version",
    "command_queues",
    "commands",
    "handlers",
)
_WORKERS: Final = BulkInsert(workers, _WORDS, key=("id",))
_LIVE: Final = tuple(state.value for state in LIVE)


@dataclass(frozen=True, slots=True)
class LiveNodes:
    """The nodes that count as alive, as they are at `now` of the database's clock."""

    nodes: Sequence[NodeRow]
    now: datetime


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker process reports about itself besides its jobs; one of a former release, or of another language,
    need not report it.

    `command_queues` are those that it takes commands from, `commands` how many it has, `handlers` the jobs that it
    has functions for.
    """

    host: str | None = None
    version: str | None = None
    command_queues: Sequence[str] | None = None
    commands: int | None = None
    handlers: Sequence[str] | None = None


UNTOLD: Final = WorkerFacts()


@dataclass(frozen=True, slots=True)
class WorkerHeartbeatRow:
    """A worker's heartbeat: which queues it serves, how many jobs it has, and when it was sent, by its own clock.

    `lost_places` are slots taken by functions that still run though their attempts have ended. It was received `ago_s`
    seconds before it is stored.
    """

    id: str
    queues: Sequence[str]
    jobs: int
    said_at: datetime | None = None
    lost_places: int = 0
    facts: WorkerFacts = UNTOLD
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A row of `workers`."""

    id: str
    queues: Sequence[str]
    jobs: int
    started_at: datetime
    beat_at: datetime
    lost_places: int = 0
    facts: WorkerFacts = UNTOLD

    @property
    def command_queues(self) -> Sequence[str]:
        """The command queues that it serves, as far as is known."""
        return self.facts.command_queues or ()


async def join(
    tx: Transaction,
    node_id: str,
    name: str,
    roles: Sequence[str],
    host: str | None = None,
    version: str | None = None,
    feature_level: int = 0,
) -> bool:
    """A new node, ALIVE; False if there is one of that id, or was."""
    now = tx.dialect.clock(tx.now())
    row = {
        "id": node_id,
        "name": name,
        "state": NodeState.ALIVE.value,
        "roles": ",".join(sorted(roles)),
        "job_count": 0,
        "started_at": now,
        "beat_at": now,
        "host": host,
        "version": version,
        "feature_level": feature_level,
    }
    return await tx.dialect.insert_one(tx, nodes, row)


async def record_heartbeat(tx: Transaction, node_id: str, state: NodeState, job_count: int) -> bool:
    """Records a heartbeat; False if the node was declared dead, or has no row. One that is DRAINING stays so."""
    mine = update(nodes).where(nodes.c.id == node_id, nodes.c.state.in_(_LIVE))
    draining = NodeState.DRAINING.value
    now_is = case((nodes.c.state == draining, draining), else_=state.value)
    values = {"state": now_is, "job_count": job_count, "beat_at": tx.dialect.clock(tx.now())}
    return (await tx.execute(mine.values(values))).rowcount == 1


async def mark_draining(tx: Transaction, node_id: str) -> bool:
    """Makes a node that is ALIVE DRAINING: it is to hand its jobs off. False if it was not ALIVE."""
    mine = update(nodes).where(nodes.c.id == node_id, nodes.c.state == NodeState.ALIVE.value)
    return (await tx.execute(mine.values(state=NodeState.DRAINING.value))).rowcount == 1


async def living_called(connection: Connection, name: str) -> list[NodeRow]:
    """The live nodes of that name, by id."""
    query = select(nodes).where(nodes.c.name == name, nodes.c.state.in_(_LIVE)).order_by(nodes.c.id)
    return [_node(row) for row in await connection.execute(query)]


async def below_feature_level(connection: Connection, level: int) -> list[NodeRow]:
    """The nodes that are alive and have a lower feature level, by name."""
    query = select(nodes).where(nodes.c.state.in_(_LIVE), nodes.c.feature_level < level)
    return [_node(row) for row in await connection.execute(query.order_by(nodes.c.name, nodes.c.id))]


async def get(connection: Connection, node_id: str) -> NodeRow | None:
    """One node."""
    found = (await connection.execute(select(nodes).where(nodes.c.id == node_id))).first()
    return _node(found) if found is not None else None


async def leave(tx: Transaction, node_id: str) -> bool:
    """The node has left in order; False if it was declared dead before."""
    mine = update(nodes).where(nodes.c.id == node_id, nodes.c.state.in_(_LIVE))
    now = tx.dialect.clock(tx.now())
    return (await tx.execute(mine.values(state=NodeState.LEFT.value, job_count=0, ended_at=now))).rowcount == 1


async def declare_dead(tx: Transaction, fence: Fence, node_id: str, beat_at: datetime) -> bool:
    """The node is DEAD; False after a heartbeat later than `beat_at`. Raises `StaleTermError` and `Contention`."""
    silent = update(nodes).where(nodes.c.id == node_id, nodes.c.beat_at == beat_at, nodes.c.state.in_(_LIVE))
    values = {"state": NodeState.DEAD.value, "job_count": 0, "ended_at": tx.dialect.clock(tx.now())}
    declared = (await tx.execute(silent.values(values))).rowcount == 1
    await leases.check_fence(tx, fence)
    return declared


async def found_ended(tx: Transaction, node_id: str) -> bool:
    """The node is dead, by whoever knows for sure that its process has ended; False if its end was recorded before."""
    mine = update(nodes).where(nodes.c.id == node_id, nodes.c.state.in_(_LIVE))
    now = tx.dialect.clock(tx.now())
    return (await tx.execute(mine.values(state=NodeState.DEAD.value, job_count=0, ended_at=now))).rowcount == 1


async def prune(tx: Transaction, fence: Fence, kept_s: float) -> None:
    """Deletes nodes and workers silent for `kept_s` seconds. Raises `StaleTermError` and `Contention`."""
    now, kept = tx.now(), timedelta(seconds=kept_s)
    for table, gone in ((nodes, [nodes.c.state.not_in(_LIVE)]), (workers, [])):
        long = or_(table.c.beat_at < now - kept, table.c.beat_at > now + kept)
        await tx.execute(delete(table).where(*gone, long))
    await leases.check_fence(tx, fence)


async def living(connection: Connection) -> LiveNodes:
    """All live nodes, and the database's time."""
    clock = connection.dialect.clock(connection.now()).label("now")
    found = list(await connection.execute(select(nodes, clock).where(nodes.c.state.in_(_LIVE)).order_by(nodes.c.id)))
    return LiveNodes([_node(row) for row in found], found[0].now if found else connection.now())


async def listed(connection: Connection, limit: int) -> list[NodeRow]:
    """The live nodes in the order of their start; then the others, the last to end first."""
    ended = case((nodes.c.state.in_(_LIVE), 0), else_=1)
    alive_first = (ended, case((ended == 0, nodes.c.started_at)), nodes.c.ended_at.desc(), nodes.c.id)
    return [_node(row) for row in await connection.execute(select(nodes).order_by(*alive_first).limit(limit))]


async def record_worker_heartbeats(tx: Transaction, heartbeats: Sequence[WorkerHeartbeatRow]) -> None:
    """Records the heartbeats of workers."""
    now = tx.now()
    heard = {beat.id: beat for beat in heartbeats}
    rows = [_values(one, now - timedelta(seconds=one.ago_s)) for _, one in sorted(heard.items())]
    if not rows:
        return
    await tx.dialect.insert_absent(tx, _WORKERS, rows)
    change = update(workers).where(workers.c.id == bindparam("which"))
    named = [name for name in _WORDS if name not in ("id", "started_at")]
    new: dict[str, Any] = {name: bindparam(f"new_{name}") for name in named}
    values = [
        {"which": row[0], **{f"new_{name}": value for name, value in zip(_WORDS, row, strict=True) if name in named}}
        for row in rows
    ]
    await tx.execute(change.values(new), values)


def _values(beat: WorkerHeartbeatRow, at: datetime) -> tuple[Any, ...]:
    """The values of `_WORDS`."""
    facts = beat.facts
    lists = [None if one is None else list(one) for one in (facts.command_queues, facts.handlers)]
    told = facts.host, facts.version, lists[0], facts.commands, lists[1]
    return beat.id, list(beat.queues), beat.jobs, at, at, beat.said_at, beat.lost_places, *told


async def delete_workers(tx: Transaction, left: Mapping[str, datetime | None]) -> None:
    """Deletes workers that have said that they leave, with the time of that by their own clock, or none.

    One with a later heartbeat is alive again under the same id: its leave message was delayed.
    """
    for id, at in sorted(left.items()):
        gone = delete(workers).where(workers.c.id == id)
        await tx.execute(gone if at is None else gone.where(or_(workers.c.said_at.is_(None), workers.c.said_at <= at)))


def heard(connection: Connection, seconds: float) -> Sequence[ColumnElement[bool]]:
    """That a worker sent a heartbeat in the last `seconds`. One in the future is from before the clock was set back."""
    now = connection.now()
    return workers.c.beat_at >= now - timedelta(seconds=seconds), workers.c.beat_at <= now + CLOCK_TOLERANCE


async def listed_workers(connection: Connection, limit: int, seconds: float) -> list[WorkerRow]:
    """The workers with a heartbeat in the last `seconds`, the latest first."""
    query = select(workers).where(*heard(connection, seconds)).limit(limit)
    query = query.order_by(workers.c.beat_at.desc(), workers.c.id)
    return [_worker(row) for row in await connection.execute(query)]


def _worker(row: Any) -> WorkerRow:
    facts = WorkerFacts(row.host, row.version, row.command_queues, row.commands, row.handlers)
    return WorkerRow(row.id, row.queues, row.jobs, row.started_at, row.beat_at, row.lost_places, facts)


def _node(row: Any) -> NodeRow:
    return NodeRow(
        id=row.id,
        name=row.name,
        state=NodeState(row.state),
        roles=tuple(row.roles.split(",")) if row.roles else (),
        job_count=row.job_count,
        started_at=row.started_at,
        beat_at=row.beat_at,
        ended_at=row.ended_at,
        host=row.host,
        version=row.version,
    )
