"""Job log routes: what a job has logged so far, and from now on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import Response

from orchestrix import clock
from orchestrix.api import cursors
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.listing import DEFAULT_LIMIT, page_response
from orchestrix.api.parameters import Parameter
from orchestrix.api.problems import bad_header, bad_parameter, not_found
from orchestrix.api.routes import Call
from orchestrix.api.serializers import moment
from orchestrix.api.stream import HEADERS, KEEP_ALIVE, RETRY_MS
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import RetryableError
from orchestrix.persistence.jobs import job_logs, jobs
from orchestrix.persistence.jobs.job_logs import After, JobLogLine
from orchestrix.saga.messages import MAX_ID, dump

log = logging.getLogger("orchestrix.api")

ORDER: Final = "log"
CHUNK: Final = 200
NOTHING: Final = "none"
"""The id of the end of a stream without lines. An `EventSource` comes back with the last id that it has seen: without
one it would begin anew for ever."""
FOLLOW: Final = Parameter("follow", "As server-sent events, until the job has ended.", {"type": "boolean"})


def job_id(call: Call) -> str:
    """The id in the path; raises `Problem` 404 for what no job can have."""
    text = call.path("job")
    try:
        return str(UUID(text))
    except ValueError:
        raise not_found(f"job {text[:60]!r}") from None


async def load(call: Call) -> JobRow:
    """The job that the path names; raises `Problem` 404."""
    wanted = job_id(call)
    async with call.context.database.read() as connection:
        job = await jobs.get(connection, wanted)
    if job is None:
        raise not_found(f"job {wanted}")
    return job


async def list_lines(call: Call) -> Response:
    """One page, the oldest line first; or all of it, live."""
    follow = call.query.flag(FOLLOW.name)
    limit, cursor = call.query.limit(DEFAULT_LIMIT), call.query.text("cursor")
    name = cursors.decode(ORDER, cursor, str)[0] if cursor else None
    job = await load(call)
    after = await _place(call.context, job.id, name) if name is not None else None
    if name is not None and after is None:
        raise bad_parameter("cursor", "was not given out by this API for this job; begin again without it.")
    if follow:
        return await _follow(call, job, after)
    async with call.context.database.read() as connection:
        found = await job_logs.page(connection, job.id, limit + 1, after)
    last = found[limit - 1] if len(found) > limit else None
    items = [line(one) for one in found[:limit]]
    return page_response(call, items, cursors.encode(ORDER, _name(last), 0) if last else None)


def line(one: JobLogLine) -> dict[str, Any]:
    """One line."""
    return {
        "historyId": one.history_id,
        "attempt": one.attempt,
        "seq": one.seq,
        "level": one.level,
        "message": one.message,
        "workerId": one.worker_id,
        "at": moment(one.at),
    }


async def _follow(call: Call, job: JobRow, after: After | None) -> Response:
    """Answers 204 where nothing can follow any more, which tells an `EventSource` to stay away."""
    text = call.request.headers.get("last-event-id", "")
    if text not in ("", NOTHING) and (after := await _place(call.context, job.id, text.replace(":", " "))) is None:
        raise bad_header("Last-Event-ID", "must be the id of an event of this stream; begin again without it.")
    if text and await _is_over(call.context, job) and not await _lines(call.context, job.id, after):
        return Response(status_code=204)
    call.context.streams.admit(call.client)
    events = call.context.streams.counted(call.client, _events(call.context, job.id, after))
    return EventSourceResponse(events, headers=HEADERS)


async def _events(context: ApiContext, job_id: str, after: After | None) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RETRY_MS)
    try:
        async for event in _followed(context, job_id, after):
            yield event
    except RetryableError as away:
        # The answer has begun, so its status cannot change any more: the client reconnects and goes on where it was.
        log.debug("a stream ends early: %s", away)


async def _followed(context: ApiContext, job_id: str, after: After | None) -> AsyncIterator[bytes]:
    silent_since = clock.monotonic()
    while not context.health.draining:
        # In this order: the log of an ended job is read once more, the opposite order would lose its end.
        async with context.database.read() as connection:
            job = await jobs.get(connection, job_id)
            over = job is None or job.id in await job_logs.complete(connection, [job])
        found = await _lines(context, job_id, after)
        for one in found:
            yield format_sse_event(event="log", id=f"{one.history_id}:{one.seq}", data_str=dump(line(one)).decode())
            after, silent_since = (one.attempt, one.seq), clock.monotonic()
        if found:
            continue
        if over:
            seen = None if after is not None else NOTHING
            yield format_sse_event(event="end", id=seen, data_str=dump(_end(job)).decode())
            return
        if clock.monotonic() - silent_since > KEEP_ALIVE:
            silent_since = clock.monotonic()
            yield KEEPALIVE_COMMENT
        await context.job_watch.changed(job_id, KEEP_ALIVE)


async def _lines(context: ApiContext, job_id: str, after: After | None) -> list[JobLogLine]:
    async with context.database.read() as connection:
        return await job_logs.page(connection, job_id, CHUNK, after)


async def _is_over(context: ApiContext, job: JobRow) -> bool:
    """Whether no line can follow."""
    async with context.database.read() as connection:
        return job.id in await job_logs.complete(connection, [job])


def _end(job: JobRow | None) -> dict[str, Any]:
    if job is None:
        return {"state": None, "logsComplete": False, "logCut": False}
    return {"state": job.state, "logsComplete": True, "logCut": bool(job.log_cut)}


def _name(one: JobLogLine) -> str:
    return f"{one.history_id} {one.seq}"


async def _place(context: ApiContext, job_id: str, text: str) -> After | None:
    """The place of the line that is called so; by its attempt, whose id says nothing of the order."""
    history_id, _, seq = text.partition(" ")
    whole = seq.isascii() and seq.isdigit() and len(seq) <= 16 and int(seq) < MAX_ID
    if not whole or not 0 < len(history_id) <= 36 or not (history_id.isascii() and history_id.isprintable()):
        return None
    async with context.database.read() as connection:
        return await job_logs.place(connection, job_id, history_id, int(seq))
