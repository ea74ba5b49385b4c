"""Middleware: what happens to every request before its handler, and to every answer after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrix import clock
from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.headers import ALWAYS, CORRELATION, SCOPE_KEY, TRACE_ID, is_correlation_id
from orchestrix.api.idempotency import REPLAYED
from orchestrix.api.problems import Problem, bad_header, cut_short, has_head, internal_error
from orchestrix.api.traces import request_metrics, server_span
from orchestrix.telemetry import tracing
from orchestrix.telemetry.correlation import correlated

log = logging.getLogger("orchestrix.api")

MAX_BODY: Final = 256 * 1024
"""Bytes that a request's body may have."""


GZIP_FROM: Final = 1024
"""Bytes of an answer from which on it is compressed, where the client accepts that."""
SHOWN_HEADERS: Final = (
    "Allow",
    "ETag",
    "Link",
    "Location",
    "Retry-After",
    "WWW-Authenticate",
    CORRELATION,
    TRACE_ID,
    REPLAYED,
)
"""Headers of answers that pages of other sites may read."""


class CrossOrigin:
    """Names to browsers the other sites whose pages may call the API (CORS), if there are some."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app, self._origins = app, origins
        self._cors = CORSMiddleware(
            app, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"], expose_headers=SHOWN_HEADERS
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed = scope["type"] == "http" and Headers(scope=scope).get("origin") in self._origins
        # Others get what the API itself answers: a problem.
        await (self._cors if allowed else self._app)(scope, receive, send)


class ApiMiddleware:
    """The outermost layer: whose pages may ask, correlation ids, spans, the size limit, uncaught errors, and the
    access log.

    Plain ASGI without tasks of its own: a client that goes away never cancels a handler.
    """

    def __init__(self, app: ASGIApp, guard: OriginGuard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        error: BaseException | None = None
        try:
            with correlated(exchange.correlation_id), tracing.active(exchange.span):
                await self._serve(exchange)
        except BaseException as found:
            error = found
            raise
        finally:
            exchange.record(error)

    async def _serve(self, exchange: _Exchange) -> None:
        """The whole answer, also where the request is refused or its handler fails."""
        scope = exchange.scope
        try:
            exchange.admit(self._guard)
            await self._app(scope, exchange.receive, exchange.send)
        except Problem as problem:
            await exchange.answer(problem)
        except ClientDisconnect:
            log.debug("the client went away", extra=exchange.tags)
        except asyncio.CancelledError:
            if exchange.status:
                raise
            # Only a server that stops cancels a handler; the client is to know that its request may have been done.
            await exchange.answer(cut_short(exchange.method))
        except Exception as error:
            log.error("%s %s failed", exchange.method, scope["path"], exc_info=error, extra=exchange.tags)
            if exchange.status:
                raise  # the answer has begun: only the server can cut it off
            await exchange.answer(internal_error())


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bodiless = scope["method"] == "HEAD" and has_head(scope["path"])
        self.method = scope["method"]
        self.scope = {**scope, "method": "GET"} if bodiless else scope
        self.status = 0
        self._no_body = self.method == "HEAD"
        self._receive = receive
        self._send = send
        self._size = 0
        self._began = clock.monotonic()
        self._headers = Headers(scope=scope)
        given = self._headers.getlist(CORRELATION)
        self._refused = bool(given) and not (len(given) == 1 and is_correlation_id(given[0]))
        self.correlation_id = given[0] if given and not self._refused else clock.uuid7()
        self.scope[SCOPE_KEY] = self.correlation_id
        self.span = server_span.begin(scope, self._headers, self.correlation_id)
        request_metrics.begin()

    @property
    def tags(self) -> dict[str, str]:
        """What a log line about this request carries."""
        return {"correlation_id": self.correlation_id}

    def admit(self, guard: OriginGuard) -> None:
        """Raises `Problem` for a request that no handler needs to see."""
        guard.admit(self.scope["method"], self.scope["path"], self._headers)
        if self._refused:
            raise bad_header(CORRELATION, "must be 1 to 128 visible ASCII characters, once.")
        length = self._headers.get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > 9 or int(length) > MAX_BODY):
            raise _too_large()

    async def receive(self) -> Message:
        """The next part of the body. Raises `Problem` 413 when there are too many: it is not read to its end."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > MAX_BODY:
                raise _too_large()
        return message

    async def send(self, message: Message) -> None:
        """The next part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.setdefault(CORRELATION, self.correlation_id)
            if self.span.context is not None:
                headers.setdefault(TRACE_ID, self.span.context.trace_id)
            for name, value in ALWAYS.items():
                headers.setdefault(name, value)
        elif self._no_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)

    async def answer(self, problem: Problem) -> None:
        """Sends `problem`."""
        await problem.response()(self.scope, self._receive, self.send)

    def record(self, error: BaseException | None) -> None:
        """The end of the span, the metrics, and the access log. The answer was broken off by the `error`, if any."""
        server_span.end(self.span, self.method, self.scope, self.status, error)
        seconds = clock.monotonic() - self._began
        request_metrics.end(self.method, self.scope, self.status, seconds, self.span.context)
        if log.isEnabledFor(logging.DEBUG):
            where = (self.scope["method"], self.scope["path"])
            log.debug("%s %s %d in %.1f ms", *where, self.status, 1000 * seconds, extra=self.tags)


def _too_large() -> Problem:
    return Problem(
        "body_too_large", f"The body has more than {MAX_BODY} bytes, which are the most that are taken: send less."
    )
