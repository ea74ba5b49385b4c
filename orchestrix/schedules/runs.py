"""Scheduled runs: makes jobs of a schedule's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrix import clock
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.schedules import Schedule, ScheduledRun, job_of
from orchestrix.jobs import spans
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.telemetry import messaging, tracing
from orchestrix.telemetry.tracing import Span

RUN: Final = "schedule run"


async def insert(
    tx: Transaction, schedule: Schedule, runs: Sequence[ScheduledRun], by: str | None = None
) -> list[tuple[ScheduledRun, JobRow]]:
    """Inserts a job for each run for which there was none yet, requested by `by`; those runs, each with its job.

    The order of the runs is that of the ids of their jobs. Each is the root of a trace; by a person, a part of that of
    the request.
    """
    made = [_routed(job_of(schedule, run, clock.uuid7(), tx.now(), by)) for run in runs]
    shown = [_begin(job) for job in made] if tracing.enabled() else []
    if shown:
        made = [_following(job, span) for job, span in zip(made, shown, strict=True)]
    new = await jobs.insert(tx, made)
    kept = [span for job, span in zip(made, shown, strict=False) if job.id in new]
    messaging.end_with_commit(tx.then, kept)
    return [(run, job) for run, job in zip(runs, made, strict=True) if job.id in new]


def _routed(job: JobRow) -> JobRow:
    """A job for a group without a routing key has that of its schedule: all runs go to the same executor."""
    if job.executor_group is None:
        return job
    return replace(job, routing_key=job.routing_key or job.schedule_id)


def _begin(job: JobRow) -> Span:
    span = tracing.begin(RUN, parent=tracing.current_context())
    if span.recording:
        span.set(spans.attributes_of(job))
    return span


def _following(job: JobRow, span: Span) -> JobRow:
    context = span.context
    if context is None:
        return job
    return replace(job, traceparent=context.traceparent, tracestate=context.tracestate, trace_head=context.traceparent)
