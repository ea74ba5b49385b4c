"""Streams: server-sent events, and waiting for a change without asking the database all the time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.requests import Request
from starlette.responses import Response

from orchestrix import clock
from orchestrix.api.answers import Answer
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.operations import Call
from orchestrix.errors import RetryableError

log = logging.getLogger("orchestrix.api")

KEEP_ALIVE_S: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the connection for dead."""
RETRY_MS: Final = 1000
SLICE_S: Final = 1.0
"""Seconds after which a waiting request sees that the process is stopping."""
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
OVER: Final = {204: "It has ended and the client has seen it all."}
"""The answer to an `EventSource` that need not reconnect."""


def event(name: str, id: str | None, data: Answer) -> bytes:
    """One event."""
    return format_sse_event(event=name, id=id, data_str=data.json_bytes().decode())


def streamed(call: Call, events: AsyncIterator[bytes]) -> Response:
    """`events` as an answer that counts among the streams of the client. Raises `Problem` 429."""
    call.context.streams.admit(call.client)
    return EventSourceResponse(call.context.streams.counted(call.client, _begun(events)), headers=HEADERS)


async def _begun(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RETRY_MS)
    try:
        async for one in events:
            yield one
    except RetryableError as error:
        # The answer has begun, so its status cannot change any more: the client reconnects and continues where it was.
        log.debug("a stream ends early: %s", error)


async def moved(context: ApiContext, saga: str, instance_id: int, version: int, seconds: float) -> bool:
    """True once the instance may have passed `version`; False when `seconds` are over or the process is stopping."""
    end = clock.monotonic() + seconds
    while not context.health.stopping and (left := end - clock.monotonic()) > 0:
        until = clock.monotonic() + min(left, SLICE_S)
        await context.watch.changed(saga, instance_id, version, min(left, SLICE_S))
        if clock.monotonic() < until:
            return True
    return False


async def unless_gone(request: Request, work: Coroutine[Any, Any, bool]) -> bool:
    """What `work` returns; False, and `work` ended, once the client has gone away."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done() and tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> bool:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return False
