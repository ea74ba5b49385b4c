"""Headers: what those of a request ask for."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from orchestrix.api.problems import Problem, bad_header
from orchestrix.saga.messages import MAX_ID
from orchestrix.telemetry.trace_context import TraceContext, trace_context

CORRELATION: Final = "X-Correlation-ID"
TRACE_ID: Final = "X-Trace-Id"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
IF_MATCH: Final = "If-Match"
IF_NONE_MATCH: Final = "If-None-Match"
LAST_EVENT_ID: Final = "Last-Event-ID"
START_HEADERS: Final = (IDEMPOTENCY_KEY, CORRELATION, "traceparent")
"""What a start takes."""
ALWAYS: Final = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
"""What every answer has that says nothing else."""
SCOPE_KEY: Final = "orchestrix.correlation_id"
_VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")
_TAG = re.compile(r'(?:W/)?("[^"]*")')
_VERSION = re.compile(r'(?:W/)?"([1-9][0-9]{0,9})"')


def is_correlation_id(value: str) -> bool:
    """Whether `value` is 1 to 128 visible ASCII characters."""
    return _VISIBLE.fullmatch(value) is not None


def correlation_id(request: Request) -> str:
    """The request's correlation id, which the outermost layer has checked or made."""
    found: str = request.scope[SCOPE_KEY]
    return found


def client_context(headers: Headers) -> TraceContext | None:
    """The span of the client, by `traceparent` and `tracestate` of W3C Trace Context (level 2).

    What is not valid is ignored, as it demands; so is a `traceparent` that is there twice.
    """
    parents = headers.getlist("traceparent")
    return trace_context(parents[0], ",".join(headers.getlist("tracestate"))) if len(parents) == 1 else None


def matches(request: Request, etag: str) -> bool:
    """Whether `If-None-Match` holds `etag` (RFC 9110, 13.1.2: by weak comparison)."""
    value = ",".join(request.headers.getlist("if-none-match")).strip()
    return value == "*" or etag in _TAG.findall(value)


def not_modified(request: Request, version: int) -> Response | None:
    """304 where the client has that version already."""
    tag = f'"{version}"'
    return Response(status_code=304, headers={"ETag": tag}) if matches(request, tag) else None


def if_match(request: Request) -> int | None:
    """The version that the client last saw, by `If-Match`; None where any will do. Raises `Problem` 400.

    A mark of weakness is overlooked: proxies that compress set it, and a version means the same with it.
    """
    values = request.headers.getlist("if-match")
    if not values or values == ["*"]:
        return None
    match = _VERSION.fullmatch(values[0].strip())
    if match is None or len(values) > 1:
        raise bad_header(IF_MATCH, 'must be the ETag that was last seen: the version in quotes, such as "3".')
    return int(match[1])


def moved_on(current: int) -> Problem:
    """412 for an `If-Match` that names another version than the `current` one."""
    text = f'It is at version {current} now: look at it again, then send If-Match: "{current}" if you still want it.'
    return Problem("version_mismatch", text, headers={"ETag": f'"{current}"'}, current=current)


def last_event_id(request: Request) -> int | None:
    """The version after which a stream continues; raises `Problem` 400 if it is none."""
    text = request.headers.get("last-event-id", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < MAX_ID):
        raise bad_header(LAST_EVENT_ID, "must be the id of an event of this stream.")
    return int(text)
