"""Monitoring server: a small HTTP server on a thread of its own, which answers whatever the process's loop does.

uvicorn serves it, in an event loop of that thread. A connection is for one request and lives for `CONNECTION_S` seconds
at most, however slow its client is; above `MAX_CONNECTIONS` the oldest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrix import fork_safety
from orchestrix.telemetry.log_throttle import LogThrottleFilter

log = logging.getLogger("orchestrix")

CONNECTION_S: Final = 10.0
"""Seconds for a request and its answer; longer than a scrape takes by default."""
MAX_CONNECTIONS: Final = 32
STOP_S: Final = 1
"""Seconds that open requests have at the end."""
HEADERS: Final = ((b"cache-control", b"no-store"), (b"connection", b"close"))
_FAILED: Final = b"This could not be answered; the log of the process says why.\n"

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MonitoringRequest(NamedTuple):
    """A request; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


class MonitoringResponse(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


Answer: TypeAlias = Callable[[MonitoringRequest], Awaitable[MonitoringResponse]]


class MonitoringServer:
    """Answers requests at `listener`, a listening socket that it takes over, by `answer`, on its own thread.

    A process that is forked from this one keeps neither the socket nor a connection.
    """

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener, self._answer = listener, answer
        self._server = _Server(self._config())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forget = fork_safety.on_fork(self._forked)
        self._thread = threading.Thread(target=self._run, name="orchestrix-monitoring", daemon=True)

    def start(self) -> None:
        """Begins to answer; the system keeps earlier connections until then."""
        self._thread.start()

    async def stop(self) -> None:
        """Answers what is there, and closes the socket."""
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join, STOP_S + CONNECTION_S)
        self._forget()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the monitoring port has failed; the process continues without it")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._listener])

    def _forked(self) -> None:
        """In a child: what is its parent's is let go."""
        if self._listener.fileno() >= 0:
            fork_safety.redirect([self._listener.fileno()])
        if self._loop is not None:
            fork_safety.redirect_files_of(self._loop)

    def _config(self) -> uvicorn.Config:
        class Bounded(_Connection):
            oldest_first: ClassVar[dict[_Connection, None]] = {}

        http: type[asyncio.Protocol] = Bounded
        _errors.addFilter(_filter)
        return uvicorn.Config(
            self._respond,
            interface="asgi3",
            http=http,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
        )

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            reply = await self._answer(MonitoringRequest(scope["method"], scope["path"], headers))
        except Exception:
            _errors.exception("a request to the monitoring port failed")
            reply = MonitoringResponse(500, "text/plain; charset=utf-8", _FAILED)
        sent = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % len(reply.body)), *HEADERS]
        if reply.status == 405:
            sent.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": reply.status, "headers": sent})
        await send({"type": "http.response.body", "body": reply.body if scope["method"] != "HEAD" else b""})


class _Server(uvicorn.Server):
    """Signals are the process's business, not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """uvicorn's connection, with bounds: it would wait for ever for the end of a request."""

    oldest_first: ClassVar[dict[_Connection, None]]
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)
        if len(self.oldest_first) >= MAX_CONNECTIONS:
            oldest = next(iter(self.oldest_first))
            del self.oldest_first[oldest]  # at once: many may be accepted before its `connection_lost`
            oldest.transport.abort()
        self.oldest_first[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.oldest_first.pop(self, None)
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Any client could fill the log by it. The request is answered as if it did not ask for an upgrade."""


_errors: Final = logging.getLogger("uvicorn.error")
_filter: Final = LogThrottleFilter()
