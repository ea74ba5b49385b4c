"""Job log: what a job has logged so far, and from now on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT
from starlette.responses import Response

from orchestrix import clock
from orchestrix.api import pagination, streams
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.jobs.models import LogBody, LogEnd, LogPage, LogQuery
from orchestrix.api.operations import Call
from orchestrix.api.problems import bad_header, bad_parameter
from orchestrix.domain.jobs import JobRow
from orchestrix.persistence.jobs import job_logs, jobs
from orchestrix.persistence.jobs.job_logs import After, JobLogLine
from orchestrix.saga.messages import MAX_ID

ORDER: Final = "log"
CHUNK: Final = 200
NOTHING: Final = "none"
"""The id of the end of a stream without lines. An `EventSource` comes back with the last id that it has seen: without
one it would begin again for ever."""


async def list_lines(call: Call, job: JobRow, query: LogQuery) -> Response | LogPage:
    """One page, the oldest line first; or all of it, live."""
    name = pagination.decode(ORDER, query.cursor, str)[0] if query.cursor else None
    after = await _place(call.context, job.id, name) if name is not None else None
    if name is not None and after is None:
        raise bad_parameter("cursor", "was not given out by this API for this job; begin again without it.")
    if query.follow:
        return await _follow(call, job, after)
    async with call.context.database.read() as connection:
        found = await job_logs.page(connection, job.id, query.limit + 1, after)
    last = found[query.limit - 1] if len(found) > query.limit else None
    cursor = pagination.encode(ORDER, f"{last.history_id} {last.seq}", 0) if last else None
    return LogPage(items=[LogBody.of(one) for one in found[: query.limit]], next_cursor=cursor)


async def _follow(call: Call, job: JobRow, after: After | None) -> Response:
    """Answers 204 where nothing can follow any more, by which an `EventSource` does not reconnect."""
    text = call.request.headers.get("last-event-id", "")
    if text not in ("", NOTHING) and (after := await _place(call.context, job.id, text.replace(":", " "))) is None:
        raise bad_header("Last-Event-ID", "must be the id of an event of this stream; begin again without it.")
    if text and await _is_over(call.context, job) and not await _lines(call.context, job.id, after):
        return Response(status_code=204)
    return streams.streamed(call, _followed(call.context, job.id, after))


async def _followed(context: ApiContext, job_id: str, after: After | None) -> AsyncIterator[bytes]:
    silent_since = clock.monotonic()
    while not context.health.stopping:
        # In this order: the log of an ended job is read once more, the opposite order would lose its end.
        async with context.database.read() as connection:
            job = await jobs.get(connection, job_id)
            over = job is None or job.id in await job_logs.complete(connection, [job])
        found = await _lines(context, job_id, after)
        for one in found:
            yield streams.event("log", f"{one.history_id}:{one.seq}", LogBody.of(one))
            after, silent_since = (one.attempt, one.seq), clock.monotonic()
        if found:
            continue
        if over:
            yield streams.event("end", None if after is not None else NOTHING, _end(job))
            return
        if clock.monotonic() - silent_since > streams.KEEP_ALIVE_S:
            silent_since = clock.monotonic()
            yield KEEPALIVE_COMMENT
        await context.job_watch.changed(job_id, streams.KEEP_ALIVE_S)


async def _lines(context: ApiContext, job_id: str, after: After | None) -> list[JobLogLine]:
    async with context.database.read() as connection:
        return await job_logs.page(connection, job_id, CHUNK, after)


async def _is_over(context: ApiContext, job: JobRow) -> bool:
    """Whether no line can follow."""
    async with context.database.read() as connection:
        return job.id in await job_logs.complete(connection, [job])


def _end(job: JobRow | None) -> LogEnd:
    if job is None:
        return LogEnd(state=None, logs_complete=False, log_cut=False)
    return LogEnd.of(job, logs_complete=True, log_cut=bool(job.log_cut))


async def _place(context: ApiContext, job_id: str, text: str) -> After | None:
    """The place of the line that is called so; by its attempt, whose id says nothing of the order."""
    history_id, _, seq = text.partition(" ")
    whole = seq.isascii() and seq.isdigit() and len(seq) <= 16 and int(seq) < MAX_ID
    if not whole or not 0 < len(history_id) <= 36 or not (history_id.isascii() and history_id.isprintable()):
        return None
    async with context.database.read() as connection:
        return await job_logs.place(connection, job_id, history_id, int(seq))
