"""Job heartbeats: notes the last heartbeat of the worker of each attempt, and loses none of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import or_, select, update

from orchestrix.domain.jobs import LIVE, JobRow
from orchestrix.persistence.dialects import BulkUpdate
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.tables import jobs

_NOTED: Final = ("worker_beat_at", "log_lines", "log_bytes")
_TOUCH: Final = BulkUpdate(jobs, match=("id",), change=_NOTED)


async def record_heartbeats(
    tx: Transaction, history_ids: Iterable[str], at: datetime, *, wait: bool = True
) -> set[str]:
    """Notes that the workers of these attempts had a heartbeat at that time; the history ids for which it is noted.

    An attempt that is over is left out. So is one whose row is locked, unless this is to `wait` for that:
    then it raises `Contention` where it would take too long. Without `wait` the caller has to do the rest later.
    """
    wanted = sorted(set(history_ids))
    if not wanted:
        return set()
    query = select(jobs.c.id, jobs.c.history_id).where(
        tx.dialect.among(jobs.c.history_id, wanted), jobs.c.state.in_(LIVE)
    )
    found = (await tx.execute(query.order_by(jobs.c.id).with_for_update(skip_locked=not wait))).all()
    if found:
        earlier = or_(jobs.c.worker_beat_at.is_(None), jobs.c.worker_beat_at < at)
        change = update(jobs).where(tx.dialect.among(jobs.c.id, [row.id for row in found]), earlier)
        await tx.execute(change.values(worker_beat_at=at))
    return {str(row.history_id) for row in found}


async def touch(tx: Transaction, found: Sequence[JobRow]) -> None:
    """Writes what is no change to readers, for jobs that this transaction has locked: when the worker had its
    heartbeat, and how much of the log is kept. Their versions stay.
    """
    rows = [(job.id, *(getattr(job, name) for name in _NOTED)) for job in sorted(found, key=lambda job: job.id)]
    if rows:
        await tx.dialect.update(tx, _TOUCH, rows)
