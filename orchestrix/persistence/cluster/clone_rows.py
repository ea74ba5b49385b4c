"""Clone rows: keeps a copy of a database from acting for the original, in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, Table, delete, or_, select, update

from orchestrix.domain.installation import Installation
from orchestrix.domain.jobs import CANCELLED, LIVE, PENDING
from orchestrix.domain.nodes import LIVE as LIVING
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import broadcasts
from orchestrix.persistence.tables import (
    broker_incarnation,
    command_queues,
    dead_letters,
    executor_suspicions,
    held_events,
    idempotency_keys,
    job_attempts,
    job_group,
    job_logs,
    job_registry,
    jobs,
    leases,
    node_listeners,
    nodes,
    outbox,
    registry_removed,
    throttles,
    workers,
    write_probes,
)
from orchestrix.persistence.tables import installation as table

Sign = tuple[str, str]
"""What gave a sign of life (a node, a worker or another process), and its name."""
_OF_PROCESSES: Final = (
    nodes,
    workers,
    write_probes,
    command_queues,
    throttles,
    broker_incarnation,
    job_registry,
    registry_removed,
    node_listeners,
    executor_suspicions,
)
_SENT_AGAIN: Final = ("cmd.%", "orchestrix.job.%")
"""The queues of dead letters that would make a worker act under the original's key."""


@dataclass(frozen=True, slots=True)
class ExecutorGroupMark:
    """An executor group and the effect key that it was made under."""

    id: int
    marker: str


async def signs(connection: Connection, seconds: float) -> Mapping[Sign, datetime]:
    """The last sign of life of each process that gave one in the last `seconds`."""
    since = connection.now() - timedelta(seconds=seconds)
    alive = nodes.c.state.in_([state.value for state in LIVING])
    queries: Sequence[tuple[str, Select[Any]]] = (
        ("node", select(nodes.c.id, nodes.c.beat_at).where(alive, nodes.c.beat_at >= since)),
        ("worker", select(workers.c.id, workers.c.beat_at).where(workers.c.beat_at >= since)),
        ("process", select(write_probes.c.name, write_probes.c.at).where(write_probes.c.at >= since)),
    )
    return {(kind, row[0]): row[1] for kind, query in queries for row in await connection.execute(query)}


async def begin(tx: Transaction, new: str) -> Installation:
    """Marks the reset as running: no process starts meanwhile. The id of an earlier reset that was cut off is kept."""
    found = await installation.find(tx)
    if found is None:
        await tx.dialect.insert_one(tx, table, {"id": 1, "installation": "", **_fresh(tx), "resetting": new})
        return Installation("", 0, 0, new)
    if found.resetting is not None:
        return found
    await tx.execute(update(table).where(table.c.id == 1).values(resetting=new))
    return Installation(found.id, found.last_app_id, found.last_instance_id, new)


async def finish(tx: Transaction, new: str) -> None:
    """Makes the database an installation of its own; none of its instances counts as older than that.

    What executors of the original report is not for it: it gets another key.
    """
    await tx.execute(
        update(table).where(table.c.id == 1).values(installation=new, resetting=None, report_key=None, **_fresh(tx))
    )


def _fresh(tx: Transaction) -> dict[str, Any]:
    return {"created_at": tx.now(), "last_app_id": 0, "last_instance_id": 0}


async def delete_processes(tx: Transaction) -> None:
    """Deletes what runs at the original: no leader, no live node, no broker's incarnation."""
    for one in _OF_PROCESSES:
        await tx.execute(delete(one))
    now = tx.now()
    await tx.execute(update(leases).values(lease_until=now, resigned_at=now))


async def delete_messages(tx: Transaction, limit: int) -> int:
    """Deletes up to `limit` rows each of messages, dead letters, held events and answers of the original; how many."""
    dead = or_(*(dead_letters.c.queue.like(queue) for queue in _SENT_AGAIN))
    found = await _delete(tx, outbox, select(outbox.c.id).limit(limit))
    found += await _delete(tx, dead_letters, select(dead_letters.c.id).where(dead).limit(limit))
    found += await _delete(tx, held_events, select(held_events.c.id).limit(limit))
    keys = idempotency_keys.c
    some = (await tx.execute(select(keys.scope, keys.key).limit(limit))).all()
    for scope, key in some:
        await tx.execute(delete(idempotency_keys).where(keys.scope == scope, keys.key == key))
    return found + len(some)


async def end_jobs(tx: Transaction, limit: int, reason: str) -> int:
    """Ends up to `limit` jobs that have not ended; how many.

    One that is a step is deleted: its saga submits it again when it continues.
    """
    found = (await tx.execute(_unended(limit).with_for_update())).all()
    steps, others = ([row.id for row in found if (row.saga is not None) is of_saga] for of_saga in (True, False))
    steps += await broadcasts.child_ids(tx, steps)  # else another broadcast of that step would count them
    others = [id for id in others if id not in set(steps)]
    for one in (job_logs, job_attempts):
        if steps:
            await tx.execute(delete(one).where(tx.dialect.among(one.c.job_id, steps)))
    if steps:
        await tx.execute(delete(jobs).where(tx.dialect.among(jobs.c.id, steps)))
    if others:
        await _cancel(tx, others, reason)
    return len(found)


async def disown_jobs(tx: Transaction, limit: int) -> int:
    """Removes owner and queues of up to `limit` jobs; how many."""
    query = select(jobs.c.id).where(or_(jobs.c.owner.is_not(None), jobs.c.channels != 0)).order_by(jobs.c.id)
    ids = list((await tx.execute(query.limit(limit).with_for_update())).scalars())
    if ids:
        known = update(jobs).where(tx.dialect.among(jobs.c.id, ids))
        await tx.execute(known.values(owner=None, ownership=None, channels=0, version=jobs.c.version + 1))
    return len(ids)


async def marks(tx: Transaction, after: int, limit: int) -> list[ExecutorGroupMark]:
    """Up to `limit` executor groups that a step has made, by id from behind `after`."""
    columns = job_group.c
    query = select(columns.id, columns.marker).where(columns.id > after, columns.marker.is_not(None))
    return [ExecutorGroupMark(*row) for row in await tx.execute(query.order_by(columns.id).limit(limit))]


async def mark(tx: Transaction, marked: Sequence[ExecutorGroupMark]) -> None:
    """Replaces markers."""
    for one in marked:
        await tx.execute(update(job_group).where(job_group.c.id == one.id).values(marker=one.marker))


async def _cancel(tx: Transaction, ids: Sequence[str], reason: str) -> None:
    now = tx.now()
    open_ = tx.dialect.among(job_attempts.c.job_id, ids), job_attempts.c.state.in_(LIVE)
    await tx.execute(update(job_attempts).where(*open_).values(state=CANCELLED, finished_at=now))
    ended = {"state": CANCELLED, "ownership": None, "owner": None, "channels": 0, "wake_at": None}
    times = {"finished_at": now, "updated_at": now, "cancel_reason": reason, "version": jobs.c.version + 1}
    await tx.execute(update(jobs).where(tx.dialect.among(jobs.c.id, ids)).values({**ended, **times}))


def _unended(limit: int) -> Select[Any]:
    live = jobs.c.state.in_((PENDING, *LIVE))
    return select(jobs.c.id, jobs.c.saga).where(live).order_by(jobs.c.id).limit(limit)


async def _delete(tx: Transaction, gone: Table, query: Select[Any]) -> int:
    ids = list((await tx.execute(query)).scalars())
    if ids:
        await tx.execute(delete(gone).where(tx.dialect.among(gone.c.id, ids)))
    return len(ids)
