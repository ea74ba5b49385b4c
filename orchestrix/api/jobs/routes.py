"""Job routes: submit, list, show, follow, cancel and retry jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from starlette.responses import Response

from orchestrix.api import pagination, streams
from orchestrix.api.answers import respond
from orchestrix.api.guards.auth import ANONYMOUS
from orchestrix.api.headers import (
    IF_NONE_MATCH,
    LAST_EVENT_ID,
    START_HEADERS,
    correlation_id,
)
from orchestrix.api.idempotency import repeated
from orchestrix.api.jobs import logs
from orchestrix.api.jobs.models import (
    JobBody,
    JobItem,
    JobPage,
    JobQuery,
    JobSummary,
    JobWhyBody,
    LogBody,
    LogEnd,
    LogPage,
    LogQuery,
    NewJob,
    links_of,
)
from orchestrix.api.jobs.targets import deadline_of, target_of
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence, invalid_body, not_found
from orchestrix.api.traces.links import trace_id_of
from orchestrix.api.traces.server_span import about_job
from orchestrix.api.values import NO_REASON, OptionalReason, RequiredReason, milliseconds
from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain.job_diagnosis import DiagnosisContext, SilenceLimits, may_wait, waits_for
from orchestrix.domain.job_retry import is_retried
from orchestrix.domain.jobs import DISPATCHED, JobRow
from orchestrix.engine.broker_status import COUNT_TTL_S
from orchestrix.engine.explain.job_state import JobStateFacts, explain
from orchestrix.errors import RefusedAction
from orchestrix.jobs.cancellation import CANCEL
from orchestrix.jobs.retry import RETRY
from orchestrix.jobs.submission import JobRequest
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter, AuditRow
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs import job_queues, jobs
from orchestrix.persistence.jobs.job_logs import complete
from orchestrix.persistence.jobs.job_targets import MixedVersions, UnknownGroup
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.telemetry import tracing

ACTIONS_LIMIT: Final = 1000
"""Cancels or retries of all jobs among which that of one is looked for."""
ORDER: Final = "-createdAt job"
ONE: Final = "/jobs/{job}"
UPGRADED_SOON: Final = {"Retry-After": "30"}
"""A node that is stopped or dead is not alive any more by then."""


def _refusal(error: Exception, wanted: object) -> Problem | None:
    match error:
        case RefusedAction():
            return Problem("illegal_transition", as_sentence(error), allowed=list(error.allowed))
        case UnknownGroup():
            return invalid_body([{"pointer": "/group", "detail": str(error)}])
        case MixedVersions():
            return Problem("mixed_versions", as_sentence(error), headers=UPGRADED_SOON)
        case _:
            return None


operations = Operations("jobs", refusal=_refusal)


def job_id(call: Call) -> str:
    """The id in the path; raises `Problem` 404 for what no job can have."""
    text = call.path("job")
    try:
        return str(UUID(text))
    except ValueError:
        raise not_found(f"job {text[:60]!r}") from None


@operations.post("/jobs", status=201, headers=START_HEADERS, problems=("mixed_versions",))
async def submit_job(call: Call, new: NewJob) -> JobBody | Response:
    """Submit a job.

    It is committed when the answer comes. A worker of its queue, or an executor of its group, gets it soon after. The
    group must be there: else 422.
    """
    context = tracing.current_context()
    target = target_of(new.queue, new.group, new.routing)
    deadline = deadline_of(target, new.deadline)
    wanted = JobRequest(
        target=target,
        handler=new.handler,
        payload=new.payload,
        retries=new.retries,
        timeout_ms=None if new.timeout is None else milliseconds(new.timeout),
        deadline_ms=None if deadline is None else milliseconds(deadline),
        created_by=new.createdBy or call.actor,
        actor=call.actor if call.actor != ANONYMOUS else None,
        correlation_id=correlation_id(call.request),
        traceparent=None if context is None else context.traceparent,
        tracestate=None if context is None else context.tracestate,
    )

    def answer(job: JobRow) -> JobBody:
        return JobBody.whole(job, call.context.links)

    done = await call.context.submitter.submit(wanted, call.key(answer))
    if not isinstance(done, JobRow):
        return repeated(done)
    about_job(done)
    return answer(done)


@operations.get("/jobs")
async def list_jobs(call: Call, query: JobQuery) -> JobPage:
    """List jobs.

    The newest first. Each with what it waits for, if it does not continue though it should. Shards of broadcasts are
    shown only with their `parentId`.
    """
    wanted = JobFilter(
        states=tuple(dict.fromkeys(query.state)),
        queue=query.queue,
        group=query.group,
        parent_id=query.parent_id,
        shards=query.parent_id is not None,
        handler=query.handler,
        created_by=query.created_by,
        schedule_id=query.schedule_id,
        saga=query.saga if query.saga_id is None else None,
        step_of=None if query.saga_id is None else (query.saga or "app", query.saga_id),
    )
    limit, after = query.limit, pagination.decode_row(ORDER, query.cursor)
    async with call.context.database.read() as connection:
        found = await jobs.page(connection, wanted, limit + 1, after)
    shown, empty = found[:limit], await _empty(call, found[:limit])
    async with call.context.database.read() as connection:
        waits = await _waits(call, connection, shown, empty)
        done = await complete(connection, shown)
    items = [JobItem.made(job, done=job.id in done, waits_for=waits.get(job.id)) for job in shown]
    last = shown[-1] if len(found) > limit else None
    return JobPage(items=items, next_cursor=pagination.encode_row(ORDER, last.created_at, last.id) if last else None)


async def _load(call: Call, wanted: str) -> JobRow:
    async with call.context.database.read() as connection:
        job = await jobs.get(connection, wanted)
    if job is None:
        raise not_found(f"job {wanted}")
    about_job(job)
    return job


@operations.get(ONE, of=job_id, headers=(IF_NONE_MATCH,))
async def get_job(call: Call, wanted: str) -> JobBody | Response:
    """Show a job.

    With its payload, its attempts, and what it waits for.
    """
    job = await _load(call, wanted)
    empty = await _empty(call, [job])
    async with call.context.database.read() as connection:
        tried = await jobs.attempts(connection, job.id)
        waits = (await _waits(call, connection, [job], empty)).get(job.id)
        done = job.id in await complete(connection, [job])
    answer = JobBody.whole(job, call.context.links, tried, waits, done=done)
    is_settled = waits is None and not (job.ended and job.channels)
    # What it waits for, and its log, can change while the job does not.
    return answer if is_settled else respond(answer)


@operations.get(
    f"{ONE}/logs", of=job_id, events={"log": LogBody, "end": LogEnd}, headers=(LAST_EVENT_ID,), others=streams.OVER
)
async def get_job_logs(call: Call, wanted: str, query: LogQuery) -> Response | LogPage:
    """Show or follow the log of a job.

    Attempt by attempt. With `follow` as server-sent events: the lines so far, then each new one, until the end.
    """
    return await logs.list_lines(call, await _load(call, wanted), query)


@operations.get(f"{ONE}/why", of=job_id)
async def why_job(call: Call, wanted: str) -> JobWhyBody:
    """Explain where a job is.

    What it waits for, or how it has ended, and the next action: a command to type, or to wait.
    """
    job = await _load(call, wanted)
    empty = await _empty(call, [job])
    async with call.context.database.read() as connection:
        around = await _around(call, connection, [job], empty)
        action, now = await _last_action(connection, job), connection.now()
    found = explain(JobStateFacts(job, now, action, around.get(job.id), call.context.broker_status.problem))
    more = {"trace_id": trace_id_of(job.traceparent), "links": links_of(job, call.context.links)}
    return JobWhyBody.of(found, id=job.id, state=job.state, **more)


async def _last_action(connection: Connection, job: JobRow) -> AuditRow | None:
    """The cancel or retry by a person that the job's state comes from, if it is among the last ones of all jobs."""
    verb = RETRY if is_retried(job) else CANCEL
    if verb == CANCEL and job.cancel_reason is None:
        return None
    found = await audit.page(connection, AuditFilter(verb=verb, after=job.created_at), ACTIONS_LIMIT)
    mine = (row for _, row in found if row.detail is not None and row.detail.get("job") == job.id)
    return next((row for row in mine if verb == RETRY or row.reason == job.cancel_reason), None)


@operations.post(f"{ONE}/cancel", of=job_id, problems=("illegal_transition",))
async def cancel_job(call: Call, wanted: str, why: RequiredReason) -> JobSummary:
    """Cancel a job.

    One that a worker is processing ends when the worker has received the cancel. Asking again changes nothing.
    """
    job = await call.context.canceller.cancel(wanted, why.reason, call.actor)
    about_job(job)
    async with call.context.database.read() as connection:
        done = job.id in await complete(connection, [job])
    return JobSummary.made(job, done=done)


@operations.post(f"{ONE}/retry", of=job_id, problems=("illegal_transition",))
async def retry_job(call: Call, wanted: str, why: OptionalReason) -> JobSummary:
    """Retry a job.

    One that has FAILED or TIMED_OUT or was CANCELLED gets another attempt, and all its retries again. Asking again
    before that attempt is sent changes nothing. A job that is a step of a saga is refused: retry the saga.
    """
    job = await call.context.retrier.retry(wanted, why.reason or NO_REASON, call.actor)
    about_job(job)
    return JobSummary.made(job)


async def _empty(call: Call, found: Sequence[JobRow]) -> list[str]:
    """The queues of those jobs that have no order in them. The broker is asked, with no connection to the database."""
    now, limits = call.context.database.now(), _limits(call)
    waiting = [job for job in found if job.state == DISPATCHED and may_wait(job, now, limits.of(job))]
    sent = {dispatch_queue(job.queue): job.queue for job in waiting if job.queue is not None}
    return [sent[name] for name in await call.context.broker_status.empty(sent, max_age_s=COUNT_TTL_S)]


async def _waits(
    call: Call, connection: Connection, found: Sequence[JobRow], empty: Sequence[str]
) -> dict[str, str | None]:
    """What those of the jobs wait for that may wait; as many questions for all as for one."""
    now, trouble = connection.now(), call.context.broker_status.problem
    around = await _around(call, connection, found, empty)
    return {job.id: waits_for(job, now, around[job.id], trouble) for job in found if job.id in around}


async def _around(
    call: Call, connection: Connection, found: Sequence[JobRow], empty: Sequence[str]
) -> dict[str, DiagnosisContext]:
    """What is known around those of the jobs that may wait."""
    limits = _limits(call)
    waiting = [job for job in found if may_wait(job, connection.now(), limits.of(job))]
    return await job_queues.diagnosis_context(connection, waiting, limits, empty)


def _limits(call: Call) -> SilenceLimits:
    return SilenceLimits(call.context.silent, call.context.registry.settings.dead)
