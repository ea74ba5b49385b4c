"""Embedded connection: turns one client's bytes into method calls on channels; its errors end it alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands

from orchestrix import clock
from orchestrix.broker.embedded import errors, frames
from orchestrix.broker.embedded.channel import EmbeddedChannel
from orchestrix.broker.embedded.negotiation import Negotiation
from orchestrix.broker.embedded.output_buffer import OutputBuffer

if TYPE_CHECKING:
    from pamqp.base import Frame

    from orchestrix.broker.embedded.broker_state import BrokerState
    from orchestrix.broker.embedded.model.profile import Profile
    from orchestrix.broker.embedded.model.queues import EmbeddedQueue
    from orchestrix.broker.embedded.model.vhost import VirtualHost

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
_CLOSE = commands.Connection.Close.index
_CLOSE_OK = commands.Connection.CloseOk.index
_CHANNEL_OPEN = commands.Channel.Open.index
_CHANNEL_CLOSE = commands.Channel.Close.index
_CHANNEL_CLOSE_OK = commands.Channel.CloseOk.index
MISSED_INTERVALS = 2


class HeartbeatTimer:
    """Sends two heartbeats per interval; after two silent intervals the peer is dead. AMQP 0-9-1, 4.2.7. Seconds."""

    def __init__(self, interval: float, send_heartbeat: Callable[[], None], on_timeout: Callable[[], None]) -> None:
        self._interval = interval
        self._send_heartbeat = send_heartbeat
        self._on_timeout = on_timeout
        self._received_at = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.paused = False
        self._schedule()

    def on_received(self) -> None:
        self._received_at = clock.monotonic()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._interval:
            self._timer = asyncio.get_running_loop().call_later(self._interval / 2, self._tick)

    def _tick(self) -> None:
        """While we do not read (`paused`) the peer's silence means nothing."""
        if self.paused:
            self.on_received()
        if clock.monotonic() - self._received_at > MISSED_INTERVALS * self._interval:
            self._on_timeout()
            return
        self._send_heartbeat()
        self._schedule()


class EmbeddedConnection(asyncio.Protocol):
    """One socket. Everything runs in callbacks of the event loop: no task per connection or message."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._splitter = frames.FrameSplitter()
        self._negotiation = Negotiation()
        self._channels: dict[int, EmbeddedChannel] = {}
        self._header_read = False
        self._closing = False
        self._reading_paused = False
        self._writable = True
        self._heartbeat: HeartbeatTimer | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def user(self) -> str:
        return self._negotiation.terms.user

    @property
    def frame_max(self) -> int:
        return self._negotiation.terms.frame_max

    @property
    def notifies_cancel(self) -> bool:
        return self._negotiation.terms.notifies_cancel

    @property
    def profile(self) -> Profile:
        return self._state.profile

    @property
    def vhost(self) -> VirtualHost:
        return self._state.vhost(self._negotiation.terms.vhost)

    @property
    def writable(self) -> bool:
        return self._writable and not self._closing

    def send(self, data: bytes) -> None:
        self._output.send(data)

    def before_flush(self, write: Callable[[], None]) -> None:
        self._output.before_flush(write)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._output = OutputBuffer(transport)
        self._state.joined(self)
        self._expect_end_within(HANDSHAKE_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        if self._heartbeat is not None:
            self._heartbeat.on_received()
        self._splitter.feed(data)
        if not self._reading_paused:
            self._read_on()
        if self._output.overfull:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if not self._reading_paused:
            self._transport.resume_reading()
        for queue in self._consumed_queues():
            queue.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._leave()
        self._state.left(self)

    def close_by_operator(self, reason: str) -> None:
        self._refuse_connection(errors.AmqpError(320, reason), 0)

    def drop(self) -> None:
        self._transport.abort()

    def alarm_ended(self) -> None:
        if not self._reading_paused:
            return
        self._reading_paused = False
        if self._heartbeat is not None:
            self._heartbeat.paused = False
        if self._negotiation.terms.notifies_blocked:
            self._send(commands.Connection.Unblocked())
        self._transport.resume_reading()
        self._read_on()

    def _read_on(self) -> None:
        index = 0
        try:
            if not self._header_read and not self._read_protocol_header():
                return
            while not self._reading_paused and (frame := self._splitter.next()) is not None:
                kind, number, payload = frame
                index = frames.method_index(payload) if kind == frames.METHOD else 0
                self._on_frame(kind, number, index, payload)
        except errors.AmqpError as refusal:
            self._refuse_connection(refusal, index)
        except Exception:
            log.exception("the embedded broker failed on a frame; closing this connection, the others stay open")
            self._refuse_connection(errors.internal_error("the broker failed on this frame"), index)

    def _read_protocol_header(self) -> bool:
        """Any other first bytes are answered with what we speak. AMQP 0-9-1, 4.2.2."""
        head = self._splitter.take(len(frames.PROTOCOL_HEADER))
        if head is None:
            return False
        self._header_read = True
        if head != frames.PROTOCOL_HEADER:
            self._transport.write(frames.PROTOCOL_HEADER)
            self._transport.close()
            self._closing = True
            return False
        self._send(self._negotiation.start(self.profile.name))
        return True

    def _on_frame(self, kind: int, number: int, index: int, payload: bytes) -> None:
        if self._closing:
            self._on_frame_while_closing(index)
        elif number:
            self._on_channel_frame(kind, number, index, payload)
        elif kind == frames.METHOD:
            self._on_connection_method(index, payload)
        elif kind != frames.HEARTBEAT:
            raise errors.command_invalid("content belongs on a channel, not on channel 0")

    def _on_frame_while_closing(self, index: int) -> None:
        """We have sent connection.close: only its close-ok counts, and a close that crossed ours."""
        if index == _CLOSE:
            self._send(commands.Connection.CloseOk())
        if index in (_CLOSE, _CLOSE_OK):
            self._end()

    def _on_connection_method(self, index: int, payload: bytes) -> None:
        if index == _CLOSE:
            self._output.settle()
            self._closing = True
            self._leave()
            self._send(commands.Connection.CloseOk())
            self._end()
        elif self._negotiation.done:
            raise errors.channel_error(f"method {index >> 16}.{index & 0xFFFF} was not expected on channel 0")
        else:
            self._negotiate(index, payload)

    def _negotiate(self, index: int, payload: bytes) -> None:
        try:
            answer = self._negotiation.on_method(index, payload)
        except ValueError as e:
            raise errors.frame_error(str(e)) from e
        if answer is not None:
            self._send(answer)
        if self._negotiation.done:
            self._opened()

    def _opened(self) -> None:
        terms = self._negotiation.terms
        self._splitter.frame_max = terms.frame_max
        self._heartbeat = HeartbeatTimer(terms.heartbeat, self._send_heartbeat, self.drop)
        if self._deadline is not None:
            self._deadline.cancel()

    def _send_heartbeat(self) -> None:
        if not self._output.sent_since_heartbeat:
            self._output.send(frames.HEARTBEAT_FRAME)
            self._output.flush()
        self._output.sent_since_heartbeat = False

    def _on_channel_frame(self, kind: int, number: int, index: int, payload: bytes) -> None:
        if not self._negotiation.done:
            raise errors.command_invalid("a channel cannot be used before connection.open")
        channel = self._channels.get(number)
        if channel is None:
            self._open_channel(number, index)
        elif channel.closing:
            self._on_frame_of_closing_channel(channel, index)
        elif index == _CHANNEL_CLOSE:
            self._close_channel(channel)
        elif index == _CHANNEL_OPEN:
            raise errors.channel_error("second 'channel.open' seen")
        else:
            self._use_channel(channel, kind, index, payload)

    def _open_channel(self, number: int, index: int) -> None:
        if index != _CHANNEL_OPEN:
            raise errors.channel_error("expected 'channel.open'")
        limit = self._negotiation.terms.channel_max
        if len(self._channels) >= limit:
            raise errors.not_allowed(f"the channels opened have reached the negotiated channel_max ({limit})")
        self._channels[number] = EmbeddedChannel(number, self)
        self._send(commands.Channel.OpenOk(), number)

    def _on_frame_of_closing_channel(self, channel: EmbeddedChannel, index: int) -> None:
        """What the client sent before it received the close is dropped."""
        if index == _CHANNEL_CLOSE:
            self._send(commands.Channel.CloseOk(), channel.number)
        elif index == _CHANNEL_CLOSE_OK:
            del self._channels[channel.number]

    def _close_channel(self, channel: EmbeddedChannel) -> None:
        self._output.settle()
        del self._channels[channel.number]
        channel.release()
        self._send(commands.Channel.CloseOk(), channel.number)

    def _use_channel(self, channel: EmbeddedChannel, kind: int, index: int, payload: bytes) -> None:
        try:
            self._dispatch_frame(channel, kind, index, payload)
        except errors.AmqpError as refusal:
            if refusal.ends_connection:
                raise
            self._refuse_channel(channel, refusal, index)
        except (ValueError, IndexError, OverflowError, RecursionError) as e:
            raise errors.frame_error(f"the frame cannot be read: {e}") from e

    def _dispatch_frame(self, channel: EmbeddedChannel, kind: int, index: int, payload: bytes) -> None:
        if kind == frames.METHOD:
            channel.on_method(index, payload)
            if index == frames.PUBLISH and self._state.alarm:
                self._pause_reading()
        elif kind == frames.HEADER:
            channel.publishing.on_header(payload)
        elif kind == frames.BODY:
            channel.publishing.on_body(payload)
        else:
            raise errors.frame_error("a heartbeat belongs on channel 0")

    def _pause_reading(self) -> None:
        """As RabbitMQ does under an alarm: a connection that publishes is not read from until the alarm ends."""
        self._reading_paused = True
        if self._heartbeat is not None:
            self._heartbeat.paused = True
        self._transport.pause_reading()
        if self._negotiation.terms.notifies_blocked:
            self._send(commands.Connection.Blocked("the embedded broker blocks publishers"))

    def _refuse_channel(self, channel: EmbeddedChannel, refusal: errors.AmqpError, index: int) -> None:
        self._output.settle()
        channel.release()
        close = commands.Channel.Close(refusal.code, refusal.reply_text, index >> 16, index & 0xFFFF)
        self._send(close, channel.number)

    def _refuse_connection(self, refusal: errors.AmqpError, index: int) -> None:
        if self._closing:
            return
        self._output.settle()
        self._closing = True
        self._leave()
        self._send(commands.Connection.Close(refusal.code, refusal.reply_text, index >> 16, index & 0xFFFF))
        self._resume_for_close_ok()
        self._expect_end_within(CLOSE_TIMEOUT_S)

    def _resume_for_close_ok(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _leave(self) -> None:
        """All channels requeue what is unacked; exclusive queues are deleted."""
        for channel in list(self._channels.values()):
            channel.release()
        self._channels.clear()
        if self._negotiation.done:
            self.vhost.drop_queues_of(self)

    def _end(self) -> None:
        self._output.flush()
        self._transport.close()

    def _expect_end_within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.drop)

    def _consumed_queues(self) -> list[EmbeddedQueue]:
        consumers = [one for channel in self._channels.values() for one in channel.deliveries.consumers.values()]
        return list(dict.fromkeys(consumer.queue for consumer in consumers))

    def _send(self, method: Frame, channel: int = 0) -> None:
        self._output.send(pamqp.frame.marshal(method, channel))
