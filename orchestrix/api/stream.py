"""Event stream: a client follows one instance live."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import Response

from orchestrix.api import serializers
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.headers import last_event_id
from orchestrix.api.instance import load
from orchestrix.api.instance_resource import InstanceResource
from orchestrix.api.long_poll import moved
from orchestrix.api.parameters import Parameter
from orchestrix.api.routes import Call
from orchestrix.errors import RetryableError
from orchestrix.persistence.sagas import history, instances
from orchestrix.saga.messages import dump
from orchestrix.saga.state import Instance, StateChange

log = logging.getLogger("orchestrix.api")

KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the connection for dead."""
RETRY_MS: Final = 1000
CHUNK: Final = 200
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

AFTER: Final = Parameter(
    "after", "Begin behind this version; `Last-Event-ID` beats it.", {"type": "integer", "minimum": 0}
)


async def follow(call: Call, kind: InstanceResource) -> Response:
    """Server-sent events, one for each row of history.

    Answers 204 where nothing can follow any more, which tells an `EventSource` to stay away.
    An event's id is the version. Versions have no gaps, so nothing is lost between two connections.
    """
    asked = call.query.number("after") or 0
    resumed = last_event_id(call.request)
    instance = await load(call, kind)
    after = min(asked if resumed is None else resumed, instance.version)
    if not instance.live and after == instance.version:
        return Response(status_code=204)
    call.context.streams.admit(call.client)
    events = call.context.streams.counted(call.client, _events(call.context, kind, instance.id, after))
    return EventSourceResponse(events, headers=HEADERS)


async def _events(context: ApiContext, kind: InstanceResource, instance_id: int, after: int) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RETRY_MS)
    try:
        async for event in _followed(context, kind, instance_id, after):
            yield event
    except RetryableError as away:
        # The answer has begun, so its status cannot change any more: the client reconnects and goes on where it was.
        log.debug("a stream ends early: %s", away)


async def _followed(context: ApiContext, kind: InstanceResource, instance_id: int, after: int) -> AsyncIterator[bytes]:
    while not context.health.draining:
        instance, changes = await _news(context, kind, instance_id, after)
        for change in changes:
            yield _event(change)
            after = change.version
        if not instance.live and after >= instance.version:
            return
        if after < instance.version and changes:
            continue
        if not await moved(context, kind.saga.name, instance_id, after, KEEP_ALIVE):
            yield KEEPALIVE_COMMENT


async def _news(
    context: ApiContext, kind: InstanceResource, instance_id: int, after: int
) -> tuple[Instance, list[StateChange]]:
    async with context.database.read() as connection:
        # In this order: an instance that is newer than its history here is read again, the opposite would hang.
        changes = await history.listing(connection, kind.pair, instance_id, after, CHUNK)
        instance = await instances.get(connection, kind.pair, kind.saga.name, instance_id)
    assert instance is not None  # instances are never deleted
    return instance, list(changes)


def _event(change: StateChange) -> bytes:
    body = dump({**serializers.change(change), "state": change.to_state})
    return format_sse_event(event="state", id=str(change.version), data_str=body.decode())
