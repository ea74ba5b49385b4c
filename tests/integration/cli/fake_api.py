"""What does an API say whose every answer the test wrote itself?"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    """What a command asked for."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """One answer. `parts` are sent one by one and end with the connection; `cut` sends nothing at all."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[bytes, ...] | None = None
    cut: bool = False


class FakeApi:
    """Answers each (method, path) with its replies in order, the last one for ever; the rest with 404.

    Whether a number is also a name is asked beside `requests`, in `look_ups`; without a reply, it is not.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.look_ups: list[Request] = []
        self._replies: dict[tuple[str, str], list[Reply]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.01))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, *replies: Reply) -> None:
        """What to answer there."""
        self._replies[method, path] = list(replies)

    def reply(self, request: Request) -> Reply:
        """The answer whose turn it is."""
        looks_up = request.query.get("q", [""])[0].isdigit() and request.query.get("limit") == ["1"]
        (self.look_ups if looks_up else self.requests).append(request)
        waiting = self._replies.get((request.method, request.path))
        if not waiting and looks_up:
            return Reply(body={"items": [], "nextCursor": None})
        if not waiting:
            return problem(404, "not_found", "There is no such thing.")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def __enter__(self) -> FakeApi:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def problem(status: int, code: str, detail: str, *, retry: int | None = None, **members: Any) -> Reply:
    """An error as the API words it."""
    body = {"type": f"/docs#{code}", "title": "Wrong", "status": status, "detail": detail, "code": code, **members}
    headers = {"Content-Type": "application/problem+json"} | ({"Retry-After": str(retry)} if retry else {})
    return Reply(status, body, headers)


def app(version: int = 1, state: str = "APP_INITIATED", **more: Any) -> dict[str, Any]:
    """An app as the API shows it."""
    return {
        "id": 42,
        "appName": "billing",
        "createdBy": "ada",
        "state": state,
        "version": version,
        "correlationId": "c-1",
        "createdAt": "2026-01-31T12:00:00.000000Z",
        "updatedAt": "2026-01-31T12:00:00.000000Z",
        "data": {},
        **more,
    }


def change(version: int, start: str | None, end: str, reason: str = "evt.x") -> dict[str, Any]:
    """A row of history as the API shows it."""
    return {
        "version": version,
        "fromState": start,
        "toState": end,
        "reason": reason,
        "actor": "orchestrator",
        "correlationId": "c-1",
        "at": f"2026-01-31T12:00:0{version}.500000Z",
    }


def event(row: Mapping[str, Any]) -> bytes:
    """The row as a server-sent event."""
    return f"event: state\nid: {row['version']}\ndata: {json.dumps(row)}\n\n".encode()


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: Any) -> None:
            return

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            body = json.loads(self.rfile.read(size)) if size else None
            request = Request(self.command, parts.path, parse_qs(parts.query), dict(self.headers), body)
            reply = api.reply(request)
            if not reply.cut:
                self._send(reply)

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in _parts(reply):
                self.wfile.write(part)
                self.wfile.flush()

    return Handler


def _parts(reply: Reply) -> Iterator[bytes]:
    if reply.parts is not None:
        yield from reply.parts
    elif isinstance(reply.body, bytes):
        yield reply.body
    elif reply.status != 204:
        yield json.dumps(reply.body).encode()
