"""Which queues of workers are there, and who serves them?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import func, select

from app.domain.ages import age_s
from app.domain.job_waits import Around, Crew
from app.domain.jobs import DISPATCHED, LIVE, OWNED, RUNNING, Job

from . import job_signs, leases, nodes
from .engine import Connection, Transaction
from .tables import jobs, outbox, workers


async def crews(connection: Connection, queues: Iterable[str], limit: float) -> dict[str, Crew]:
    """Who serves each of these queues. A worker is lost after `limit` seconds without a beat, and silent after half."""
    wanted = set(queues)
    if not wanted:
        return {}
    known = select(workers.c.id, workers.c.queues, workers.c.beat_at).where(*nodes.heard(connection, 2 * limit))
    found = list(await connection.execute(known))
    now, silent, beats = connection.now(), limit / 2, defaultdict[str, list[float]](list)
    for _, served, at in found:
        for queue in wanted.intersection(served):
            beats[queue].append(age_s(at, now))
    ending = [id for id, served, at in found if not served and age_s(at, now) < silent]
    stopping = await _at_jobs(connection, wanted, ending)
    return {queue: _crew(beats[queue], silent, stopping[queue]) for queue in wanted}


async def _at_jobs(connection: Connection, queues: Iterable[str], ids: Sequence[str]) -> Counter[str]:
    """How many of these workers are at jobs of each queue."""
    if not ids:
        return Counter()
    query = select(jobs.c.queue, jobs.c.worker_id).where(jobs.c.state == RUNNING, jobs.c.worker_id.in_(ids)).distinct()
    return Counter([row.queue for row in await connection.execute(query.where(jobs.c.queue.in_(sorted(queues))))])


def _crew(beats: Sequence[float], silent: float, stopping: int) -> Crew:
    """The crew whose last beats were so many seconds ago."""
    heard = [seconds for seconds in beats if seconds < silent]
    return Crew(len(heard), len(beats) - len(heard), min(heard, default=0.0), stopping)


async def around(connection: Connection, found: Iterable[Job], limit: float) -> dict[str, Around]:
    """What tells why these jobs do not go on, by their ids; `limit` as in `crews`."""
    waiting = list(found)
    if not waiting:
        return {}
    known = await served(connection, [job.queue for job in waiting], limit)
    listening = set((await connection.execute(job_signs.listening(connection, limit / 2))).scalars())
    read = {job.id: job.ownership == OWNED and job.owner in listening for job in waiting}
    return {job.id: replace(known[job.queue], is_read=read[job.id]) for job in waiting}


async def served(connection: Connection, queues: Iterable[str], limit: float) -> dict[str, Around]:
    """What tells why what was sent to these queues is not begun; `limit` as in `crews`."""
    lease = await leases.read(connection)
    since = None if lease is None or lease.lapsed else lease.gained_at
    return {queue: Around(crew, limit, since) for queue, crew in (await crews(connection, queues, limit)).items()}


async def named(connection: Connection) -> set[str]:
    """The queues that known workers serve, or that jobs were sent to which have not ended."""
    served = await connection.execute(select(workers.c.queues))
    wanted = await connection.execute(select(jobs.c.queue).where(jobs.c.state.in_(LIVE)).distinct())
    return {queue for (queues,) in served for queue in queues} | set(wanted.scalars())


async def unbegun(connection: Connection) -> dict[str, int]:
    """How many jobs of each queue are with no worker yet, though they were sent."""
    query = select(jobs.c.queue, func.count()).where(jobs.c.state == DISPATCHED).group_by(jobs.c.queue)
    return {str(queue): int(count) for queue, count in await connection.execute(query)}


async def stranded(tx: Transaction, queues: Sequence[str], seconds: float, heard: float, limit: int) -> list[str]:
    """Locks up to `limit` of them in these queues, and gives their ids: those that were sent so many seconds ago, and
    that the broker has. `heard` is as in `job_signs.read`: nobody knows what others' workers may have begun.
    """
    waiting = select(outbox.c.id).where(outbox.c.id == jobs.c.history_id).exists()
    query = select(jobs.c.id).where(
        jobs.c.state == DISPATCHED,
        jobs.c.queue.in_(queues),
        jobs.c.dispatched_at <= job_signs.ago(tx, seconds),
        *job_signs.read(tx, seconds, heard),
        ~waiting,
    )
    query = query.order_by(jobs.c.dispatched_at, jobs.c.id).limit(limit)
    return list((await tx.execute(query.with_for_update(skip_locked=True))).scalars())
