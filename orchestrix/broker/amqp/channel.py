"""AMQP channel: runs its calls one after the other, and assembles messages from their frames."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Protocol, Self

from pamqp import commands
from pamqp import frame as frames
from pamqp.base import Frame

from orchestrix.broker.amqp import codec
from orchestrix.errors import Unavailable

log = logging.getLogger("orchestrix.broker")

RPC_TIMEOUT_S: Final = 5.0
"""Seconds that the broker has for the answer to a call."""
_CLOSE_TIMEOUT_S: Final = 1.0


class ChannelLost(Unavailable):
    """The channel is closed. `code` is the broker's reply code (AMQP 0-9-1, 1.2), or 0 with a lost connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ChannelListener:
    """Callbacks for what arrives on a channel. They are called from the socket's own callback and must not block."""

    def on_deliver(self, method: bytes, header: bytes, body: bytes) -> None:
        """A message for a subscription."""

    def on_return(self, method: bytes, header: bytes) -> None:
        """A published message that no queue is bound for; its confirm follows."""

    def on_confirm(self, tag: int, multiple: bool, accepted: bool) -> None:
        """The broker answers for one publish, or for all up to it."""

    def on_cancel(self, consumer_tag: str) -> None:
        """The broker ended a subscription, because its queue is gone or has moved."""

    def on_lost(self, lost: ChannelLost) -> None:
        """The channel is gone and this side did not ask for it."""


class ChannelTransport(Protocol):
    """What a channel needs of its connection."""

    def write(self, data: bytes) -> None:
        """Whole frames; dropped when the connection is gone."""

    def forget(self, number: int) -> None:
        """The channel number can be used again."""


class AmqpChannel:
    """One open channel. Calls are answered in order; a call that gets no answer, or is cancelled, ends the channel."""

    def __init__(self, transport: ChannelTransport, number: int, listener: ChannelListener) -> None:
        self.number = number
        self.lost: ChannelLost | None = None
        self._transport = transport
        self._listener = listener
        self._lock = asyncio.Lock()
        self._answer: asyncio.Future[Frame] | None = None
        self._closed_by_broker = asyncio.get_running_loop().create_future()
        self._method, self._header, self._missing = b"", b"", 0
        self._body: list[bytes] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, request: Frame, timeout_s: float | None = None) -> Frame:
        """Sends a method and waits for its answer, for 5 s if `timeout_s` does not say otherwise. Raises
        ChannelLost.
        """
        seconds = RPC_TIMEOUT_S if timeout_s is None else timeout_s
        async with self._lock:
            self.check()
            self._answer = asyncio.get_running_loop().create_future()
            try:
                self._transport.write(frames.marshal(request, self.number))
                async with asyncio.timeout(seconds):
                    return await self._answer
            except TimeoutError:
                self.abandon(f"the broker did not answer {request.name} within {seconds:g} s")
                assert self.lost is not None
                raise self.lost from None
            except asyncio.CancelledError:
                self.abandon("a call was cancelled")  # its late answer would be taken for the next call's
                raise
            finally:
                self._answer = None

    def check(self) -> None:
        """Raises ChannelLost if the channel is closed."""
        if self.lost is not None:
            raise ChannelLost(self.lost.code, str(self.lost)) from self.lost

    def send(self, data: bytes) -> None:
        """Writes whole frames, unless the close has begun: anything after it costs the whole connection (504)."""
        if self.lost is None:
            self._transport.write(data)

    def abandon(self, reason: str) -> None:
        """Closes the channel without waiting for the broker."""
        if self.lost is None:
            request = commands.Channel.Close(200, "done", 0, 0)
            self._transport.write(frames.marshal(request, self.number))
            self.lost = ChannelLost(0, reason)

    async def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Closes the channel, which gives back all that is unacknowledged, and waits up to `timeout_s` seconds."""
        self.abandon("closed")
        await asyncio.wait([self._closed_by_broker], timeout=timeout_s)

    def lose(self, code: int, text: str) -> None:
        """The broker closed the channel, or the connection is lost."""
        unexpected = self.lost is None
        self.lost = lost = self.lost or ChannelLost(code, text)
        self._end()
        if unexpected:
            self._listener.on_lost(lost)

    def _end(self) -> None:
        if not self._closed_by_broker.done():
            self._closed_by_broker.set_result(None)
        if self._answer is not None and not self._answer.done():
            assert self.lost is not None
            self._answer.set_exception(ChannelLost(self.lost.code, str(self.lost)))

    def feed(self, kind: int, payload: bytes) -> None:
        """One frame of this channel, in the order of the wire."""
        if kind == codec.METHOD:
            self._on_method(int.from_bytes(payload[:4], "big"), payload)
        elif self.lost is not None:
            return
        elif kind == codec.HEADER:
            self._on_header(payload)
        elif kind == codec.BODY:
            self._on_body(payload)

    def _on_method(self, index: int, payload: bytes) -> None:
        if index == codec.CHANNEL_CLOSE_OK or index == codec.CHANNEL_CLOSE:
            self._on_close(index, payload)
        elif self.lost is not None:
            return
        elif index in (codec.DELIVER, codec.RETURN):
            self._method = payload
        elif index in (codec.ACK, codec.NACK):
            tag, multiple = codec.read_confirm(payload)
            self._listener.on_confirm(tag, multiple, index == codec.ACK)
        elif index == codec.CANCEL:
            self._listener.on_cancel(codec.read_text(payload))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(_method(index, payload))

    def _on_close(self, index: int, payload: bytes) -> None:
        if index == codec.CHANNEL_CLOSE:
            self._transport.write(frames.marshal(commands.Channel.CloseOk(), self.number))
            if self.lost is None:
                self._transport.forget(self.number)  # else the broker's answer to our own close is still to come
            self.lose(*codec.read_close(payload))
        else:
            self._transport.forget(self.number)
            self._end()

    def _on_header(self, payload: bytes) -> None:
        self._header, self._missing = payload, codec.read_body_size(payload)
        if not self._missing:
            self._complete(b"")

    def _on_body(self, payload: bytes) -> None:
        self._missing -= len(payload)
        if self._missing > 0 or self._body:
            self._body.append(payload)
        if self._missing <= 0:
            whole = b"".join(self._body) if self._body else payload
            self._body = []
            self._complete(whole)

    def _complete(self, body: bytes) -> None:
        method, header = self._method, self._header
        self._method = self._header = b""
        if int.from_bytes(method[:4], "big") == codec.DELIVER:
            self._listener.on_deliver(method, header, body)
        else:
            self._listener.on_return(method, header)


def _method(index: int, payload: bytes) -> Frame:
    answer: Frame = commands.INDEX_MAPPING[index]()
    answer.unmarshal(payload[4:])
    return answer
