"""Job outbox rows: a job's dispatch, offers and stops as outbox rows and messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Outgoing, Topology
from orchestrix.broker.topology import (
    JOB_ASSIGNED,
    JOB_CANCEL,
    JOB_HANDOFF,
    dispatch_queue,
    job_channels,
    job_dispatch,
    queue_of_work,
    to_json,
)
from orchestrix.domain.jobs import JobRow
from orchestrix.jobs import messages, spans
from orchestrix.persistence.outbox import OutboxRow

JOBS: Final = "(jobs)"
"""Stands in place of the saga in rows of jobs. Each is alone: none waits for another."""
_DRAWN: Final = 2**62 - 1
"""The random bits of an id: the others can be those of its neighbour."""


def dispatch(job: JobRow, now: datetime, *, again: bool = False) -> OutboxRow:
    """The job dispatch for a worker, with its queue and those by which the worker answers.

    `again` says that it was published before, in the same trace: its row has an `n` of 1, else of 0.
    """
    assert job.history_id is not None, "it has just been dispatched"
    assert job.queue is not None, "executors are called"
    declares = job_dispatch(job.queue) + job_channels(job.id)
    row = _row(job.history_id, "job.dispatch", dispatch_queue(job.queue), messages.dispatch(job), job, declares, now)
    return replace(row, n=1) if again else row


def assigned(job: JobRow, now: datetime) -> OutboxRow:
    """The request for an owner."""
    declares = queue_of_work(JOB_ASSIGNED)
    return _row(clock.uuid7(), "job.assigned", JOB_ASSIGNED, messages.assigned(job), job, declares, now)


def offer(job: JobRow, reason: str, now: datetime) -> OutboxRow:
    """The offer to take it over."""
    declares = queue_of_work(JOB_HANDOFF)
    body = messages.offer(job.id, reason, job.owner, job.owner_epoch)
    return _row(clock.uuid7(), "job.handoff", JOB_HANDOFF, body, job, declares, now)


def handoff(job_id: str, owner: str, owner_epoch: int, reason: str) -> Outgoing:
    """The same from the owner itself, which waits for the answer and needs no outbox."""
    body = messages.offer(job_id, reason, owner, owner_epoch)
    return Outgoing("", JOB_HANDOFF, body, clock.uuid7(), None, "job.handoff", clock.now())


def ack(queue: str, job_id: str, owner: str, owner_epoch: int) -> Outgoing:
    """The answer to an offer, for the queue of the node that handed the job off."""
    return Outgoing(
        "", queue, messages.taken(job_id, owner, owner_epoch), clock.uuid7(), None, "job.handoff.ack", clock.now()
    )


def stop(job: JobRow, history_id: str, reason: str) -> Outgoing:
    """The message to all workers that this attempt is to stop."""
    body = messages.stop(job.id, history_id, reason)
    return Outgoing(JOB_CANCEL, job.queue or "", body, clock.uuid7(), job.correlation_id, "job.cancel", clock.now())


def _row(id: str, type: str, queue: str, body: bytes, job: JobRow, declares: Topology, now: datetime) -> OutboxRow:
    traceparent, tracestate = spans.trace_of(job)
    return OutboxRow(
        id=id,
        saga=JOBS,
        instance_id=int(id.replace("-", ""), 16) & _DRAWN,
        version=0,
        n=0,
        exchange="",
        routing_key=queue,
        type=type,
        correlation_id=job.correlation_id,
        body=body,
        timeout_ms=0,
        topology=to_json(declares),
        created_at=now,
        traceparent=traceparent,
        tracestate=tracestate,
    )
