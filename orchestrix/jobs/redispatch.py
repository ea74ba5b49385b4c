"""Job redispatch: dispatches jobs again whose dispatch workers may not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrix.domain.jobs import DISPATCHED, JobRow
from orchestrix.jobs import outbox_rows, spans
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import jobs


async def redispatch(tx: Transaction, ids: Sequence[str]) -> list[JobRow]:
    """Dispatches again those of these jobs that no worker has begun; which those are, as they are from now on.

    Under the same id: a worker takes no second copy of an attempt that it, or another, works on. A dispatch that is
    still in the outbox stays there once.
    """
    locked = await jobs.lock(tx, ids)
    payloads = await jobs.payloads(tx, ids)
    found = [job for job in locked.values() if job.state == DISPATCHED and job.queue is not None]
    now = tx.now()  # its time to begin stays as it was
    sent = [replace(job, version=job.version + 1, updated_at=now, dispatched_at=now) for job in found]
    sent, follow = spans.redispatch(tx, found, sent)
    await jobs.store(tx, [(before.version, job) for before, job in zip(found, sent, strict=True)])
    rows = [
        outbox_rows.dispatch(
            replace(follow[job.id], payload=payloads.get(job.id)),
            now,
            again=spans.published_again(job, follow[job.id]),
        )
        for job in found
    ]
    await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
    return sent
