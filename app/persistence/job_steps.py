"""Which jobs are at work for sagas, and which queues of jobs does anybody serve?"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from app.domain.jobs import DISPATCHED, PENDING, RUNNING, Job

from .engine import Connection
from .jobs import of_ids
from .tables import jobs, workers

_SINCE: Final = {PENDING: jobs.c.wake_at, DISPATCHED: jobs.c.dispatched_at, RUNNING: jobs.c.worker_beat_at}
"""From when a job in this state waits for somebody."""


async def waiting(connection: Connection, saga: str, usual: Mapping[str, timedelta], limit: int) -> list[Job]:
    """The jobs of that saga that have waited for somebody longer than is usual in their state, up to `limit` of each.

    An index has all that have not ended: they are looked through, and nothing else.
    """
    ids: list[str] = []
    for state, since in _SINCE.items():
        long = since <= connection.now() - usual[state]
        of_saga = select(jobs.c.id).where(jobs.c.state == state, jobs.c.saga == saga, long)
        ids += (await connection.execute(of_saga.order_by(jobs.c.created_at, jobs.c.id).limit(limit))).scalars()
    return await of_ids(connection, ids)


async def served(connection: Connection, within: timedelta) -> set[str]:
    """The queues of the workers that have beaten lately."""
    found = await connection.execute(select(workers.c.queues).where(workers.c.beat_at >= connection.now() - within))
    return {queue for (queues,) in found for queue in queues}
