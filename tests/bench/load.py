"""How is the HTTP API put under load without the client being what is measured?

Plain HTTP/1.1 over sockets that stay open; about a tenth of what an HTTP library costs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tests.bench.control import PORT, Answer, Order

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_TRUSTED: Final = 2.0


class Refused(Exception):
    """The API answered with something else than 200."""


class Http(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self) -> None:
        self._held = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, host: str, port: int) -> Http:
        """A new connection."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head = self._held.find(_END)
        if head < 0:
            return
        at = self._held[:head].lower().index(_LENGTH) + len(_LENGTH)
        length = int(self._held[at : self._held.find(b"\r", at)])
        if len(self._held) >= head + len(_END) + length and self._answer is not None:
            whole, self._held = self._held, b""
            self._answer.set_result(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Refused(f"the connection broke: {exc}"))

    def close(self) -> None:
        """Hangs up."""
        assert self._transport is not None
        self._transport.close()

    async def request(self, data: bytes) -> bytes:
        """The whole answer; raises `Refused` for anything but 200."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        answer = await self._answer
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise Refused(answer[:1000].decode(errors="replace"))
        return answer


class Load:
    """Sends requests on order."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[tuple[Http, float]] = []

    async def obey(self, order: Order) -> Answer:
        """What came of an order."""
        orders = (self.closed, self.open, self.get, self.paced)
        work: dict[str, Callable[..., Awaitable[Answer]]] = {one.__name__: one for one in orders}
        return await work[order.pop("do")](**order)

    async def closed(self, prefix: str, sagas: int, clients: int) -> Answer:
        """`clients` connections post one app after the other, each when the last one was answered."""
        numbers = iter(range(sagas))

        async def client() -> None:
            for number in numbers:
                await self._post(f"{prefix}-{number}")

        await asyncio.gather(*(client() for _ in range(clients)))
        return {}

    async def open(self, prefix: str, sagas: int, rate: float) -> Answer:
        """Posts `rate` apps a second, whatever becomes of them; when each was due (CLOCK_MONOTONIC), by name."""
        began = time.monotonic()
        due = {f"{prefix}-{number}": began + number / rate for number in range(sagas)}
        tasks = []
        for name, at in due.items():
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            tasks.append(asyncio.create_task(self._post(name)))
        await asyncio.gather(*tasks)
        return {"due": due}

    async def get(self, paths: list[str]) -> Answer:
        """Gets one path after the other; the milliseconds of each, and the sizes of the last answer's items."""
        times, items = [], 0
        for path in paths:
            began = time.monotonic()
            answer = await self._send(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
            times.append(1000 * (time.monotonic() - began))
            items = len(json.loads(answer.partition(_END)[2])["items"])
        return {"ms": times, "items": items}

    async def paced(self, posts: list[tuple[str, str]], rate: float, fresh: bool) -> Answer:
        """Posts `rate` bodies a second to their paths, `fresh` over a connection each; milliseconds from when each was
        due."""
        began = time.monotonic()
        tasks = []
        for number, (path, body) in enumerate(posts):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self._timed(path, body, due, fresh)))
        return {"ms": await asyncio.gather(*tasks)}

    async def _timed(self, path: str, body: str, due: float, fresh: bool) -> float:
        if fresh:
            http = await Http.to(self._host, self._port)
            await http.request(self._post_of(path, body, "Connection: close\r\n"))
            http.close()
        else:
            await self._send(self._post_of(path, body))
        return 1000 * (time.monotonic() - due)

    async def _post(self, name: str) -> None:
        await self._send(self._post_of("/apps", json.dumps({"appName": name, "createdBy": "bench"})))

    def _post_of(self, path: str, body: str, more: str = "") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n{more}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def _send(self, data: bytes) -> bytes:
        http = await self._connection()
        answer = await http.request(data)
        self._idle.append((http, time.monotonic()))
        return answer

    async def _connection(self) -> Http:
        """One that was in use a moment ago, or a new one: the server closes those that are idle for five seconds."""
        while self._idle:
            http, used = self._idle.pop()
            if time.monotonic() - used < _TRUSTED:
                return http
            http.close()
        return await Http.to(self._host, self._port)


async def main() -> None:
    """Obeys until the bench hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]), limit=2**24)
    writer.write(b"{}\n")
    load = Load(os.environ["BENCH_HOST"], int(os.environ["BENCH_HTTP_PORT"]))
    while line := await reader.readline():
        writer.write(json.dumps(await load.obey(json.loads(line))).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
