"""AMQP codec: the port's messages as frames of AMQP 0-9-1, and back.

The frequent frames are written and read here by hand, because one object per frame costs more than all else that is
done with a message, and because a foreign client's text that is not UTF-8 must harm nothing but its own message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from orchestrix.broker.amqp import field_tables
from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.errors import Invalid

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME: Final = struct.Struct(">BHI")
FRAME_OVERHEAD: Final = FRAME.size + 1
END: Final = b"\xce"
HEARTBEAT_FRAME: Final = FRAME.pack(HEARTBEAT, 0, 0) + END

BLOCKED, UNBLOCKED, CONNECTION_CLOSE = 0x000A003C, 0x000A003D, 0x000A0032
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = 0x00140028, 0x00140029
CANCEL, PUBLISH, RETURN, DELIVER, ACK, NACK = (0x003C001E, 0x003C0028, 0x003C0032, 0x003C003C, 0x003C0050, 0x003C0078)

_CONTENT = struct.Struct(">HHQH")
_BASIC: Final = 60
_MANDATORY: Final = b"\x01"
_SETTLE = struct.Struct(">IQB")
_CLOSE = struct.Struct(">H")
_TAG = struct.Struct(">Q")
_JSON: Final = b"\x10application/json"
_PERSISTENT: Final = b"\x02"

_HAS_TYPE_OF_CONTENT, _HAS_HEADERS, _HAS_DELIVERY_MODE = 1 << 15, 1 << 13, 1 << 12
_HAS_CORRELATION_ID, _HAS_REPLY_TO, _HAS_MESSAGE_ID = 1 << 10, 1 << 9, 1 << 7
_HAS_TIMESTAMP, _HAS_TYPE = 1 << 6, 1 << 5
_ALWAYS: Final = _HAS_TYPE_OF_CONTENT | _HAS_HEADERS | _HAS_DELIVERY_MODE | _HAS_MESSAGE_ID
_MORE_FLAGS: Final = 1
DELIVERY_COUNT: Final = "x-delivery-count"


class Properties(NamedTuple):
    """The properties of a received message that the product reads."""

    headers: Mapping[str, object] = {}
    correlation_id: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    sent_at: float | None = None
    type: str | None = None


class Returned(NamedTuple):
    """A `basic.return`: the broker found no queue."""

    code: int
    text: str
    exchange: str
    routing_key: str


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One whole frame."""
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def publish(message: Outgoing, channel: int, frame_max: int) -> bytes:
    """All frames of a mandatory `basic.publish`. Raises Invalid where the message cannot be put on the wire.

    `frame_max` is in bytes, as agreed with the broker. A header that does not fit into one frame would make the broker
    close the whole connection, so it is refused here.
    """
    header = _header(message)
    room = frame_max - FRAME_OVERHEAD
    if len(header) > room:
        raise Invalid(f"headers and properties are {len(header)} bytes long; they must fit into one frame of {room}")
    parts = [
        frame(METHOD, channel, _publish_method(message.exchange, message.routing_key)),
        frame(HEADER, channel, header),
    ]
    body = message.body
    parts += [frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _publish_method(exchange: str, routing_key: str) -> bytes:
    names = field_tables.short_string(exchange, "the exchange name") + field_tables.short_string(
        routing_key, "the routing key"
    )
    return PUBLISH.to_bytes(4, "big") + b"\x00\x00" + names + _MANDATORY


def _header(message: Outgoing) -> bytes:
    flags = _ALWAYS
    correlation, reply_to, time, kind = b"", b"", b"", b""
    if message.correlation_id:
        flags |= _HAS_CORRELATION_ID
        correlation = field_tables.short_string(message.correlation_id, "the correlation id")
    if message.reply_to:
        flags |= _HAS_REPLY_TO
        reply_to = field_tables.short_string(message.reply_to, "reply_to")
    if message.timestamp is not None:
        flags |= _HAS_TIMESTAMP
        time = _seconds(message.timestamp)
    if message.type:
        flags |= _HAS_TYPE
        kind = field_tables.short_string(message.type, "the type")
    head = _CONTENT.pack(_BASIC, 0, len(message.body), flags) + _JSON + field_tables.headers(message.headers)
    message_id = field_tables.short_string(message.message_id, "the message id")
    return head + _PERSISTENT + correlation + reply_to + message_id + time + kind


def _seconds(time: datetime) -> bytes:
    try:
        return _TAG.pack(int(time.timestamp()))
    except (struct.error, OverflowError, OSError, ValueError) as e:
        raise Invalid("the timestamp is before 1970 or not a time") from e


def settle(method: int, channel: int, tag: int, flags: int) -> bytes:
    """`basic.ack` (flags: 1 = multiple) or `basic.nack` (1 = multiple, 2 = requeue)."""
    return frame(METHOD, channel, _SETTLE.pack(method, tag, flags))


def read_confirm(payload: bytes) -> tuple[int, bool]:
    """(tag, multiple) of a `basic.ack` or `basic.nack` from the broker."""
    _, tag, flags = _SETTLE.unpack_from(payload)
    return tag, bool(flags & 1)


def read_close(payload: bytes) -> tuple[int, str]:
    """(reply code, text) of `connection.close` or `channel.close`. The broker may cut the text within a character."""
    (code,) = _CLOSE.unpack_from(payload, 4)
    return code, field_tables.read_short(payload, 6)[0]


def read_text(payload: bytes) -> str:
    """The only or first argument of a method, where it is a short string."""
    return field_tables.read_short(payload, 4)[0]


def read_return(payload: bytes) -> Returned:
    """The arguments of a `basic.return`."""
    (code,) = _CLOSE.unpack_from(payload, 4)
    text, at = field_tables.read_short(payload, 6)
    exchange, at = field_tables.read_short(payload, at)
    return Returned(code, text, exchange, field_tables.read_short(payload, at)[0])


def read_body_size(header: bytes) -> int:
    """How many bytes of body follow this content header."""
    size: int = _CONTENT.unpack_from(header)[2]
    return size


def read_properties(header: bytes) -> Properties:
    """The properties in a content header. Garbage ends the reading; what was read before it stays."""
    found: dict[str, object] = {}
    with suppress(struct.error, IndexError):  # as for header tables: the message stays readable as far as it goes
        _read_properties(header, found)
    return Properties(**found)  # type: ignore[arg-type]


def _read_properties(header: bytes, found: dict[str, object]) -> None:
    flags, at = _CONTENT.unpack_from(header)[3], _CONTENT.size
    more = flags & _MORE_FLAGS
    while more:
        more = _CLOSE.unpack_from(header, at)[0] & _MORE_FLAGS
        at += 2
    for bit, name, read in _LAYOUT:
        if flags & bit:
            value, at = read(header, at)
            if name:
                found[name] = value


def _skip(size: int) -> Callable[[bytes, int], tuple[object, int]]:
    return lambda header, at: (None, at + size)


_LAYOUT: Final[tuple[tuple[int, str, Callable[[bytes, int], tuple[object, int]]], ...]] = (
    (_HAS_TYPE_OF_CONTENT, "", field_tables.read_short),
    (1 << 14, "", field_tables.read_short),  # content encoding
    (_HAS_HEADERS, "headers", field_tables.read_headers),
    (_HAS_DELIVERY_MODE, "", _skip(1)),
    (1 << 11, "", _skip(1)),  # priority
    (_HAS_CORRELATION_ID, "correlation_id", field_tables.read_short),
    (_HAS_REPLY_TO, "reply_to", field_tables.read_short),
    (1 << 8, "", field_tables.read_short),  # expiration
    (_HAS_MESSAGE_ID, "message_id", field_tables.read_short),
    (_HAS_TIMESTAMP, "sent_at", lambda header, at: (float(_TAG.unpack_from(header, at)[0]), at + _TAG.size)),
    (_HAS_TYPE, "type", field_tables.read_short),
)
"""In the order of the wire (AMQP 0-9-1, 1.8.3); what comes after `type` is not read."""


def read_consumer_tag(payload: bytes) -> tuple[str, int]:
    """The consumer tag of a `basic.deliver` and the place behind it."""
    return field_tables.read_short(payload, 4)


def read_delivery(payload: bytes, at: int, header: bytes, body: bytes, queue: str, session: int) -> Delivery:
    """A Delivery from the frames of a `basic.deliver`, whose arguments after the consumer tag begin at `at`."""
    (tag,) = _TAG.unpack_from(payload, at)
    redelivered = bool(payload[at + 8])
    exchange, at = field_tables.read_short(payload, at + 9)
    routing_key, _ = field_tables.read_short(payload, at)
    properties = read_properties(header)
    return Delivery(
        body=body,
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        message_id=properties.message_id,
        correlation_id=properties.correlation_id,
        type=properties.type,
        headers=properties.headers,
        redelivered=redelivered,
        delivery_count=_delivery_count(properties.headers) if redelivered else 0,
        tag=tag,
        session=session,
        sent_at=properties.sent_at,
        reply_to=properties.reply_to,
    )


def _delivery_count(headers: Mapping[str, object]) -> int:
    """A queue's own count; on a first delivery the header can only be a publisher's forgery and is not asked."""
    count = headers.get(DELIVERY_COUNT, 0)
    return count if type(count) is int and count > 0 else 0
