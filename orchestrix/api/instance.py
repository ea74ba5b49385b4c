"""Instance: one instance as it is now, and its history."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from orchestrix import clock
from orchestrix.api import cursors, serializers
from orchestrix.api.headers import matches
from orchestrix.api.instance_resource import InstanceResource, instance_id
from orchestrix.api.listing import CURSOR, LIMIT, page_response
from orchestrix.api.long_poll import moved, unless_gone
from orchestrix.api.parameters import MAX_LIMIT, Parameter
from orchestrix.api.problems import not_found
from orchestrix.api.routes import Call
from orchestrix.api.start import JSON
from orchestrix.persistence.sagas import history, instances
from orchestrix.saga.messages import dump
from orchestrix.saga.state import Instance

LONGEST_WAIT: Final = 60.0
ORDER: Final = "version"

WAIT: Final = (
    Parameter("wait", "Answer only when something changes, or after this time: `20s`, `500ms`, `20`; at most `60s`."),
    Parameter(
        "sinceVersion",
        "With `wait`: answer as soon as the version is above this one. Without it, the next change is waited for, "
        "unless the instance has ended.",
        {"type": "integer", "minimum": 0},
    ),
)
PAGING: Final = (LIMIT, CURSOR)


async def show(call: Call, kind: InstanceResource) -> Response:
    """One instance with its ETag; 304 where the client has it; with `wait`, at the end of the wait."""
    instance = await awaited(call, kind)
    tag = serializers.etag(instance)
    if matches(call.request, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return Response(dump(kind.view(instance)), headers={"ETag": tag}, media_type=JSON)


async def awaited(call: Call, kind: InstanceResource) -> Instance:
    """The instance that the path names, at the end of the wait that the query asks for; raises `Problem` 400 or 404."""
    wait = call.query.duration("wait", LONGEST_WAIT)
    since = call.query.number("sinceVersion")
    instance = await load(call, kind)
    if wait and not (since is None and not instance.live):
        with call.context.streams.place(call.client):
            return await _moved(call, kind, instance, instance.version if since is None else since, wait)
    return instance


async def load(call: Call, kind: InstanceResource) -> Instance:
    """The instance that the path names; raises `Problem` 404."""
    wanted = instance_id(call, kind)
    async with call.context.database.read() as connection:
        instance = await instances.get(connection, kind.pair, kind.saga.name, wanted)
    if instance is None:
        raise not_found(f"{kind.saga.name} {wanted}")
    return instance


async def list_history(call: Call, kind: InstanceResource) -> Response:
    """The history, the oldest row first; with `wait`, as it is at the end of the wait."""
    limit = call.query.limit(MAX_LIMIT)
    cursor = call.query.text("cursor")
    after = cursors.decode(ORDER, cursor, int)[0] if cursor else 0
    wanted = (await awaited(call, kind)).id
    async with call.context.database.read() as connection:
        found = await history.listing(connection, kind.pair, wanted, after, limit + 1)
    last = found[limit - 1].version if len(found) > limit else None
    items = [serializers.change(change) for change in found[:limit]]
    return page_response(call, items, cursors.encode(ORDER, last, wanted) if last else None)


async def _moved(call: Call, kind: InstanceResource, instance: Instance, since: int, wait: float) -> Instance:
    """`instance` as it is at the end of the wait; as it is now for a client that went away."""

    async def passed() -> bool:
        nonlocal instance
        end = clock.monotonic() + wait
        while instance.version <= since and await moved(
            call.context, kind.saga.name, instance.id, since, end - clock.monotonic()
        ):
            instance = await load(call, kind)
        return True

    await unless_gone(call.request, passed())
    return instance
