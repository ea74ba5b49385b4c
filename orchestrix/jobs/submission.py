"""Job submission: stores a job, so that it is done whatever happens next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from orchestrix import clock, crash
from orchestrix.domain.idempotency import InFlight, Keyed, KeyReused, Repeated, Replayed
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import ConflictError, Contention
from orchestrix.persistence import audit, idempotency
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_targets, jobs
from orchestrix.saga.job_targets import JobTarget
from orchestrix.telemetry import tracing


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A requested job. `timeout_ms` is the time of each attempt, by default that of `target`; `deadline_ms` that of a
    whole broadcast; `after` is when the first may begin.

    `actor` is who asks, for the audit: `created_by` where that is not known.
    """

    target: JobTarget
    handler: str
    payload: Any = None
    retries: int = 0
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    created_by: str = "anonymous"
    correlation_id: str | None = None
    after: datetime | None = None
    schedule_id: str | None = None
    due_at: datetime | None = None
    saga: str | None = None
    instance_id: int | None = None
    step: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    actor: str | None = None


SUBMIT: Final = "submit-job"
"""The verb of submitted jobs in the audit."""
JobRequestKey = Keyed[JobRow]
"""A client's key, whose answer is stored with the job."""
Submitted = JobRow | Repeated


class _KeyTaken(ConflictError):
    """Another request with this key was stored first."""


def job_of(request: JobRequest, now: datetime) -> JobRow:
    """The job that `request` asks for, with an id of its own. It follows from the current span.

    That is the root of its trace too, where its client has named none.
    """
    submitted = tracing.current_context()
    root = (request.traceparent, request.tracestate)
    if submitted is not None and request.traceparent is None:
        root = submitted
    return JobRow(
        id=clock.uuid7(),
        **request.target.columns(),
        handler=request.handler,
        payload=request.payload,
        retries=request.retries,
        timeout_ms=request.target.timeout_ms(request.timeout_ms),
        deadline_ms=request.deadline_ms,
        created_by=request.created_by,
        correlation_id=request.correlation_id or clock.uuid7(),
        created_at=now,
        updated_at=now,
        wake_at=request.after or now,
        schedule_id=request.schedule_id,
        due_at=request.due_at,
        saga=request.saga,
        instance_id=request.instance_id,
        step=request.step,
        traceparent=root[0],
        tracestate=root[1],
        trace_head=root[0] if submitted is None else submitted.traceparent,
    )


class JobSubmitter:
    """Stores jobs. `notify` lets the leader poll at once, on whichever node; it polls by itself a little later."""

    def __init__(self, database: Database, notify: Callable[[], None]) -> None:
        self._database = database
        self._notify = notify

    async def submit(self, request: JobRequest, key: JobRequestKey | None = None) -> Submitted:
        """The job, committed, or what prevents it.

        Raises `UnknownGroup`, `MixedVersions`, `Unavailable` and `OutcomeUnknown`.
        """
        stored = await self._stored(key) if key is not None else None
        if stored is not None:
            return stored
        job, actor = job_of(request, self._database.now()), request.actor or request.created_by
        try:
            await self._database.run(lambda tx: self._write(tx, job, key, actor), attempts=1 if key else 4)
        except _KeyTaken:
            return (await self._stored(key) if key is not None else None) or InFlight()
        crash.point("jobs.submit.after_commit")
        self._notify()
        return job

    @staticmethod
    async def _write(tx: Transaction, job: JobRow, key: JobRequestKey | None, actor: str) -> None:
        if key is not None:
            await JobSubmitter._claim(tx, job, key)
        await job_targets.check(tx, [] if job.executor_group is None else [job.executor_group])
        await jobs.insert(tx, [job])
        target = {"queue": job.queue} if job.executor_group is None else {"group": job.executor_group}
        detail = {"job": job.id, **target, "handler": job.handler}
        await audit.insert(tx, [AuditRow(at=tx.now(), actor=actor, verb=SUBMIT, reason="submitted", detail=detail)])
        crash.point("jobs.submit.before_commit")

    @staticmethod
    async def _claim(tx: Transaction, job: JobRow, key: JobRequestKey) -> None:
        """Stores the answer. It comes first, so what it has to wait for is another request with this key."""
        try:
            mine = await idempotency.insert(tx, key.scope, key.key, key.render(job))
        except Contention as busy:
            raise _KeyTaken("another request with this key is still running") from busy
        if not mine:
            raise _KeyTaken("another request with this key was first")

    async def _stored(self, key: JobRequestKey) -> Replayed | KeyReused | None:
        async with self._database.read() as connection:
            stored = await idempotency.find(connection, key.scope, key.key)
        return key.before(stored)
