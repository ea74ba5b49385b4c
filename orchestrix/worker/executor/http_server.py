"""Executor server: the HTTP server by which the cluster calls an executor, with limits of time and size."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, TypeAlias

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrix.errors import ConfigError
from orchestrix.lifecycle import ended
from orchestrix.saga.messages import MAX_BODY

CONNECTION_S: Final = 15.0
"""Seconds for a request and its answer; every connection is for one."""
MAX_CONNECTIONS: Final = 500
STOP_S: Final = 2
"""Seconds that open requests have at the end."""
START_S: Final = 10.0
BACKLOG: Final = 512

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ExecutorRequest(NamedTuple):
    """A request; names of headers are in lower case. `local` says that it comes from this machine."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    local: bool


class ExecutorResponse(NamedTuple):
    """An answer in JSON."""

    status: int
    fields: Mapping[str, Any] = {}


Answer: TypeAlias = Callable[[ExecutorRequest], ExecutorResponse]


class ExecutorServer:
    """Answers calls by `answer` at `listen`, a host and a port; with `tls`, by HTTPS."""

    def __init__(self, listen: tuple[str, int], answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._listen, self._answer, self._tls = listen, answer, tls
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens. Raises `ConfigError` where it cannot."""
        host, port = self._listen
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"the executor cannot listen on {host}:{port}: {why}") from error
        self._server = _Server(self._config())
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]), name="executor server")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({listening, self._task}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Answers what is there, and closes."""
        server, task, self._task = self._server, self._task, None
        if server is not None and task is not None:
            server.should_exit = True
            await asyncio.wait({task}, timeout=STOP_S + 1.0)
            await ended(task)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            http=_Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=STOP_S,
        )
        config.load()
        config.ssl = self._tls
        return config

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            reply = ExecutorResponse(413, {"detail": f"the body has more than {MAX_BODY} bytes"})
        else:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            reply = self._answer(ExecutorRequest(scope["method"], scope["path"], headers, body, _is_local(scope)))
        content = json.dumps(reply.fields).encode()
        sent = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        sent.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": sent})
        await send({"type": "http.response.body", "body": content if scope["method"] != "HEAD" else b""})


class _Server(uvicorn.Server):
    """Says when it listens. Signals are the process's business, not its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """uvicorn's connection, for at most `CONNECTION_S` seconds: it would wait for ever for the end of a request."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)


async def _body(receive: Receive) -> bytes | None:
    """The body; None where it is too large."""
    body: bytes = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if part["type"] == "http.disconnect" or not part.get("more_body", False):
            return body


def _is_local(scope: Scope) -> bool:
    """Whether the client is on this machine."""
    with contextlib.suppress(ValueError, TypeError):
        ip = ip_address((scope.get("client") or ("", 0))[0])
        return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
    return False
