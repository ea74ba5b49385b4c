"""How does a test disturb the connections between a process and a server while neither knows of it?"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, Flag, auto
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

T = TypeVar("T")

CHUNK: Final = 65_536
_AHEAD: Final = 64
"""Chunks of one direction that are on their way at a time, as a network holds some."""
_CALL_LIMIT: Final = 10.0
# PostgreSQL's simple query, as asyncpg sends it, and MySQL's COM_QUERY.
COMMIT: Final = re.compile(rb"(?:Q\x00\x00\x00.|\x03)COMMIT", re.DOTALL | re.IGNORECASE)


class Way(Flag):
    """The directions of a connection."""

    UP = auto()
    """From the process to the server."""
    DOWN = auto()
    BOTH = UP | DOWN


class AtCommit(Enum):
    """What becomes of a connection whose client sends COMMIT."""

    LOST = "lost"
    """It is cut, and the server never hears of the COMMIT."""
    SENT = "sent"
    """It is cut as soon as the bytes are out: it may have happened or not."""
    ANSWERED = "answered"
    """The server has committed and said so; then it is cut, before the client hears it."""
    HELD = "held"
    """It stays open and silent: the server waits in the middle of the transaction."""


class Proxy:
    """Forwards TCP from a port of its own to `host`:`port`, in a thread of its own, so that a busy test slows nothing.

    Every method may be called from any thread and has taken effect when it returns.
    """

    def __init__(self, host: str, port: int, *, seed: int = 0) -> None:
        self._target = (host, port)
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=f"proxy to {port}", daemon=True)
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self.served = 0
        """How many connections there have been."""
        self._serving: set[asyncio.Task[None]] = set()
        self._held: set[asyncio.StreamReader] = set()
        self._gates = {Way.UP: asyncio.Event(), Way.DOWN: asyncio.Event()}
        self._delay, self._jitter, self._rate = 0.0, 0.0, 0.0
        self._dropping = False
        self._commit: AtCommit | None = None
        self._commits_left = 0
        self.commits_met = 0
        self.port = 0

    @classmethod
    def to(cls, url: str, *, seed: int = 0) -> Proxy:
        """A proxy, started, to the server that `url` names."""
        parts = urlsplit(url)
        assert parts.hostname, f"{url} names no host"
        assert parts.port, f"{url} names no port"
        proxy = cls(parts.hostname, parts.port, seed=seed)
        proxy.start()
        return proxy

    def through(self, url: str) -> str:
        """`url` with this proxy's address in the place of the server's."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(
            parts._replace(netloc=f"{login}@127.0.0.1:{self.port}" if login else f"127.0.0.1:{self.port}")
        )

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._lines)

    def held(self, start: bytes) -> int:
        """How many clients have connected and sent what begins so, while nothing is forwarded; those that have left
        included."""
        return sum(getattr(one, "_buffer").startswith(start) for one in list(self._held))  # noqa: B009

    def start(self) -> None:
        """Listens and forwards."""
        self._thread.start()
        self.heal()

    def close(self) -> None:
        """Ends every connection, and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # The faults. Each stays until `heal`, but for those that only hit the connections of the moment.

    def heal(self) -> None:
        """Forwards everything from now on. What was held back goes on its way; what was cut stays cut."""
        self._call(self._heal())

    def lose(self) -> None:
        """Resets the connections of the moment with all that a fault held back, then forwards everything again."""
        self.reset()
        self.heal()

    def slow(self, delay: float, jitter: float = 0.0, rate: float = 0.0) -> None:
        """Everything arrives `delay` ± `jitter` seconds later, and at most `rate` bytes pass a second (0: any)."""
        self._call(self._slow(delay, jitter, rate))

    def black_hole(self, ways: Way = Way.BOTH) -> None:
        """Keeps the connections open and forwards nothing; new ones are accepted and get no answer."""
        self._call(self._shut(ways))

    def half_open(self) -> None:
        """The server sees its clients leave; they see nothing and get no answer, ever. New connections work."""
        self._call(self._each(_Line.orphan))

    def reset(self) -> None:
        """Breaks the connections of the moment with RST."""
        self._call(self._each(_Line.reset))

    def reset_client(self) -> None:
        """The clients of the moment get RST; the server's side stays open and hears nothing more, until it
        is reset too or the server itself ends it. New connections work."""
        self._call(self._each(_Line.abandon))

    def cut(self) -> None:
        """Ends the connections of the moment in good order (FIN)."""
        self._call(self._each(_Line.finish))

    def refuse(self) -> None:
        """Nobody listens: connecting fails at once. What is connected stays."""
        self._call(self._refuse())

    def drop(self) -> None:
        """Accepts new connections and resets them."""
        self._call(self._drop())

    def at_commit(self, what: AtCommit, times: int = 1) -> None:
        """Does `what` to the next `times` connections whose client sends COMMIT; `commits_met` counts them."""
        self._call(self._arm(what, times))

    # In the proxy's own thread from here.

    async def _heal(self) -> None:
        self._delay = self._jitter = self._rate = 0.0
        self._dropping, self._commit = False, None
        for line in self._lines:
            line.held.set()
        for gate in self._gates.values():
            gate.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _slow(self, delay: float, jitter: float, rate: float) -> None:
        self._delay, self._jitter, self._rate = delay, jitter, rate

    async def _shut(self, ways: Way) -> None:
        for way, gate in self._gates.items():
            if way in ways:
                gate.clear()

    async def _each(self, what: Any) -> None:
        for line in list(self._lines):
            what(line)

    async def _refuse(self) -> None:
        if self._server is not None:
            for listening in self._server.sockets:
                self._loop.remove_reader(listening)
            await asyncio.sleep(0)  # asyncio loses a connection, unclosed, that is accepted while its server closes
            self._server.close()
            self._server = None

    async def _drop(self) -> None:
        self._dropping = True

    async def _arm(self, what: AtCommit, times: int) -> None:
        self._commit, self._commits_left = what, times

    async def _close(self) -> None:
        await self._refuse()
        await self._each(_Line.reset)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # the streams' own callback would complain about it
        finally:
            self._serving.discard(task)
            _reset(writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._dropping:
            return
        self._held.add(reader)
        try:
            await self._gates[Way.UP].wait()
        finally:
            self._held.discard(reader)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        line = _Line(self, (reader, writer), (far_reader, far_writer))
        self._lines.add(line)
        self.served += 1
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    def due(self, free_at: float, size: int) -> tuple[float, float]:
        """When a chunk may arrive, and when the wire is free for the next one."""
        now = self._loop.time()
        sent = max(now, free_at) + (size / self._rate if self._rate else 0.0)
        return sent + max(0.0, self._delay + self._chance.uniform(-self._jitter, self._jitter)), sent

    async def pass_gate(self, way: Way) -> None:
        """Waits while that direction is a black hole."""
        await self._gates[way].wait()

    def commit_fault(self, data: bytes) -> AtCommit | None:
        """What is to happen now, if `data` commits."""
        if self._commit is None or self._commits_left == 0 or COMMIT.search(data) is None:
            return None
        self._commits_left -= 1
        self.commits_met += 1
        return self._commit

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_LIMIT)


class _Line:
    """One connection from a client to the server."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.held = asyncio.Event()
        self.held.set()
        self._proxy = proxy
        self._client, self._server = client, server
        self._end_after_answer = self._orphaned = self._abandoned = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Carries both ways until either side leaves or a fault ends it."""
        carrying = [
            asyncio.create_task(self._carry(Way.UP, self._client[0], self._server[1])),
            asyncio.create_task(self._carry(Way.DOWN, self._server[0], self._client[1])),
        ]
        try:
            await asyncio.wait({*carrying, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in carrying:
                task.cancel()
            await asyncio.gather(*carrying, return_exceptions=True)
        if self._orphaned:
            while await _read(self._client[0]):
                pass  # it goes on talking to nobody until it leaves
        if self._abandoned:
            while await _read(self._server[0]):
                pass  # so does the server
        self.finish()

    def orphan(self) -> None:
        """The server's side is closed, the client's stays."""
        self._orphaned = True
        self._server[1].close()
        self._end()

    def abandon(self) -> None:
        """RST to the client; the server's side stays."""
        self._abandoned = True
        _reset(self._client[1])
        self._end()

    def reset(self) -> None:
        """RST on both sides."""
        _reset(self._client[1])
        _reset(self._server[1])
        self._end()

    def finish(self) -> None:
        """FIN on both sides."""
        self._client[1].close()
        self._server[1].close()
        self._end()

    def _end(self) -> None:
        self.held.set()
        if not self._ended.done():
            self._ended.set_result(None)

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_AHEAD)
        delivering = asyncio.create_task(self._deliver(way, chunks, writer))
        free_at = 0.0
        try:
            while True:
                data = await _read(reader)
                due, free_at = self._proxy.due(free_at, len(data))
                await chunks.put((due, data))
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)

    async def _deliver(
        self, way: Way, chunks: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        arrived_at = 0.0
        while True:
            due, data = await chunks.get()
            arrived_at = max(arrived_at, due)  # nothing overtakes on a connection
            await asyncio.sleep(max(0.0, arrived_at - loop.time()))
            await self._proxy.pass_gate(way)
            if not data or not await self._pass(way, data, writer):
                return

    async def _pass(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Forwards one chunk, unless it is the one at which something happens; whether the direction goes on."""
        fault = self._proxy.commit_fault(data) if way is Way.UP else None
        if fault is AtCommit.LOST or (way is Way.DOWN and self._end_after_answer):
            self.reset()
            return False
        if fault is AtCommit.HELD:
            self.held.clear()
        self._end_after_answer = self._end_after_answer or fault is AtCommit.ANSWERED
        await self.held.wait()
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        if fault is AtCommit.SENT:
            self.finish()
        return fault is not AtCommit.SENT


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; none at the end, in whichever way it comes."""
    try:
        return await reader.read(CHUNK)
    except ConnectionError:
        return b""


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@contextmanager
def proxied(url: str, *, seed: int = 0) -> Iterator[Proxy]:
    """A proxy to the server of `url`, for the length of the block."""
    proxy = Proxy.to(url, seed=seed)
    try:
        yield proxy
    finally:
        proxy.close()
