"""How does a test speak AMQP without a client, so that it can be wrong on purpose?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pamqp.frame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from orchestrix.broker.embedded import EmbeddedBroker

PATIENCE = 5.0
HELLO = b"AMQP\x00\x00\x09\x01"


class Raw:
    """A socket with just enough protocol to get past the greeting."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, method: Any, channel: int = 0) -> None:
        self.writer.write(pamqp.frame.marshal(method, channel))

    def publish(self, queue: str, body: bytes) -> None:
        self.send(commands.Basic.Publish(exchange="", routing_key=queue), 1)
        self.send(ContentHeader(0, len(body), commands.Basic.Properties()), 1)
        if body:
            self.send(ContentBody(body), 1)

    async def frame(self) -> Any:
        """The next frame. Raises IncompleteReadError at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readexactly(7)
            rest = await self.reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
        return pamqp.frame.unmarshal(head + rest)[2]

    async def until(self, kind: type[Any]) -> Any:
        """The next frame of that kind; others are skipped."""
        while not isinstance(got := await self.frame(), kind):
            pass
        return got

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def open(self, *, heartbeat: int = 0, capabilities: dict[str, Any] | None = None) -> None:
        """Negotiate, and open channel 1."""
        self.writer.write(HELLO)
        await self.until(commands.Connection.Start)
        self.send(commands.Connection.StartOk({"capabilities": capabilities or {}}, "PLAIN", "\0guest\0guest"))
        await self.until(commands.Connection.Tune)
        self.send(commands.Connection.TuneOk(0, 0, heartbeat))
        self.send(commands.Connection.Open("/"))
        await self.until(commands.Connection.OpenOk)
        self.send(commands.Channel.Open(), 1)
        await self.until(commands.Channel.OpenOk)


@asynccontextmanager
async def raw(server: EmbeddedBroker) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
