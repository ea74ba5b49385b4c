"""HTTP connections: each has a limit of time for its head, body and reader, and their number is bounded.

uvicorn waits for ever for the end of a head or of a body. Here a check of all connections once a second closes those
whose time limit has passed, which costs a request nothing; where a request has begun, the answer 408 comes first. Above
the bound the connection that has been idle longest makes room for a new one. What is no HTTP is answered by a problem
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Final, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrix import clock
from orchestrix.api.headers import ALWAYS, CORRELATION
from orchestrix.api.problems import Problem
from orchestrix.telemetry.log_throttle import LogThrottle, LogThrottleFilter

log = logging.getLogger("orchestrix.api")

READER_S: Final = 30.0
"""Seconds in which a client has to take something of an answer that is too large for the buffers."""
FAREWELL_S: Final = 10.0
"""Seconds in which it has to take the rest, once the connection is to be closed."""
AT_ONCE: Final = 16
"""Connections that are accepted in one turn of the loop: the bound is looked at in between."""
WAITING: Final = 2048
"""Connections that the system keeps until they are accepted."""
TICKS: Final = 10
"""Ticks of uvicorn's main loop in a second."""

_STATUS_CODES: Final = {431: "head_too_large", 501: "not_implemented"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds for the head and the body of a request, and for a connection without one; the most connections."""

    head: float
    body: float
    keep_alive: float
    connections: int


class ConnectionSlots:
    """The connections of one server that have no request to answer, those first that have been so longest."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.idle: dict[HttpConnection, None] = {}
        self._log_limiter = LogThrottle(60.0)

    def free_one(self, newcomer: HttpConnection) -> None:
        """Closes the connection that has been idle longest; `newcomer` itself where all others are in use."""
        other = next(iter(self.idle))
        if other is newcomer:
            newcomer.end(_full())
        else:
            other.end(None)
        if (left_out := self._log_limiter.due("full")) is not None:
            log.warning(
                "all places for HTTP connections are taken (%d), so those idle longest are closed: see "
                "ORCHESTRIX_HTTP__MAX_CONNECTIONS and the limit of open files",
                self.limits.connections,
                extra={"left_out": left_out},
            )


class HttpConnection(H11Protocol):
    """uvicorn's connection, with bounds."""

    room: ClassVar[ConnectionSlots]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_since: float | None = clock.monotonic()
        self._body_since: float | None = None
        self._closing_since: float | None = None
        self._stalled_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.room.idle[self] = None
        if len(self.connections) > self.room.limits.connections:
            self.room.free_one(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.room.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # what has been refused is not read any more
        if self._head_since is None and self.conn.their_state is h11.IDLE:
            self._head_since = clock.monotonic()
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP. `msg` is uvicorn's; the error that it catches when it calls this says more."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        code = _STATUS_CODES.get(status, "bad_request")
        self.end(Problem(code, f"This is no HTTP/1.1 request that can be read: {_describe(error)}."))

    def shutdown(self) -> None:
        """The server stops. A connection that has been refused has nothing more to say."""
        with contextlib.suppress(h11.LocalProtocolError):
            return super().shutdown()
        return self.transport.close()

    def check(self, now: float) -> None:
        """Ends the connection if its time limit has passed."""
        limits = self.room.limits
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > FAREWELL_S:
                self.transport.abort()
        elif self._stalled_since is not None and now - self._stalled_since > READER_S:
            self.transport.abort()
        elif self._body_since is not None and now - self._body_since > limits.body:
            self.end(_late("body", limits.body))
        elif self._head_since is not None and now - self._head_since > limits.head:
            self.end(_late("head", limits.head) if self.conn.trailing_data[0] else None)

    def end(self, problem: Problem | None) -> None:
        """Closes the connection, with `problem` as the answer where one is due and none has begun."""
        if problem is not None and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(problem)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.room.idle.pop(self, None)
        self.transport.close()

    def pause_writing(self) -> None:
        self._stalled_since = clock.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    def _unsupported_upgrade_warning(self) -> None:
        """Any client could fill the log by it. The request is answered as if it did not ask for an upgrade."""

    def _answer(self, problem: Problem) -> None:
        response = problem.response()
        own = [
            (name.lower().encode(), value.encode()) for name, value in (*ALWAYS.items(), (CORRELATION, clock.uuid7()))
        ]
        headers = [*self.server_state.default_headers, *response.raw_headers, *own, (b"connection", b"close")]
        begin = h11.Response(
            status_code=response.status_code, headers=headers, reason=HTTPStatus(response.status_code).phrase.encode()
        )
        with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
            for event in (begin, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    def _note(self) -> None:
        """Keeps since when what is waited for."""
        theirs = self.conn.their_state
        if theirs is h11.IDLE and not self.transport.is_closing():
            self._body_since = None
            if not self.conn.trailing_data[0]:
                self._head_since = None
            elif self._head_since is None:
                self._head_since = clock.monotonic()
            self.room.idle.setdefault(self)
            return
        self._head_since = None
        self.room.idle.pop(self, None)
        if theirs is not h11.SEND_BODY:
            self._body_since = None
        elif self._body_since is None:
            self._body_since = clock.monotonic()


class Server(uvicorn.Server):
    """The HTTP server; signals are the process's business, not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(WAITING)  # asyncio has taken the number that it accepts at once for this one too

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            now = clock.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpConnection):
                    connection.check(now)
        return await super().on_tick(counter)


def config(app: Any, limits: ConnectionLimits, *, stop: int, proxied: bool = False) -> uvicorn.Config:
    """How `app` is served; open requests have `stop` seconds at the end. `proxied`: the client's address is the one
    that a proxy names.
    """

    class Bounded(HttpConnection):
        room = ConnectionSlots(limits)

    http: type[asyncio.Protocol] | Literal["h11"] = Bounded
    _errors.addFilter(_filter)
    return uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=proxied,
        backlog=AT_ONCE,
        timeout_graceful_shutdown=stop,
        timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]
    )


_errors: Final = logging.getLogger("uvicorn.error")
_filter: Final = LogThrottleFilter()


def out_of_descriptors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler: that no connection can be accepted is said now and then, and not each time."""
    if "accept()" not in str(context.get("message")):
        loop.default_exception_handler(context)
    elif (left_out := _log_limiter.due("accept")) is not None:
        log.error(
            "no connection can be accepted (%s): raise the limit of open files (ulimit -n)",
            context.get("exception"),
            extra={"left_out": left_out},
        )


_log_limiter: Final = LogThrottle(60.0)


def _describe(error: BaseException | None) -> str:
    text = str(error or "no request")
    return text[:200].encode("ascii", "backslashreplace").decode()


def _late(part: str, seconds: float) -> Problem:
    return Problem("request_timeout", f"The {part} of the request was not complete within {seconds:g} s.")


def _full() -> Problem:
    return Problem("too_many_connections", "All places for connections are taken. Try again.", headers=_SOON)


_SOON: Final = {"Retry-After": "1"}
