"""Which queues of workers are there, and who serves them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta

from sqlalchemy import func, select

from app.domain.jobs import DISPATCHED, LIVE

from .engine import Connection
from .tables import jobs, outbox, workers


async def serving(connection: Connection, queues: Iterable[str], seconds: float) -> Counter[str]:
    """How many workers serve each of these queues that were heard of in the last `seconds`."""
    wanted = set(queues)
    if not wanted:
        return Counter()
    heard = workers.c.beat_at >= connection.now() - timedelta(seconds=seconds)
    found = await connection.execute(select(workers.c.queues).where(heard))
    return Counter(queue for (served,) in found for queue in wanted.intersection(served))


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
