"""Registry routes: heartbeats and goodbyes of executors, groups, routing and draining."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final

from orchestrix.api import pagination
from orchestrix.api.guards.auth import ANONYMOUS, EXECUTORS_OF
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence, invalid_body, not_found
from orchestrix.api.query import Paging
from orchestrix.api.registry.models import (
    AppQuery,
    DeregisteredBody,
    DrainBody,
    ExecutorBody,
    GroupBody,
    GroupPage,
    HeartbeatBody,
    NewGroup,
    RegisteredBody,
    RouteAnswer,
    RouteBody,
)
from orchestrix.api.values import NO_REASON, OptionalReason, ReasonQuery, reason_of
from orchestrix.domain.registry.addresses import MOST_KEPT, parse_address
from orchestrix.domain.registry.routing import NoExecutors, Pick, Strategy, UnknownExecutor
from orchestrix.errors import NotFound, OutcomeUnknown
from orchestrix.registry.address_check import AddressNotAllowed
from orchestrix.registry.group_control import By
from orchestrix.registry.host_lookups import UnresolvedHost
from orchestrix.registry.registrar import GroupFull
from orchestrix.registry.router import RouteRequest
from orchestrix.saga.validation.names import normal

ORDER: Final = "appName of group"
ONE: Final = "/registry/groups/{app:path}"


def _refusal(error: Exception, key: Any) -> Problem | None:
    match error:
        case AddressNotAllowed():
            return invalid_body([{"pointer": "/registryValue", "detail": str(error)}])
        case UnknownExecutor():
            return invalid_body([{"pointer": "/address", "detail": as_sentence(error).removesuffix(".")}])
        case GroupFull():
            return Problem("group_full", as_sentence(error))
        case NoExecutors():
            return Problem("no_executors", as_sentence(error))
        case NotFound():
            return Problem("not_found", as_sentence(error))
        case UnresolvedHost():
            return Problem("unavailable", as_sentence(error), headers={"Retry-After": "1"})
        case _:
            return None


operations = Operations("registry", refusal=_refusal)


def app_of(call: Call) -> str:
    """The app in the path. Raises `Problem` 404 for what no app can be called."""
    text = call.path("app")
    try:
        return normal(text)
    except ValueError:
        raise not_found(f"group {text[:100]!r}") from None


def new_app_of(call: Call) -> str:
    """The app in the path, which need not have a group. Raises `Problem` 422 that says what is wrong with the name."""
    try:
        return normal(call.path("app"))
    except ValueError as wrong:
        raise invalid_body([{"pointer": "/app", "detail": str(wrong)}]) from None


@operations.post("/api/registry", executors=True, problems=("forbidden", "group_full"))
async def register_executor(call: Call, beat: HeartbeatBody) -> RegisteredBody:
    """Register an executor, or send its heartbeat.

    The first heartbeat registers it. The answer comes after the commit; an executor that got none sends the same to
    another node, or again after the interval. `ORCHESTRIX_REGISTRY__ALLOW` says which addresses are taken. Without
    any token, those of this machine alone can be registered, and from this machine.
    """
    registry = call.context.registry
    if (served := call.request.scope.get("server")) is not None and served[1] is not None:
        registry.listeners.called_at(*served)
    _check_app(call, beat.registryKey)
    _check_open(call, beat.registryValue)
    await registry.check.admit(parse_address(beat.registryValue))
    await registry.registrar.register(beat.heartbeat)
    return RegisteredBody(beat_ms=round(registry.settings.beat * 1000))


@operations.post("/api/registryRemove", executors=True, problems=("forbidden",))
async def deregister_executor(call: Call, who: ExecutorBody) -> DeregisteredBody:
    """Deregister an executor that stops.

    A heartbeat of the same instance that arrives in the next 90 s does not register it again: it was overtaken on its
    way. The goodbye of an instance does not remove another one at its address.
    """
    _check_app(call, who.registryKey)
    _check_open(call, who.registryValue)
    executor = who.registryKey, who.registryValue
    return DeregisteredBody(removed=await call.context.registry.registrar.deregister(executor, who.instance))


def _check_app(call: Call, app: str) -> None:
    """A token of one app's executors opens nothing for another app."""
    kind, _, own = call.actor.partition(EXECUTORS_OF)
    if not kind and own and own != app:
        raise Problem("forbidden", f"This token is for executors of {own!r}.")


def _check_open(call: Call, address: str) -> None:
    """Without any token, registrations come from this machine and are of it."""
    if call.actor != ANONYMOUS:
        return
    client = call.request.client.host if call.request.client is not None else ""
    if not (_is_loopback(client) and _is_loopback(parse_address(address).host)):
        raise Problem(
            "forbidden",
            "Without tokens only executors on this machine can register. Set ORCHESTRIX_REGISTRY__TOKEN here, and send "
            "it as a bearer token.",
        )


@lru_cache(MOST_KEPT)
def _is_loopback(host: str) -> bool:
    try:
        ip = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


@operations.get("/registry/groups")
async def list_groups(call: Call, query: Paging) -> GroupPage:
    """List executor groups.

    By app, also apps that have executors and no group. While the database is away, as this node has last read them.
    """
    view = await call.context.registry.directory.view()
    after = pagination.decode(ORDER, query.cursor, str)[0] if query.cursor else None
    rest = [one for one in view.apps if after is None or one.app > after]
    shown = rest[: query.limit]
    cursor = pagination.encode(ORDER, shown[-1].app, 0) if len(rest) > query.limit else None
    return GroupPage(items=[GroupBody.made(one, view.as_of) for one in shown], next_cursor=cursor, as_of=view.as_of)


@operations.get(ONE, of=app_of)
async def get_group(call: Call, app: str) -> GroupBody:
    """Show the executor group of an app.

    With its executors, in which state they are and since when.
    """
    return await _shown(call, app)


async def _shown(call: Call, app: str, *, fresh: bool = False) -> GroupBody:
    view = await call.context.registry.directory.view(fresh=fresh)
    found = next((one for one in view.apps if one.app == app), None)
    if found is None:
        raise NotFound(f"{app!r} has no executor group and no executors")
    return GroupBody.made(found, view.as_of)


async def _changed(call: Call, app: str) -> GroupBody:
    """The group after a change, never from memory, which does not have the change. Raises `OutcomeUnknown`."""
    shown = await _shown(call, app, fresh=True)
    if shown.as_of is not None:
        raise OutcomeUnknown("the database was lost after the change")
    return shown


@operations.put(ONE, of=new_app_of)
async def set_group(call: Call, app: str, new: NewGroup) -> GroupBody:
    """Set the addresses of an executor group.

    Makes the group if the app has none. Heartbeats do not touch the addresses of a MANUAL group, all of which
    `ORCHESTRIX_REGISTRY__ALLOW` must allow; an AUTO group has those of its registered executors.
    """
    registry = call.context.registry
    if new.addressType == "AUTO" and new.addressList is not None:
        raise invalid_body([{"pointer": "/addressList", "detail": "must be left out with AUTO"}])
    if new.addressType == "MANUAL" and new.addressList is None:
        raise invalid_body([{"pointer": "/addressList", "detail": "is required with MANUAL"}])
    if (refused := await registry.check.refused([parse_address(one) for one in new.addresses or ()])) is not None:
        raise invalid_body([{"pointer": f"/addressList/{refused[0]}", "detail": str(refused[1])}])
    await registry.control.set(app, new.addresses, By(call.actor, new.reason or NO_REASON))
    return await _changed(call, app)


@operations.delete(ONE, of=app_of)
async def delete_group(call: Call, app: str, query: ReasonQuery, why: OptionalReason) -> GroupBody:
    """Delete an executor group.

    The answer is the group as it was. Its executors stay registered, without a group.
    """
    before = await _shown(call, app)
    await call.context.registry.control.delete(app, By(call.actor, reason_of(query, why)))
    return before


@operations.post("/registry/route", problems=("not_found", "no_executors"))
async def route(call: Call, query: AppQuery, wanted: RouteBody) -> RouteAnswer:
    """Pick executors by a strategy.

    As a job of that routing would be given to them now, but nothing is called. A pick of ROUND_ROBIN moves the group's
    turn.
    """
    if wanted.strategy is Strategy.ADDRESS and wanted.address is None:
        raise invalid_body([{"pointer": "/address", "detail": "is required with ADDRESS"}])
    request = RouteRequest(wanted.strategy, wanted.key, wanted.address, wanted.count)
    return _answer(wanted, await call.context.registry.router.route(query.app, request))


def _answer(wanted: RouteBody, picks: list[Pick]) -> RouteAnswer:
    first = picks[0]
    if wanted.strategy is Strategy.SHARDING_BROADCAST:
        return RouteAnswer(address=None, addresses=list(first.addresses), spread=None, reason=first.reason)
    if wanted.count is not None:
        addresses = [pick.addresses[0] for pick in picks]
        return RouteAnswer(address=None, addresses=addresses, spread=dict(Counter(addresses)), reason=first.reason)
    several = list(first.addresses) if wanted.strategy is Strategy.FAILOVER else None
    return RouteAnswer(address=first.addresses[0], addresses=several, spread=None, reason=first.reason)


@operations.post("/registry/drain", problems=("not_found",))
async def drain_executor(call: Call, query: AppQuery, wanted: DrainBody) -> GroupBody:
    """Drain an executor.

    It gets no new jobs until it is included again or another process registers at its address.
    """
    by = By(call.actor, wanted.reason or NO_REASON)
    await call.context.registry.control.drain((query.app, wanted.address), by, drained=wanted.drain)
    return await _changed(call, query.app)
