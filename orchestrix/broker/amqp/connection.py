"""AMQP connection: hands every frame to its channel without a task or an object per frame.

`aio_pika.connect` does the handshake, TLS, login, heartbeats and the orderly close, all on channel 0. The frames of the
other channels are taken off the stream before it sees them: they go straight to our `AmqpChannel` objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, SupportsIndex, cast

import aio_pika
from aiormq.connection import TransportFactory
from pamqp import commands
from pamqp.constants import FRAME_MAX_SIZE
from yarl import URL

from orchestrix import clock
from orchestrix.broker.amqp import codec
from orchestrix.broker.amqp.channel import AmqpChannel, ChannelListener
from orchestrix.broker.port import CONNECTION
from orchestrix.errors import BrokerUnavailable

log = logging.getLogger("orchestrix.broker")

CONNECT_TIMEOUT_S: Final = 5.0
_READ_BUFFER_BYTES: Final = 2**20
_HEARTBEAT_FORWARD_INTERVAL_S: Final = 1.0
_KINDS: Final = frozenset({codec.METHOD, codec.HEADER, codec.BODY, codec.HEARTBEAT})

for _name in ("aio_pika", "aiormq", "aio_pika.connection", "aiormq.connection"):
    # They log a stack trace for each ordinary disconnect; here it is one line with the reason. The last two by their
    # own names: where logs are set up after this import, the levels of the libraries are set again.
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class _ChannelDemultiplexer(asyncio.StreamReader):
    """The stream that aio-pika reads: channel 0 alone. All else goes to `deliver` as it comes in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: AmqpConnection) -> None:
        super().__init__(limit=_READ_BUFFER_BYTES, loop=loop)
        self._link = link
        self._remainder = b""
        self._passed_at = 0.0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self._link.heard_at = clock.monotonic()
        fresh = bytes(data)  # which are bytes already, and then not copied
        try:
            self._remainder = self._split(self._remainder + fresh if self._remainder else fresh)
        except Exception as e:
            log.exception("cannot read what the broker sent")
            self._link.abort(f"cannot read what the broker sent ({e})")

    def _split(self, data: bytes) -> bytes:
        at, end = 0, len(data)
        while end - at >= codec.FRAME_OVERHEAD:
            kind, number, size = codec.FRAME.unpack_from(data, at)
            if kind not in _KINDS:
                self._link.abort("the server does not speak AMQP 0-9-1")
                return b""
            stop = at + codec.FRAME_OVERHEAD + size
            if stop > end:
                break
            if number:
                self._link.dispatch(kind, number, data[at + codec.FRAME.size : stop - 1])
            else:
                self._pass(data[at:stop])
                self._link.peek(kind, data[at + codec.FRAME.size : stop - 1])
            at = stop
        self._keep_alive()
        return data[at:] if at else data

    def _pass(self, data: bytes) -> None:
        self._passed_at = clock.monotonic()
        super().feed_data(data)

    def _keep_alive(self) -> None:
        """A busy broker sends no heartbeats: lets aio-pika, which does not see the traffic, know that the peer is
        alive.
        """
        if clock.monotonic() - self._passed_at > _HEARTBEAT_FORWARD_INTERVAL_S and self._link.is_open:
            self._pass(codec.HEARTBEAT_FRAME)

    def feed_eof(self) -> None:
        self._link.lose("the broker closed the connection without a reason")
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self._link.lose(f"the connection was lost ({exc})")
        super().set_exception(exc)


class _SocketFactory(TransportFactory):
    """Opens the socket with a `_ChannelDemultiplexer` as its reader; otherwise what `asyncio.open_connection` does."""

    def __init__(self, link: AmqpConnection) -> None:
        self._link = link

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = options.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        tap = _ChannelDemultiplexer(loop, self._link)
        protocol = asyncio.StreamReaderProtocol(tap, loop=loop)
        host, port = url.host or "localhost", url.port or 5672
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=context, **options)
        writer = asyncio.StreamWriter(transport, protocol, tap, loop)
        self._link.writer = writer
        return tap, writer


class _Connection(aio_pika.Connection):
    """aio-pika's plain connection over our own socket factory; the name is not part of the address."""

    def __init__(self, url: URL, *args: Any, link: AmqpConnection, **options: Any) -> None:
        super().__init__(url, *args, **options)
        self.kwargs["transport_factory"] = _SocketFactory(link)


class AmqpConnection:
    """One connection. `lost` is done, with the reason as a sentence, when it is gone for whatever cause.

    Connections of one session have the same `token`: it makes the names of queues its own.
    """

    def __init__(self, purpose: str, token: str | None = None) -> None:
        self.purpose = purpose
        self._token = token or clock.token()
        self.heard_at = clock.monotonic()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.is_open = False
        self.blocked: str | None = None
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.refusal: tuple[int, str] | None = None
        self.last_error: str | None = None
        self.frame_max = FRAME_MAX_SIZE
        self.writer: asyncio.StreamWriter | None = None
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._channels: dict[int, AmqpChannel] = {}

    async def open(self, url: URL, name: str, heartbeat: int) -> None:
        """Connects, within 5 s. Raises what aio-pika or the system raises; nothing is left open then."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._connection = await aio_pika.connect(
                    url.update_query(heartbeat=str(heartbeat)),
                    connection_class=cast(type[_Connection], partial(_Connection, link=self)),
                    client_properties={"connection_name": f"{name} {self.purpose}", "product": "Orchestrix"},
                )
        except BaseException:
            self.last_error = self.lost.result() if self.lost.done() else None
            self.abort("the connection could not be opened")
            raise
        self._opened_by_broker()

    def _opened_by_broker(self) -> None:
        assert self._connection is not None
        assert self._connection.transport is not None
        tune: commands.Connection.Tune = self._connection.transport.connection.connection_tune
        self.frame_max = tune.frame_max or FRAME_MAX_SIZE
        self.is_open = not self.lost.done()
        self._connection.close_callbacks.add(lambda *_: self.lose("connection closed: no heartbeat from the broker"))

    async def channel(self, listener: ChannelListener | None = None) -> AmqpChannel:
        """Opens a channel. Raises ChannelLost, or BrokerUnavailable where the connection is lost."""
        self.check()
        number = next(n for n in range(1, 65536) if n not in self._channels)
        channel = AmqpChannel(self, number, listener or ChannelListener())
        self._channels[number] = channel
        await channel.call(commands.Channel.Open())
        return channel

    @property
    def is_rabbitmq(self) -> bool:
        """Whether the peer says that it is RabbitMQ."""
        transport = self._connection.transport if self._connection is not None else None
        return transport is not None and transport.connection.server_properties.get("product") == "RabbitMQ"

    def named(self, queue: str) -> str:
        """What the broker calls a queue of this session."""
        return queue.replace(CONNECTION, f".{self._token}")

    def check(self) -> None:
        """Raises BrokerUnavailable if the connection is lost."""
        if not self.is_open:
            raise BrokerUnavailable(self.lost.result() if self.lost.done() else "not connected to the broker")

    def write(self, data: bytes) -> None:
        if self.is_open and self.writer is not None:
            self.writer.write(data)

    async def drain(self) -> None:
        """Waits until the socket takes more. If the connection is lost meanwhile, the wait ends without an error."""
        if self.writer is not None and self.is_open:
            with suppress(ConnectionError):  # `lost` reports it
                await self.writer.drain()

    def forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def dispatch(self, kind: int, number: int, payload: bytes) -> None:
        """A frame for a channel; one of a channel that is closed already is dropped."""
        channel = self._channels.get(number)
        if channel is not None:
            channel.feed(kind, payload)

    def peek(self, kind: int, payload: bytes) -> None:
        """A frame of channel 0, which aio-pika answers: here only what it does not report."""
        index = int.from_bytes(payload[:4], "big") if kind == codec.METHOD else 0
        if index == codec.BLOCKED:
            self.blocked = codec.read_text(payload) or "the broker gave no reason"
            log.warning("the broker is blocked and takes no messages: %s", self.blocked)
            self.unblocked.clear()
        elif index == codec.UNBLOCKED:
            self.blocked = None
            self.unblocked.set()
            log.warning("the broker is unblocked and takes messages again")
        elif index == codec.CONNECTION_CLOSE:
            self.refusal = code, text = codec.read_close(payload)
            self.lose(f"the broker closed the connection ({code} {text})")

    def lose(self, reason: str) -> None:
        """Ends the connection once: `on_lost` first, so that its users stop, then every channel."""
        if self.lost.done():
            return
        was_open, self.is_open = self.is_open, False
        self.lost.set_result(reason)
        self.unblocked.set()
        if was_open:
            self.on_lost(reason)
        for channel in list(self._channels.values()):
            channel.lose(0, reason)

    def abort(self, reason: str) -> None:
        """Cuts the socket at once."""
        self.lose(reason)
        if self.writer is not None:
            self.writer.transport.abort()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Closes cleanly for up to `timeout_s` seconds, then cuts the socket. It counts as lost from the start."""
        self.lose("closed")
        if self._connection is None:
            return self.abort("closed")
        closing = asyncio.ensure_future(self._connection.close())
        try:
            await asyncio.wait([closing], timeout=timeout_s)
        finally:
            self.abort("closed")
            await asyncio.wait([closing], timeout=timeout_s)
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is not read elsewhere
            closing.cancel()
