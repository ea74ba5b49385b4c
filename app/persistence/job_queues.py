"""Which queues of workers are there, and who serves them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from sqlalchemy import func, select

from app.domain.job_waits import Around, Crew
from app.domain.jobs import DISPATCHED, LIVE, Job

from . import leases
from .engine import Connection
from .tables import jobs, outbox, workers


async def crews(connection: Connection, queues: Iterable[str], limit: float) -> dict[str, Crew]:
    """Who serves each of these queues. A worker is lost after `limit` seconds without a beat, and silent after half."""
    wanted = set(queues)
    if not wanted:
        return {}
    now = connection.now()
    known, silent = now - timedelta(seconds=2 * limit), now - timedelta(seconds=limit / 2)
    found = await connection.execute(select(workers.c.queues, workers.c.beat_at).where(workers.c.beat_at >= known))
    counts = Counter((queue, at > silent) for served, at in found for queue in wanted.intersection(served))
    return {queue: Crew(heard=counts[queue, True], silent=counts[queue, False]) for queue in wanted}


async def around(connection: Connection, job: Job, limit: float) -> Around:
    """What tells why this job does not go on; `limit` as in `crews`."""
    lease = await leases.read(connection)
    crew = (await crews(connection, [job.queue], limit))[job.queue]
    return Around(crew, led=lease is not None and not lease.lapsed, limit=limit)


async def named(connection: Connection) -> set[str]:
    """The queues that known workers serve, or that jobs were sent to which have not ended."""
    served = await connection.execute(select(workers.c.queues))
    wanted = await connection.execute(select(jobs.c.queue).where(jobs.c.state.in_(LIVE)).distinct())
    return {queue for (queues,) in served for queue in queues} | set(wanted.scalars())


async def unbegun(connection: Connection) -> dict[str, int]:
    """How many jobs of each queue are with no worker yet, though they were sent."""
    query = select(jobs.c.queue, func.count()).where(jobs.c.state == DISPATCHED).group_by(jobs.c.queue)
    return {str(queue): int(count) for queue, count in await connection.execute(query)}


async def unbegun_in(connection: Connection, queues: Sequence[str], seconds: float, limit: int) -> list[str]:
    """The ids of up to `limit` of them in these queues that were sent so many seconds ago, and that the broker has."""
    waiting = select(outbox.c.id).where(outbox.c.id == jobs.c.history_id).exists()
    before = connection.now() - timedelta(seconds=seconds)
    query = select(jobs.c.id).where(jobs.c.state == DISPATCHED, jobs.c.queue.in_(queues), ~waiting)
    query = query.where(jobs.c.dispatched_at <= before).order_by(jobs.c.id).limit(limit)
    return list((await connection.execute(query)).scalars())
