"""Properties: checked and changed without touching the rest of what the publisher wrote."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from orchestrix.broker.embedded import errors

type_size = Callable[[bytes, int], int]
Field = str | int | datetime | list["Field"] | dict[str, "Field"]


def _short(raw: bytes, at: int) -> int:
    return 1 + raw[at]


def _table(raw: bytes, at: int) -> int:
    return 4 + int.from_bytes(raw[at : at + 4], "big")


def _octet(_raw: bytes, _at: int) -> int:
    return 1


def _eight(_raw: bytes, _at: int) -> int:
    return 8


# Order and flag bits of AMQP 0-9-1, class basic. The sizes are those of the encoded values.
LAYOUT: tuple[tuple[str, int, type_size], ...] = (
    ("content_type", 1 << 15, _short),
    ("content_encoding", 1 << 14, _short),
    ("headers", 1 << 13, _table),
    ("delivery_mode", 1 << 12, _octet),
    ("priority", 1 << 11, _octet),
    ("correlation_id", 1 << 10, _short),
    ("reply_to", 1 << 9, _short),
    ("expiration", 1 << 8, _short),
    ("message_id", 1 << 7, _short),
    ("timestamp", 1 << 6, _eight),
    ("type", 1 << 5, _short),
    ("user_id", 1 << 4, _short),
    ("app_id", 1 << 3, _short),
    ("cluster_id", 1 << 2, _short),
)
KNOWN_FLAGS = 0xFFFC

# Types of header values as RabbitMQ reads them, with the octets behind the type; the counted ones bring their own size.
_SIZES = dict(zip(b"tbBsuIilLfdTDV\0", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 5, 0, 0), strict=True))
_COUNTED = frozenset(b"SxFA")
_NESTED = frozenset(b"FA")
_TABLE = ord("F")


def parse(raw: bytes) -> dict[str, bytes]:
    """Each property as it was encoded. Raises AmqpError 502 where the bytes are not properties."""
    flags = int.from_bytes(raw[:2], "big")
    if len(raw) < 2 or flags & ~KNOWN_FLAGS:
        raise errors.syntax_error("the content header has property flags that do not exist")
    found, at = {}, 2
    for name, bit, size in LAYOUT:
        if flags & bit:
            if at >= len(raw):
                raise errors.syntax_error(f"the property {name} is missing in the content header")
            end = at + size(raw, at)
            found[name], at = raw[at:end], end
    if at != len(raw):
        raise errors.syntax_error("the properties do not end where the content header ends")
    return found


def build(found: Mapping[str, bytes]) -> bytes:
    flags = sum(bit for name, bit, _ in LAYOUT if name in found)
    return flags.to_bytes(2, "big") + b"".join(found[name] for name, _, _ in LAYOUT if name in found)


def text(encoded: bytes) -> str:
    """The string behind an encoded short string; broken UTF-8 is shown, not refused."""
    return encoded[1:].decode(errors="replace")


def headers(encoded: bytes) -> dict[str, bytes]:
    """The header table as name → encoded value with its type octet. Raises AmqpError 502.

    Values are not decoded: what a time or a text says is the readers' business, as long as it is seen where it ends.
    """
    found = {name: encoded[start:end] for name, start, end in _entries(encoded, 4, len(encoded), named=True)}
    inner = list(found.values())
    while inner:  # no recursion: each level costs the publisher seven bytes
        value = inner.pop()
        if value[0] in _NESTED:
            fields = _entries(value, 5, len(value), named=value[0] == _TABLE)
            inner += [value[start:end] for _, start, end in fields if value[start] in _NESTED]
    return found


def _entries(raw: bytes, at: int, stop: int, *, named: bool) -> Iterator[tuple[str, int, int]]:
    """(name, place, end) of each value of a table, or of an array, whose values have no names."""
    while at < stop:
        start = at + 1 + raw[at] if named else at
        end = _value_end(raw, start) if start < stop else stop + 1
        if end > stop:
            raise errors.syntax_error("the message headers are cut short")
        yield raw[at + 1 : start].decode(errors="surrogateescape"), start, end
        at = end


def _value_end(raw: bytes, at: int) -> int:
    kind = raw[at]
    if kind in _COUNTED:
        return at + 5 + int.from_bytes(raw[at + 1 : at + 5], "big")
    if kind not in _SIZES:
        raise errors.syntax_error(f"the message headers have a value of the unknown type {chr(kind)!r}")
    return at + 1 + _SIZES[kind]


def with_headers(raw: bytes, changes: Mapping[str, Field], without: frozenset[str] = frozenset()) -> bytes:
    """The same properties with some headers replaced and the properties `without` left out."""
    found = {name: value for name, value in parse(raw).items() if name not in without}
    entries = headers(found["headers"]) if "headers" in found else {}
    entries |= {name: _field(value) for name, value in changes.items()}
    found["headers"] = _join(entries)
    return build(found)


def _join(entries: Mapping[str, bytes]) -> bytes:
    pieces = []
    for name, value in entries.items():
        key = name.encode(errors="surrogateescape")
        pieces.append(bytes((len(key),)) + key + value)
    return _long(b"".join(pieces))


def _field(value: Field) -> bytes:
    """Integers are 64 bits wide as RabbitMQ's own headers are, so that typed clients read a long."""
    if isinstance(value, str):
        return b"S" + _long(value.encode())
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    if isinstance(value, datetime):
        return b"T" + struct.pack(">Q", int(value.timestamp()))
    if isinstance(value, list):
        return b"A" + _long(b"".join(map(_field, value)))
    return b"F" + _join({name: _field(inner) for name, inner in value.items()})


def _long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw
