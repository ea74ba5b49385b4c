"""What does an admin get from executors, whose every answer the test chooses?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.support import eventually

REGISTER: Final = "/api/registry"
DEREGISTER: Final = "/api/registryRemove"
DEADLINE_S: Final = 20.0


@dataclass(frozen=True)
class Posted:
    """A request, and when it came in seconds of the loop."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    at: float


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(status: int, body: Any = None, **headers: str) -> Answer:
    """An answer with a JSON body."""

    async def write(writer: asyncio.StreamWriter) -> None:
        content = json.dumps(body if body is not None else {}).encode()
        lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)

    return write


def raw(content: bytes) -> Answer:
    """These bytes, then the end of the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return write


def when(opened: asyncio.Event, then: Answer) -> Answer:
    """Nothing until the event, then that answer."""

    async def write(writer: asyncio.StreamWriter) -> None:
        await opened.wait()
        await then(writer)

    return write


async def hang(writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    """An answer of which a byte comes now and then, and the last one never."""
    writer.write(b"HTTP/1.1 200 OK\r\nX-Endless: ")
    with suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)


ACCEPTS: Final = answer(200)


class FakeAdmin:
    """An admin on a real port; answers requests as `answers` says, deregistrations as `goodbye` does if it is set."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.first: list[Answer] = []
        """The answers to the first requests; then come `answers`."""
        self.answers: Answer = ACCEPTS
        self.goodbye: Answer | None = None
        self.cut = 0
        """Connections that the executor has ended before it had its answer."""
        self._port = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        """Where it is, also after `stop`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Listens, at the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Connections are refused from now on."""
        if self._server is not None:
            self._server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
            await self._server.wait_closed()

    def paths(self) -> list[str]:
        """What was asked, in its order."""
        return [one.path for one in self.posted]

    def heartbeats(self) -> list[Posted]:
        """The registrations among them."""
        return [one for one in self.posted if one.path == REGISTER]

    async def has(self, count: int, *, more: bool = False) -> Posted:
        """Waits for so many heartbeats in all, or so many more; the last of them."""
        wanted = count + len(self.heartbeats()) if more else count
        await eventually(lambda: len(self.heartbeats()) >= wanted, deadline=DEADLINE_S, every=0.005)
        return self.heartbeats()[wanted - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            posted = await _read(reader)
            self.posted.append(posted)
            await self._write(self._choose(posted), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    def _choose(self, posted: Posted) -> Answer:
        if self.goodbye is not None and posted.path == DEREGISTER:
            return self.goodbye
        return self.first.pop(0) if self.first else self.answers

    async def _write(self, chosen: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers, unless the executor goes away before."""
        answering, leaving = asyncio.ensure_future(chosen(writer)), asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            self.cut += not answering.done()
        finally:
            for one in (answering, leaving):
                one.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Posted:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    method, path, _ = request.split(" ")
    return Posted(method, path, headers, json.loads(body), asyncio.get_running_loop().time())


@asynccontextmanager
async def fake_admin() -> AsyncIterator[FakeAdmin]:
    """An admin that accepts."""
    admin = FakeAdmin()
    await admin.start()
    try:
        yield admin
    finally:
        await admin.stop()
