"""Which queues of workers are there, and who serves them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import func, select

from app.domain.jobs import DISPATCHED, LIVE

from .engine import Connection
from .tables import jobs, workers


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
