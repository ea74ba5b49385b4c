"""How does a test cut, freeze or refuse the connections to a broker that others use too?"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from yarl import URL


class Proxy:
    """Forwards TCP to the host of `target`, an AMQP URL. `url` is the same address through the proxy."""

    def __init__(self, target: str) -> None:
        self._target = URL(target)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    @property
    def url(self) -> str:
        return str(self._target.with_host("127.0.0.1").with_port(self._port))

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._writers) // 2

    async def start(self) -> None:
        """Listens; on the same port as before, if there was one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuses new connections and cuts the present ones."""
        self._flowing.set()
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Keeps the connections open and forwards nothing."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers |= {writer, to_writer}
        for source, target in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._flowing.wait()
                target.write(data)
                await target.drain()
        target.close()
        self._writers.discard(target)
