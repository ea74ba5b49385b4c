"""Field tables: writes header tables and short strings, and reads those of peers that may send anything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from orchestrix.errors import Invalid

_LONG = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_INT64_RANGE: Final = range(-(2**63), 2**63)
_MAX_TABLE_DEPTH: Final = 16
"""Tables in tables beyond this depth are read as None: each level costs a peer five bytes and us a stack frame."""

_FIXED: Final = {
    b"t": struct.Struct(">?"),
    b"b": struct.Struct(">b"),
    b"B": struct.Struct(">B"),
    b"s": struct.Struct(">h"),
    b"u": struct.Struct(">H"),
    b"I": struct.Struct(">i"),
    b"i": struct.Struct(">I"),
    b"l": _INT64,
    b"L": _INT64,
    b"f": struct.Struct(">f"),
    b"d": struct.Struct(">d"),
    b"T": struct.Struct(">Q"),
}
_DECIMAL: Final = struct.Struct(">Bi")


def short_string(text: str, what: str) -> bytes:
    """`text` with its length in one octet. Raises Invalid, which names `what`, over 255 bytes or outside Unicode."""
    data = _utf8(text, what)
    if len(data) > 255:
        raise Invalid(f"{what} has {len(data)} bytes; AMQP allows at most 255")
    return bytes((len(data),)) + data


def headers(table: Mapping[str, str | int]) -> bytes:
    """A field table (AMQP 0-9-1, 4.2.5.5) with the types that RabbitMQ reads. Raises Invalid."""
    data = b"".join([short_string(name, "a header name") + _value(name, value) for name, value in table.items()])
    return _LONG.pack(len(data)) + data


def _value(name: str, value: object) -> bytes:
    if isinstance(value, str):
        data = _utf8(value, f"header {name!r}")
        return b"S" + _LONG.pack(len(data)) + data
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int) and value in _INT64_RANGE:
        return b"l" + _INT64.pack(value)
    raise Invalid(f"header {name!r} must be text or an integer of 64 bits")


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise Invalid(f"{what} contains a lone surrogate, which UTF-8 cannot encode") from e
    except AttributeError as e:
        raise Invalid(f"{what} is not a string") from e


def read_short(data: bytes, at: int) -> tuple[str, int]:
    """The short string at `at`, with replacement where it is not UTF-8, and the place behind it."""
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(errors="replace"), end


def read_headers(data: bytes, at: int) -> tuple[dict[str, object], int]:
    """The table at `at` and the place behind it. What cannot be read ends the table; what was read before it stays."""
    end = min(at + 4 + _LONG.unpack_from(data, at)[0], len(data))
    found: dict[str, object] = {}
    with suppress(struct.error, IndexError, KeyError):  # a foreign client's garbage affects that message alone
        _read_table(data, at + 4, end, found, 0)
    return found, end


def _read_table(data: bytes, at: int, end: int, found: dict[str, object], depth: int) -> None:
    while at < end:
        name, at = read_short(data, at)
        found[name], at = _read_value(data, at, depth)


def _read_value(data: bytes, at: int, depth: int) -> tuple[object, int]:
    kind, at = data[at : at + 1], at + 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0], at + fixed.size
    return _VARIABLE[kind](data, at, depth)


def _span(data: bytes, at: int) -> tuple[int, int]:
    start = at + 4
    end = start + _LONG.unpack_from(data, at)[0]
    if end > len(data):
        raise IndexError("the value is longer than its table")
    return start, end


def _read_text(data: bytes, at: int, depth: int) -> tuple[object, int]:
    start, end = _span(data, at)
    return data[start:end].decode(errors="replace"), end


def _read_bytes(data: bytes, at: int, depth: int) -> tuple[object, int]:
    start, end = _span(data, at)
    return data[start:end], end


def _read_decimal(data: bytes, at: int, depth: int) -> tuple[object, int]:
    places, digits = _DECIMAL.unpack_from(data, at)
    return f"{digits}e-{places}", at + _DECIMAL.size


def _read_inner(data: bytes, at: int, depth: int) -> tuple[object, int]:
    start, end = _span(data, at)
    if depth >= _MAX_TABLE_DEPTH:
        return None, end
    inner: dict[str, object] = {}
    _read_table(data, start, end, inner, depth + 1)
    return inner, end


def _read_array(data: bytes, at: int, depth: int) -> tuple[object, int]:
    start, end = _span(data, at)
    if depth >= _MAX_TABLE_DEPTH:
        return None, end
    items: list[object] = []
    while start < end:
        item, start = _read_value(data, start, depth + 1)
        items.append(item)
    return items, end


def _read_nothing(data: bytes, at: int, depth: int) -> tuple[object, int]:
    return None, at


_VARIABLE: Final[dict[bytes, Callable[[bytes, int, int], tuple[object, int]]]] = {
    b"S": _read_text,
    b"x": _read_bytes,
    b"D": _read_decimal,
    b"F": _read_inner,
    b"A": _read_array,
    b"V": _read_nothing,
    b"\x00": _read_nothing,
}
