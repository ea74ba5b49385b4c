"""Server spans: one for each request, by OpenTelemetry's conventions for HTTP servers.

FastAPI's own are switched off: they make an object where nothing is kept, do not pass on a client's context as it came,
and name calls by routes of their own.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from orchestrix.api.headers import client_context
from orchestrix.domain.jobs import JobRow
from orchestrix.saga.state import Instance
from orchestrix.telemetry import conventions, messaging, tracing
from orchestrix.telemetry.tracing import NO_SPAN, Span, SpanKind, Value

UNTRACED: Final = re.compile(r"/(?:health|metrics|docs)(?:/.*)?|/openapi\.json|/api/registry(?:Remove)?")
"""Probes, scrapes, documents and heartbeats."""
OTHER_METHOD: Final = "_OTHER"
METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")


def is_traced(scope: Scope) -> bool:
    """Whether a request there is part of a trace."""
    return UNTRACED.fullmatch(scope["path"]) is None


def begin(scope: Scope, headers: Headers, correlation_id: str) -> Span:
    """The span of a request, which follows from its client's if that has sent one."""
    if not is_traced(scope):
        return NO_SPAN
    method = scope["method"]
    span = tracing.begin(method if method in METHODS else "HTTP", SpanKind.SERVER, client_context(headers))
    if span.recording:
        span.set({**_attributes(scope, headers), conventions.CORRELATION_ID: correlation_id})
    return span


def end(span: Span, method: str, scope: Scope, status: int, error: BaseException | None = None) -> None:
    """The answer has ended, with that `status` if there was one, or was broken off by the `error`.

    `method` is that of the client, `scope` what the router has made of the request's. The client's mistakes are none of
    the server's.
    """
    if span.recording:
        if (route := route_of(scope)) is not None:
            span.rename(f"{method if method in METHODS else 'HTTP'} {route}")
            span.set({conventions.HTTP_ROUTE: route})
        if status:
            span.set({conventions.HTTP_STATUS: status})
        if error is not None:
            span.fail(type(error).__name__)
        elif status >= 500:
            span.fail(str(status))
    span.end()


def about_instance(instance: Instance) -> None:
    """The request that is being answered is about this instance of a saga."""
    if (span := tracing.current_span()) is not None and span.recording:
        span.set(messaging.saga_attributes(instance.saga, instance.id, instance.correlation_id))


def about_job(job: JobRow) -> None:
    """The request that is being answered is about this job."""
    if (span := tracing.current_span()) is not None and span.recording:
        span.set({conventions.JOB_ID: job.id, conventions.CORRELATION_ID: job.correlation_id})
        if job.saga is not None and job.instance_id is not None:
            span.set(messaging.saga_attributes(job.saga, job.instance_id, job.correlation_id))


def _attributes(scope: Scope, headers: Headers) -> dict[str, Value]:
    method, client, host = scope["method"], scope.get("client"), _HOST.fullmatch(headers.get("host", ""))
    found: dict[str, Value] = {conventions.HTTP_METHOD: method if method in METHODS else OTHER_METHOD}
    found |= {conventions.URL_PATH: scope["path"], conventions.URL_SCHEME: scope["scheme"]}
    if method not in METHODS:
        found[conventions.HTTP_METHOD_ORIGINAL] = method
    if host is not None:
        found[conventions.SERVER_ADDRESS] = host[1].strip("[]")
    if host is not None and host[2] is not None:
        found[conventions.SERVER_PORT] = int(host[2])
    if client is not None:
        found[conventions.CLIENT_ADDRESS] = client[0]
    if (agent := headers.get("user-agent")) is not None:
        found[conventions.USER_AGENT] = agent
    return found


def route_of(scope: Scope) -> str | None:
    """The template of the path; None where there is nothing."""
    path = getattr(scope.get("route"), "path", None)
    return None if path is None else f"{scope.get('root_path', '')}{path.replace(':path}', '}')}"
