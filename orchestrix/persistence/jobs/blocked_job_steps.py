"""Blocked job steps: finds jobs of saga steps that no worker will start or end, as things are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import and_, or_, select
from sqlalchemy.sql import ColumnElement

from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING
from orchestrix.persistence.cluster.nodes import heard
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.tables import jobs, workers
from orchestrix.saga.state import JOB

_SINCE: Final = {PENDING: jobs.c.wake_at, DISPATCHED: jobs.c.dispatched_at, RUNNING: jobs.c.worker_beat_at}
"""From when a job in this state waits for a worker."""


@dataclass(frozen=True, slots=True)
class UnservedJobs:
    """The jobs of `saga` in the states of `since` that wait for a worker since that moment or longer.

    Those whose queue is one of `served` are not among them: a worker will do them; but those that were dispatched
    to one of the queues that are `empty` are.
    """

    saga: str
    since: Mapping[str, datetime]
    served: Collection[str] = ()
    empty: Collection[str] = ()


async def blocked_by_jobs(connection: Connection, pair: SagaTables, which: UnservedJobs, limit: int) -> list[int]:
    """The ids of the instances that wait for one of these jobs, by up to `limit` jobs of each state.

    An index has the jobs that have not ended: those are looked through, and nothing else.
    """
    found: list[int] = []
    for state in which.since:
        query = select(pair.instances.c.id).select_from(jobs).join(pair.instances, is_waited_for(pair.instances.c))
        query = query.where(jobs.c.state == state, *without_worker(which))
        found += (await connection.execute(query.order_by(jobs.c.created_at, jobs.c.id).limit(limit))).scalars()
    return found


async def served(connection: Connection, timeout_s: timedelta) -> set[str]:
    """The queues of the workers with a recent heartbeat."""
    found = await connection.execute(select(workers.c.queues).where(*heard(connection, timeout_s.total_seconds())))
    return {queue for (queues,) in found for queue in queues}


def is_waited_for(instance: Any) -> ColumnElement[bool]:
    """Whether a job is the one that an instance with these columns waits for."""
    return and_(jobs.c.instance_id == instance.id, jobs.c.id == instance.command_id, instance.wake_reason == JOB)


def without_worker(which: UnservedJobs) -> list[ColumnElement[bool]]:
    """The conditions for these jobs."""
    long = [and_(jobs.c.state == state, _SINCE[state] <= since) for state, since in which.since.items()]
    found = [jobs.c.saga == which.saga, jobs.c.state.in_(sorted(which.since)), jobs.c.queue.is_not(None), or_(*long)]
    if not which.served:
        return found
    lost = and_(jobs.c.state == DISPATCHED, jobs.c.queue.in_(sorted(which.empty)))
    unserved = jobs.c.queue.not_in(sorted(which.served))
    return [*found, or_(unserved, lost) if which.empty else unserved]
