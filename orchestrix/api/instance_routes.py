"""Instance routes: the calls and descriptions that apps and other sagas have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.idempotency import HEADER, REPLAYED
from orchestrix.api.instance import PAGING, WAIT, list_history, show
from orchestrix.api.instance_resource import InstanceResource, KindOf
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.schemas import ChangePage, MessagePage, StateEvent
from orchestrix.api.stream import AFTER, follow
from orchestrix.api.timeline import list_messages

Answers = Mapping[int | str, Mapping[str, Any]]


def header(name: str, about: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A header of requests."""
    return {"name": name, "in": "header", "description": about, "schema": schema or {"type": "string"}}


KEY: Final = header(
    HEADER,
    "Makes a repetition safe: the stored answer comes again. Kept for 24 hours.",
    {"type": "string", "maxLength": 255},
)
KEY_PROBLEMS: Final = ("idempotency_in_flight", "idempotency_key_reused", "outcome_unknown")
START_HEADERS: Final = (
    KEY,
    header(
        "X-Correlation-ID",
        "Carried by every command and event; a UUID by default.",
        {"type": "string", "maxLength": 128},
    ),
    header("traceparent", "W3C Trace Context; carried along."),
)
START_PROBLEMS: Final = (
    "malformed_json",
    "bad_parameter",
    "already_exists",
    "idempotency_in_flight",
    "body_too_large",
    "unsupported_media_type",
    "invalid_body",
    "idempotency_key_reused",
    "unavailable",
    "outcome_unknown",
)
SHOWN: Final = {"ETag": {"description": "The version in quotes.", "schema": {"type": "string"}}}
REPEATED: Final = {REPLAYED: {"description": "`true` for a stored answer.", "schema": {"type": "string"}}}
STARTED: Final = {
    **SHOWN,
    "Location": {"description": "Where it is from now on.", "schema": {"type": "string"}},
    **REPEATED,
}


def json_of(model: type[Any], about: str, headers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An answer with a `model` as its body."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {"description": about, "content": content, **({"headers": headers} if headers else {})}


def started(model: type[Any]) -> Answers:
    """The answers to a start."""
    return {200: json_of(model, "It is committed.", STARTED)}


def page(model: type[Any]) -> Answers:
    """The answers to a list."""
    link = {"Link": {"description": 'The next page, `rel="next"`.', "schema": {"type": "string"}}}
    return {200: json_of(model, "One page.", link)}


_STREAM: Final[Answers] = {
    200: {
        "description": "Events named `state`, one for each row of history; the id is its version.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string", "description": f"The data of each event is a `{StateEvent.__name__}`."}
            }
        },
    },
    204: {"description": "It has ended and the client has seen it all."},
}
_PROBLEMS: Final = ("not_found", "bad_parameter", "unavailable")


def of_one(tag: str, path: str, noun: str, kind_of: KindOf, model: type[Any]) -> tuple[Route, ...]:
    """The calls about one instance below `path`."""
    one = f"{path}/{{id}}"
    shown = {200: json_of(model, "As it is now.", SHOWN), 304: {"description": "The client has it: `If-None-Match`."}}
    none_match = header("If-None-Match", "The ETag that the client has.")
    resume = header("Last-Event-ID", "The id of the last event that was seen.", {"type": "integer"})

    def route(suffix: str, name: str, handler: Handler, summary: str, **more: Any) -> Route:
        return Route("GET", one + suffix, name, handler, summary, tag=tag, problems=_PROBLEMS, **more)

    return (
        route("", f"get{noun}", _for(kind_of, show), "Show one", parameters=WAIT, headers=(none_match,), answers=shown),
        route(
            "/history",
            f"get{noun}History",
            _for(kind_of, list_history),
            "Its history, the oldest row first",
            parameters=(*PAGING, *WAIT),
            answers=page(ChangePage),
        ),
        route(
            "/messages",
            f"get{noun}Messages",
            _for(kind_of, list_messages),
            "Its commands and events, also the ignored ones",
            parameters=WAIT,
            answers={200: json_of(MessagePage, "All of them.")},
        ),
        route(
            "/events",
            f"follow{noun}",
            _for(kind_of, follow),
            "Follow it live (server-sent events)",
            parameters=(AFTER,),
            headers=(resume,),
            answers=_STREAM,
        ),
    )


def _for(kind_of: KindOf, handler: Callable[[Call, InstanceResource], Awaitable[Response]]) -> Handler:
    async def bound(call: Call) -> Response:
        return await handler(call, kind_of(call))

    return bound
