"""What does the cluster get from an executor that it calls? A node whose every answer the test chooses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, sign
from tests.support import NO_TLS, eventually

TOKEN: Final = "s3cret"
ATTEMPT_TOKEN: Final = "good-for-one"
DEADLINE_S: Final = 20.0
BODY_LIMIT: Final = 256 * 1024


@dataclass(frozen=True)
class Report:
    """A request of the executor: `kind` is the last part of its path."""

    kind: str
    path: str
    headers: Mapping[str, str]
    body: Any
    size: int


Answer = tuple[int, dict[str, Any]]
CUT: Final[Answer] = (0, {})
"""The connection ends without an answer, after the report was taken."""


class FakeCoordinator:
    """A node on a real port. `said` are the reports that it has taken, one by one, in the order of their coming;
    `requests` are all requests, of whatever answer."""

    def __init__(self) -> None:
        self.requests: list[Report] = []
        self.said: list[dict[str, Any]] = []
        self.answer: Callable[[Report], Answer | Awaitable[Answer]] = lambda report: (200, {})
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listens, at the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Connections are refused from now on, and those that are open end."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.close()
            await self._server.wait_closed()

    def callback(self, number: int = 1) -> str:
        return f"{self.url}/jobs/j-{number}/attempts/h-{number}"

    def kinds(self) -> list[str]:
        return [one.kind for one in self.requests]

    def statuses(self) -> list[dict[str, Any]]:
        """The statuses that were taken."""
        return [one for one in self.said if "status" in one]

    def heartbeats(self) -> list[dict[str, Any]]:
        return [one.body for one in self.requests if one.kind == "registry"]

    async def ended(self, number: int = 1) -> dict[str, Any]:
        """The final status of an attempt, once it is taken."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.statuses() if one["historyId"] == f"h-{number}" and one["status"] != "RUNNING"]

        return (await eventually(found, deadline=DEADLINE_S, every=0.01))[0]

    async def has(self, kind: str, count: int = 1) -> Report:
        """Waits for so many requests of a kind; the last of them."""
        await eventually(lambda: self.kinds().count(kind) >= count, deadline=DEADLINE_S, every=0.005)
        return [one for one in self.requests if one.kind == kind][count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        content = await reader.readexactly(int(headers["content-length"]))
        path = request.split(" ")[1]
        report = Report(path.rpartition("/")[2], path, headers, json.loads(content), len(content))
        self.requests.append(report)
        chosen = self.answer(report)
        status, fields = chosen if isinstance(chosen, tuple) else await chosen
        if status in (0, 200) and report.kind in ("status", "logs"):
            self.said += report.body if isinstance(report.body, list) else [report.body]
        if status == 0:
            return False
        answer = json.dumps(fields).encode()
        writer.write(f"HTTP/1.1 {status} Words\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
        await writer.drain()
        return True


@asynccontextmanager
async def fake_coordinator() -> AsyncIterator[FakeCoordinator]:
    """One that takes whatever comes."""
    node = FakeCoordinator()
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def run_body(handler: str, *callbacks: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    """What a node asks for: attempt `h-{number}` of job `j-{number}`."""
    return {
        "jobId": f"j-{number}",
        "historyId": f"h-{number}",
        "attempt": 1,
        "handler": handler,
        "payload": {"number": number},
        "timeoutMs": None,
        "correlationId": f"c-{number}",
        "group": "shop",
        "shardIndex": None,
        "shardTotal": None,
        "callbacks": list(callbacks),
        "token": ATTEMPT_TOKEN,
        **changes,
    }


async def call(
    address: str, path: str, fields: Any, *, token: str | None = TOKEN, age: float = 0.0, **headers: str
) -> httpx.Response:
    """The answer to a call of the cluster, signed `age` seconds ago; unsigned without a token."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    if token is not None:
        headers = {SIGNATURE_HEADER: sign(token, body, time.time() - age), **headers}
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=DEADLINE_S) as client:
        return await client.post(address + path, content=body, headers=headers)


async def held(address: str, number: int = 1) -> int:
    """The status of the answer whether it has the attempt."""
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=DEADLINE_S) as client:
        return (await client.get(f"{address}/runs/h-{number}")).status_code
