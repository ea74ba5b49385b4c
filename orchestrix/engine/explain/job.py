"""Job explanation: the state of the job that a saga waits for, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain.job_broadcasts import shards_left
from orchestrix.domain.job_diagnosis import DiagnosisContext, SilenceLimits, waits_for
from orchestrix.domain.jobs import DISPATCHED, RUNNING, JobRow
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs import job_queues, job_targets, jobs
from orchestrix.persistence.jobs.job_targets import MixedVersions
from orchestrix.saga.commands import expected, job_at_work
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import compact
from orchestrix.saga.state import Instance

_LONGEST: Final = 100


@dataclass(frozen=True, slots=True)
class AwaitedJob:
    """The job of that id, None where there is none, and what is known of the broker and workers around it.

    `postponed` is why it cannot be made yet.
    """

    id: str
    job: JobRow | None
    diagnosis: DiagnosisContext | None = None
    postponed: str | None = None


async def work_of(
    connection: Connection, saga: Saga, instance: Instance, limits: SilenceLimits, broker_status: BrokerStatus
) -> AwaitedJob | None:
    """The job that a live instance waits for, if it waits for one."""
    id = job_at_work(saga, instance) if instance.live else None
    job = await jobs.get(connection, id) if id is not None else None
    if id is None or job is None:
        return None if id is None else AwaitedJob(id, None, postponed=await _postponed(connection, saga, instance))
    sent = [] if job.queue is None or job.state != DISPATCHED else [job.queue]
    empty = sent if await broker_status.empty([dispatch_queue(queue) for queue in sent]) else []
    known = await job_queues.diagnosis_context(connection, [job], limits, empty)
    return AwaitedJob(id, job, known[job.id])


async def _postponed(connection: Connection, saga: Saga, instance: Instance) -> str | None:
    order = expected(saga, instance)
    if order is None or order.job is None or order.job.group is None:
        return None
    try:
        await job_targets.check_versions(connection)
    except MixedVersions as mixed:
        return mixed.cause
    return None


def describe(work: AwaitedJob, now: datetime) -> tuple[str, str]:
    """One sentence on its state, and one on what to do."""
    job = work.job
    if job is None and work.postponed is not None:
        return f"Job {work.id} is not made yet: {work.postponed}.", "Do that: the saga continues within 10 s."
    if job is None:
        return f"Job {work.id} does not exist.", "Wait: it is submitted again; `redispatch` submits it now."
    name = f"Job {job.id} ({job.handler}{'' if job.queue is not None else f', group {job.executor_group}'})"
    logs = f"`orchestrix jobs logs {job.id}`"
    if job.ended:
        return (
            f"{name} ended {job.state}; its result is on its way to the saga.",
            f"Wait; {logs} shows what it did.",
        )
    problem = None if work.diagnosis is None else waits_for(job, now, work.diagnosis)
    if problem is not None:
        return f"{name} is {job.state}: {problem}.", f"Fix that, or stop it with `orchestrix jobs cancel {job.id}`."
    where = f" on worker {job.worker_id}" if job.worker_id is not None else ""
    if job.queue is None:
        where = f" at the executor {job.address}" if job.address is not None else ""
    done = f", {progress_text(job.progress)}" if job.progress is not None and job.state == RUNNING else ""
    stopping = f"; stopping ({job.cancel_reason})" if job.cancel_reason is not None else ""
    attempt = shards_left(job) if job.has_children else f"attempt {max(job.attempt, 1)}"
    return (
        f"{name} is {job.state}{where}{done} ({attempt}){stopping}.",
        f"Wait, or follow it with `orchestrix jobs logs {job.id} -f`.",
    )


def progress_text(progress: Any) -> str:
    """A progress in words: `40 %`, or the beginning of the object."""
    percent = progress.get("percent") if isinstance(progress, dict) else progress
    if isinstance(percent, int | float):
        return f"{percent:g} %"
    return compact(progress)[:_LONGEST]
