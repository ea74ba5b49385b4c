"""Instance reads: one instance, its history, messages and events, and what it waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from fastapi.sse import KEEPALIVE_COMMENT
from pydantic import Field
from starlette.responses import Response

from orchestrix import clock
from orchestrix.api import pagination, streams
from orchestrix.api.answers import JSON
from orchestrix.api.dependencies import ApiContext
from orchestrix.api.headers import IF_NONE_MATCH, LAST_EVENT_ID, last_event_id, not_modified
from orchestrix.api.instances.kinds import InstanceKind, InstanceRef, KindOf, one_of
from orchestrix.api.instances.models import ChangeBody, ChangePage, MessagePage, StateEvent, WhyBody
from orchestrix.api.instances.timeline import messages_of
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import not_found
from orchestrix.api.query import MAX_LIMIT, Duration, Limit, Paging, Query, Whole
from orchestrix.api.traces.links import LINKS, of_row
from orchestrix.api.traces.server_span import about_instance
from orchestrix.errors import NotFound
from orchestrix.persistence.sagas import history, instances
from orchestrix.saga.messages import dump
from orchestrix.saga.state import Instance, StateChange

ORDER: Final = "version"
CHUNK: Final = 200


class WaitQuery(Query):
    """Whether to wait for a change."""

    wait: Duration | None = Field(
        None, description="Answer only when something changes, or after this time: `20s`, `500ms`, `20`; at most `60s`."
    )
    since_version: Whole | None = Field(
        None,
        description="With `wait`: answer as soon as the version is above this one. Without it, the next change is "
        "waited for, unless the instance has ended.",
    )


class HistoryQuery(WaitQuery, Paging):
    """Which rows, and whether to wait for one."""

    limit: Limit = Field(MAX_LIMIT, description="How many items a page has.")


class FollowQuery(Query):
    """Where the stream begins."""

    after: Whole = Field(0, description="Begin behind this version; `Last-Event-ID` beats it.")


def declare(operations: Operations, path: str, noun: str, kind_of: KindOf, model: type[Any]) -> None:
    """The calls about one instance below `path`, which show a `model`."""
    one, get = f"{path}/{{id}}", partial(operations.get, of=one_of(kind_of))
    get(one, name=f"get{noun}", answer=model, headers=(IF_NONE_MATCH,))(show)
    get(f"{one}/history", name=f"get{noun}History")(list_history)
    get(f"{one}/messages", name=f"get{noun}Messages")(list_messages)
    events: dict[str, Any] = {"events": {"state": StateEvent}, "headers": (LAST_EVENT_ID,), "others": streams.OVER}
    get(f"{one}/events", name=f"follow{noun}", **events)(follow)
    get(f"{one}/why", name=f"why{noun}")(explain)


async def show(call: Call, ref: InstanceRef, query: WaitQuery) -> Response:
    """Show {}.

    As it is now, or with `wait` as soon as it has changed.
    """
    instance = await awaited(call, ref, query)
    return not_modified(call.request, instance.version) or shown(ref.kind, instance)


def shown(kind: InstanceKind, instance: Instance, headers: dict[str, str] | None = None) -> Response:
    """The instance as an answer.

    Everything that is shown of it changes with the version, its ETag, but for the wake-up: how the engine waits is no
    change for which an operator has to decide again.
    """
    tag = {"ETag": f'"{instance.version}"', **(headers or {})}
    body, links = kind.view(instance), of_row(kind.links, instance)
    if links is not None:
        body.setdefault(LINKS, links.model_dump())  # an author's model may have a field that is called so
    return Response(dump(body), headers=tag, media_type=JSON)


async def awaited(call: Call, ref: InstanceRef, query: WaitQuery) -> Instance:
    """The instance at the end of the wait that the query asks for; raises `Problem` 404."""
    instance = await load(call, ref)
    since = query.since_version
    if query.wait and not (since is None and not instance.live):
        with call.context.streams.place(call.client):
            return await _moved(call, ref, instance, instance.version if since is None else since, query.wait)
    return instance


async def load(call: Call, ref: InstanceRef) -> Instance:
    """The instance; raises `Problem` 404."""
    kind, wanted = ref
    async with call.context.database.read() as connection:
        instance = await instances.get(connection, kind.pair, kind.saga.name, wanted)
    if instance is None:
        raise not_found(f"{kind.saga.name} {wanted}")
    about_instance(instance)
    return instance


async def list_history(call: Call, ref: InstanceRef, query: HistoryQuery) -> ChangePage:
    """Show the history of {}.

    One row for each change, the oldest first; with `wait` as it is at the end of the wait.
    """
    after = pagination.decode(ORDER, query.cursor, int)[0] if query.cursor else 0
    wanted = (await awaited(call, ref, query)).id
    async with call.context.database.read() as connection:
        found = await history.listing(connection, ref.kind.pair, wanted, after, query.limit + 1)
    last = found[query.limit - 1].version if len(found) > query.limit else None
    cursor = pagination.encode(ORDER, last, wanted) if last else None
    links = ref.kind.links
    items = [ChangeBody.of(change, links=of_row(links, change)) for change in found[: query.limit]]
    return ChangePage(items=items, next_cursor=cursor)


async def list_messages(call: Call, ref: InstanceRef, query: WaitQuery) -> MessagePage:
    """Show the messages of {}.

    Its commands and events, the oldest first, also those that were ignored or became dead letters; with `wait` as
    they are at the end of the wait.
    """
    return await messages_of(call, ref.kind, await awaited(call, ref, query))


async def explain(call: Call, ref: InstanceRef) -> WhyBody:
    """Explain what {} waits for.

    One sentence, and the next action.
    """
    saga, instance = ref.kind.saga.name, await load(call, ref)
    try:
        found = await call.context.explainer.why(saga, ref.id)
    except NotFound:
        raise not_found(f"{saga} {ref.id}") from None
    links = of_row(ref.kind.links, instance)
    return WhyBody.of(found, id=ref.id, saga=saga, trace_id=instance.trace_id, links=links)


async def _moved(call: Call, ref: InstanceRef, instance: Instance, since: int, wait: float) -> Instance:
    """`instance` as it is at the end of the wait; as it is now for a client that went away."""

    async def passed() -> bool:
        nonlocal instance
        end = clock.monotonic() + wait
        while instance.version <= since and await streams.moved(
            call.context, ref.kind.saga.name, instance.id, since, end - clock.monotonic()
        ):
            instance = await load(call, ref)
        return True

    await streams.unless_gone(call.request, passed())
    return instance


async def follow(call: Call, ref: InstanceRef, query: FollowQuery) -> Response:
    """Follow {} live.

    Server-sent events, one for each row of its history; an event's id is its version. The stream ends when the
    instance has ended.
    """
    resumed = last_event_id(call.request)
    instance = await load(call, ref)
    after = min(query.after if resumed is None else resumed, instance.version)
    if not instance.live and after == instance.version:
        return Response(status_code=204)  # by which an `EventSource` does not reconnect
    return streams.streamed(call, _followed(call.context, ref.kind, instance.id, after))


async def _followed(context: ApiContext, kind: InstanceKind, instance_id: int, after: int) -> AsyncIterator[bytes]:
    while not context.health.stopping:
        instance, changes = await _news(context, kind, instance_id, after)
        for change in changes:
            yield streams.event("state", str(change.version), StateEvent.of(change, state=change.to_state, links=None))
            after = change.version
        if not instance.live and after >= instance.version:
            return
        if after < instance.version and changes:
            continue
        if not await streams.moved(context, kind.saga.name, instance_id, after, streams.KEEP_ALIVE_S):
            yield KEEPALIVE_COMMENT


async def _news(
    context: ApiContext, kind: InstanceKind, instance_id: int, after: int
) -> tuple[Instance, Sequence[StateChange]]:
    async with context.database.read() as connection:
        # In this order: an instance that is newer than its history here is read again, the opposite would hang.
        changes = await history.listing(connection, kind.pair, instance_id, after, CHUNK)
        instance = await instances.get(connection, kind.pair, kind.saga.name, instance_id)
    assert instance is not None  # instances are never deleted
    return instance, changes
