"""Job routes: submit, list, show and cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from starlette.responses import Response

from orchestrix.api import cursors, job_logs
from orchestrix.api.action_requests import Demand
from orchestrix.api.control import BODY_PROBLEMS
from orchestrix.api.headers import CORRELATION, correlation_id, matches, trace_context
from orchestrix.api.idempotency import key_of, repeated
from orchestrix.api.instance_routes import SHOWN, START_HEADERS, START_PROBLEMS, STARTED, header, json_of, page
from orchestrix.api.job_schemas import JobBody, JobPage, JobSummary, LogPage, NewJob
from orchestrix.api.listing import CURSOR, DEFAULT_LIMIT, LIMIT, page_response
from orchestrix.api.parameters import Parameter, Query
from orchestrix.api.problems import Problem, bad_parameter, said
from orchestrix.api.request_body import parsed, read_object
from orchestrix.api.routes import Call, Route
from orchestrix.api.serializers import moment, perhaps
from orchestrix.api.start import JSON
from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.domain.job_diagnosis import may_wait, waits_for
from orchestrix.domain.jobs import DISPATCHED, PENDING, STATES, JobAttempt, JobRow
from orchestrix.engine.broker_status import COUNT_TTL_S
from orchestrix.errors import ConflictError
from orchestrix.jobs.submission import JobRequest, JobRequestKey
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.jobs import job_queues, jobs
from orchestrix.persistence.jobs.job_logs import complete
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.saga.messages import dump

ORDER: Final = "-createdAt job"
FILTERS: Final = (
    Parameter("state", "Only these states. May stand several times.", many=True),
    Parameter("queue", "Only those for the workers of this queue."),
    Parameter("createdBy", "Only what this person asked for."),
    Parameter("scheduleId", "Only what came of this schedule."),
    Parameter("sagaId", "Only the jobs that are, or were, steps of this instance of a saga."),
    Parameter("saga", "The name of that saga: `app` if it is left out."),
)


async def submit(call: Call) -> Response:
    """Puts a job down."""
    body = await read_object(call.request)
    wish = parsed(NewJob, body)
    assert wish.queue is not None, "the model has seen to that"
    traceparent, tracestate = trace_context(call.request)
    order = JobRequest(
        queue=wish.queue,
        handler=wish.handler,
        payload=wish.payload,
        retries=wish.retries,
        timeout_ms=None if wish.timeout is None else max(1, round(wish.timeout.total_seconds() * 1000)),
        created_by=wish.createdBy or call.actor,
        correlation_id=correlation_id(call.request),
        traceparent=traceparent,
        tracestate=tracestate,
    )
    match await call.context.submitter.submit(order, _key(call, body)):
        case JobRow() as job:
            return Response(_body(job), 201, _headers(job))
        case before:
            return repeated(before)


async def list_jobs(call: Call) -> Response:
    """One page, the newest first."""
    query = call.query
    wanted = JobFilter(
        states=query.choices("state", STATES),
        queue=query.text("queue"),
        created_by=query.text("createdBy"),
        schedule_id=query.text("scheduleId"),
        step_of=_step_of(query),
    )
    limit, after = query.limit(DEFAULT_LIMIT), _after(query.text("cursor"))
    async with call.context.database.read() as connection:
        found = await jobs.page(connection, wanted, limit + 1, after)
    empty = await _empty(call, found[:limit])
    async with call.context.database.read() as connection:
        waits = await _waits(call, connection, found[:limit], empty)
        done = await complete(connection, found[:limit])
    last = found[limit - 1] if len(found) > limit else None
    cursor = cursors.encode(ORDER, f"{last.created_at.isoformat()} {last.id}", 0) if last else None
    items = [{**summary(job, job.id in done), "waitsFor": waits.get(job.id)} for job in found[:limit]]
    return page_response(call, items, cursor)


def _step_of(query: Query) -> tuple[str, int] | None:
    saga, id = query.text("saga"), query.number("sagaId", 1)
    if saga is not None and id is None:
        raise bad_parameter("saga", "needs a sagaId beside it.")
    return None if id is None else (saga or "app", id)


async def show(call: Call) -> Response:
    """One job with its attempts; 304 where the client has it."""
    job = await job_logs.load(call)
    empty = await _empty(call, [job])
    async with call.context.database.read() as connection:
        tried = await jobs.attempts(connection, job.id)
        waits = (await _waits(call, connection, [job], empty)).get(job.id)
        done = job.id in await complete(connection, [job])
    tag = _etag(job)
    is_settled = waits is None and not (job.ended and job.channels)
    if is_settled and matches(call.request, tag):  # what it waits for, and its log, can change while the job does not
        return Response(status_code=304, headers={"ETag": tag})
    return Response(dump(whole(job, tried, waits, done=done)), headers={"ETag": tag}, media_type=JSON)


async def cancel(call: Call) -> Response:
    """Stops a job."""
    wanted = job_logs.job_id(call)
    demand = parsed(Demand, await read_object(call.request))
    try:
        job = await call.context.canceller.cancel(wanted, demand.reason)
    except ConflictError as refused:
        raise Problem("illegal_transition", said(refused), allowed=[]) from None
    async with call.context.database.read() as connection:
        done = job.id in await complete(connection, [job])
    return Response(dump(summary(job, done)), headers={"ETag": _etag(job)}, media_type=JSON)


def summary(job: JobRow, done: bool = False) -> dict[str, Any]:
    """The job by itself, and whether its log is `done`. What a lost attempt had done is no progress of the next one."""
    return {
        "id": job.id,
        "queue": job.queue,
        "handler": job.handler,
        "state": job.state,
        "ownership": job.ownership,
        "owner": job.owner,
        "ownerEpoch": job.owner_epoch,
        "historyId": job.history_id,
        "attempt": job.attempt,
        "retries": job.retries,
        "timeoutMs": job.timeout_ms,
        "progress": None if job.state == PENDING else job.progress,
        "result": job.result,
        "error": job.error,
        "cancelReason": job.cancel_reason,
        "workerId": job.worker_id,
        "workerBeatAt": perhaps(job.worker_beat_at),
        "createdBy": job.created_by,
        "correlationId": job.correlation_id,
        "createdAt": moment(job.created_at),
        "updatedAt": moment(job.updated_at),
        "version": job.version,
        "wakeAt": perhaps(job.wake_at),
        "dispatchedAt": perhaps(job.dispatched_at),
        "startedAt": perhaps(job.started_at),
        "finishedAt": perhaps(job.finished_at),
        "scheduleId": job.schedule_id,
        "dueAt": perhaps(job.due_at),
        "saga": job.saga,
        "sagaId": job.instance_id,
        "step": job.step,
        "logsComplete": done,
        "logCut": bool(job.log_cut),
    }


def whole(job: JobRow, tried: list[JobAttempt], waits: str | None = None, *, done: bool = False) -> dict[str, Any]:
    """The job with what its function gets, what it waits for, and its attempts."""
    more = {"payload": job.payload, "waitsFor": waits, "attempts": [_attempt(one) for one in tried]}
    return {**summary(job, done), **more}


async def _empty(call: Call, found: Sequence[JobRow]) -> list[str]:
    """The queues of those jobs that have no order in them. The broker is asked, with no connection to the database."""
    now, limit = call.context.database.now(), call.context.silent
    waiting = [job for job in found if job.state == DISPATCHED and may_wait(job, now, limit)]
    sent = {dispatch_queue(job.queue): job.queue for job in waiting}
    return [sent[name] for name in await call.context.surroundings.empty(sent, fresh=COUNT_TTL_S)]


async def _waits(
    call: Call, connection: Connection, found: Sequence[JobRow], empty: Sequence[str]
) -> dict[str, str | None]:
    """What those of the jobs wait for that may wait; as many questions for all as for one."""
    now, limit, trouble = connection.now(), call.context.silent, call.context.surroundings.trouble
    waiting = [job for job in found if may_wait(job, now, limit)]
    around = await job_queues.around(connection, waiting, limit, empty)
    return {job.id: waits_for(job, now, around[job.id], trouble) for job in found if job.id in around}


def _attempt(one: JobAttempt) -> dict[str, Any]:
    return {
        "historyId": one.history_id,
        "attempt": one.attempt,
        "state": one.state,
        "workerId": one.worker_id,
        "error": one.error,
        "dispatchedAt": moment(one.dispatched_at),
        "startedAt": perhaps(one.started_at),
        "finishedAt": perhaps(one.finished_at),
    }


def _key(call: Call, body: dict[str, Any]) -> JobRequestKey | None:
    return key_of(call.request, call.actor, body, _kept)


def _kept(job: JobRow, fingerprint: str) -> StoredAnswer:
    return StoredAnswer(fingerprint, 201, _headers(job), _body(job))


def _body(job: JobRow) -> bytes:
    return dump(whole(job, []))


def _headers(job: JobRow) -> dict[str, str]:
    return {
        "Content-Type": JSON,
        "Location": f"/jobs/{job.id}",
        "ETag": _etag(job),
        CORRELATION: job.correlation_id,
    }


def _etag(job: JobRow) -> str:
    return f'"{job.version}"'


def _after(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    at, _, last_id = cursors.decode(ORDER, cursor, str)[0].partition(" ")
    try:
        return datetime.fromisoformat(at).astimezone(UTC), str(UUID(last_id))
    except (ValueError, OverflowError):
        raise bad_parameter("cursor", "was not given out by this API; begin again without it.") from None


_ONE: Final = "/jobs/{job}"
_PROBLEMS: Final = ("not_found", "bad_parameter", "unavailable")

ROUTES: Final = (
    Route(
        "POST",
        "/jobs",
        "submitJob",
        submit,
        "Put a job down",
        "It is committed when the answer comes, and reaches a worker by itself.",
        tag="jobs",
        headers=START_HEADERS,
        body=NewJob,
        answers={201: json_of(JobBody, "It is committed.", STARTED)},
        problems=tuple(code for code in START_PROBLEMS if code != "already_exists"),
    ),
    Route(
        "GET",
        "/jobs",
        "listJobs",
        list_jobs,
        "Jobs, the newest first",
        tag="jobs",
        parameters=(*FILTERS, LIMIT, CURSOR),
        answers=page(JobPage),
        problems=("bad_parameter", "unavailable"),
    ),
    Route(
        "GET",
        _ONE,
        "getJob",
        show,
        "Show one with its attempts",
        tag="jobs",
        headers=(header("If-None-Match", "The ETag that the client has."),),
        answers={200: json_of(JobBody, "As it is now.", SHOWN), 304: {"description": "The client has it."}},
        problems=_PROBLEMS,
    ),
    Route(
        "GET",
        f"{_ONE}/logs",
        "getJobLogs",
        job_logs.list_lines,
        "What it has logged, attempt by attempt",
        "With `follow` as server-sent events: what is there, then each line as it comes, until the end.",
        tag="jobs",
        parameters=(job_logs.FOLLOW, LIMIT, CURSOR),
        headers=(header("Last-Event-ID", "With `follow`: the id of the last event that was seen."),),
        answers={**page(LogPage), 204: {"description": "It has ended and the client has seen it all."}},
        problems=_PROBLEMS,
    ),
    Route(
        "POST",
        f"{_ONE}/cancel",
        "cancelJob",
        cancel,
        "Stop it",
        "One that a worker is at ends when that has heard of it. Asking again changes nothing.",
        tag="jobs",
        body=Demand,
        answers={200: json_of(JobSummary, "As it is from now on.", SHOWN)},
        problems=(*_PROBLEMS, "illegal_transition", *BODY_PROBLEMS),
    ),
)
