"""Frames: splits a byte stream into AMQP frames, and writes the frequent ones without objects."""

from __future__ import annotations

import struct

from orchestrix.broker.embedded import errors

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_END_BYTE = b"\xce"
FRAME_OVERHEAD = 8  # type, channel, size and the end octet
FRAME_MAX = 131_072
FRAME_MIN = 4_096
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

PUBLISH = 0x003C0028
ACK = 0x003C0050
_KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
_FRAME = struct.Struct(">BHI")
_INDEX = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")
_ACK = struct.Struct(">IQB")
_BASIC_CLASS = 60


class FrameSplitter:
    """Cuts frames out of whatever pieces the socket brings; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self.frame_max = FRAME_MAX
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes raw, or None while they are not here: the protocol header is no frame."""
        if len(self._data) - self._at < size:
            return None
        self._at += size
        return self._data[self._at - size : self._at]

    def next(self) -> tuple[int, int, bytes] | None:
        """The next whole frame as (type, channel, payload), or None. Raises AmqpError 501 (AMQP 0-9-1, 4.2.3).

        What came with a broken frame is dropped: there is no telling where the next one begins.
        """
        try:
            return self._next_frame()
        except errors.AmqpError:
            self._data, self._at = b"", 0
            raise

    def _next_frame(self) -> tuple[int, int, bytes] | None:
        data, at = self._data, self._at
        if len(data) - at < FRAME_OVERHEAD:
            return None
        kind, channel, size = _FRAME.unpack_from(data, at)
        if kind not in _KINDS:
            raise errors.frame_error(f"unknown frame type {kind}")
        if size > self.frame_max - FRAME_OVERHEAD:
            raise errors.frame_error(f"a frame of {size} bytes exceeds the negotiated {self.frame_max}")
        end = at + 7 + size
        if end >= len(data):
            return None
        if data[end] != FRAME_END:
            raise errors.frame_error("the frame does not end with the octet 206")
        self._at = end + 1
        return kind, channel, data[at + 7 : end]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"".join((_FRAME.pack(kind, channel, len(payload)), payload, FRAME_END_BYTE))


def short_string(text: str) -> bytes:
    """A string of at most 255 bytes with its length. Raises AmqpError 502."""
    raw = text.encode()
    if len(raw) > 255:
        raise errors.syntax_error("a name is longer than 255 bytes")
    return bytes((len(raw),)) + raw


def method_index(payload: bytes) -> int:
    if len(payload) < 4:
        raise errors.syntax_error("a method frame needs a class and a method id")
    index: int = _INDEX.unpack_from(payload)[0]
    return index


def read_publish(payload: bytes) -> tuple[str, str, bool, bool]:
    """Exchange, routing key, mandatory and immediate of a basic.publish."""
    exchange, at = _read_short_string(payload, 6)
    routing_key, at = _read_short_string(payload, at)
    bits = payload[at]
    return exchange, routing_key, bool(bits & 1), bool(bits & 2)


def _read_short_string(payload: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + payload[at]
    return payload[at + 1 : end].decode(), end


def read_ack(payload: bytes) -> tuple[int, bool]:
    """Delivery tag and `multiple` of a basic.ack."""
    _, tag, bits = _ACK.unpack(payload)
    return tag, bool(bits & 1)


def read_content_header(payload: bytes) -> tuple[int, bytes]:
    """Body size in bytes and the properties as they came."""
    class_id, _, size = _CONTENT.unpack_from(payload)
    if class_id != _BASIC_CLASS:
        raise errors.unexpected_frame(f"expected content header for class 60, got one for class {class_id}")
    return size, payload[_CONTENT.size :]


def content_header(size: int, properties: bytes) -> bytes:
    return _CONTENT.pack(_BASIC_CLASS, 0, size) + properties


def ack(channel: int, tag: int, multiple: bool) -> bytes:
    return frame(METHOD, channel, _ACK.pack(ACK, tag, multiple))


def content(channel: int, method: bytes, header: bytes, body: bytes, frame_max: int) -> bytes:
    """A method that carries content: its frame, the header's, and as many body frames as `frame_max` asks for."""
    head = frame(METHOD, channel, method) + frame(HEADER, channel, header)
    room = frame_max - FRAME_OVERHEAD
    if len(body) <= room:
        return head + frame(BODY, channel, body) if body else head
    pieces = (frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room))
    return head + b"".join(pieces)


def deliver(consumer_tag: bytes, delivery_tag: int, redelivered: bool, address: bytes) -> bytes:
    """basic.deliver; `consumer_tag` and `address` (exchange and routing key) are short strings already."""
    return b"".join((b"\x00\x3c\x00\x3c", consumer_tag, struct.pack(">QB", delivery_tag, redelivered), address))


def get_ok(delivery_tag: int, redelivered: bool, address: bytes, left: int) -> bytes:
    fields = struct.pack(">QB", delivery_tag, redelivered)
    return b"".join((b"\x00\x3c\x00\x47", fields, address, struct.pack(">I", left)))


def returned(code: int, text: str, address: bytes) -> bytes:
    return b"".join((b"\x00\x3c\x00\x32", struct.pack(">H", code), short_string(text), address))


def queue_declare_ok(channel: int, name: str, messages: int, consumers: int) -> bytes:
    """Written here because pamqp refuses names that RabbitMQ allows (any UTF-8)."""
    return frame(METHOD, channel, b"\x00\x32\x00\x0b" + short_string(name) + struct.pack(">II", messages, consumers))
