"""Clock: the only module of the product that reads the time or draws random numbers and ids.

Tests and the simulation replace the source with `use(...)`.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol
from uuid import UUID

_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Linux has the first; the second counts a suspension on macOS. Windows has neither, and its own clock counts it."""


class Source(Protocol):
    """Where time and random numbers come from."""

    def wall(self) -> float:
        """Seconds since 1970 in UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""

    def boottime(self) -> float:
        """Like `monotonic`, and the time counts for which the machine was suspended."""

    def entropy(self, size: int) -> bytes:
        """`size` random bytes."""

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high]."""


class SystemSource:
    """The machine's own clock and random numbers."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


_source: Source = SystemSource()
_last_ms = 0
_sequence = 0


@contextmanager
def use(source: Source) -> Iterator[None]:
    """Take time and random numbers from `source` inside the block."""
    global _source, _last_ms
    before, _source, _last_ms = _source, source, 0
    try:
        yield
    finally:
        _source, _last_ms = before, 0


def now() -> datetime:
    """The wall clock in UTC, to the microsecond."""
    return datetime.fromtimestamp(_source.wall(), UTC)


def monotonic() -> float:
    """Seconds on a clock that never goes back; for local deadlines."""
    return _source.monotonic()


def boottime() -> float:
    """Seconds on a clock that never goes back and counts while the machine is suspended; for leases that others
    compare with their own clocks."""
    return _source.boottime()


def uniform(low: float, high: float) -> float:
    """A random number in [low, high]; for jitter."""
    return _source.uniform(low, high)


def token() -> str:
    """Sixteen hex digits that cannot be guessed."""
    return _source.entropy(8).hex()


def unique_name(name: str) -> str:
    """`name` with a mark of this start: the id of a process in messages and rows."""
    return f"{name}-{token()[:8]}"


def uuid7() -> str:
    """A UUIDv7 (RFC 9562, 5.7): sorts by time, and within one process by order of creation."""
    global _last_ms, _sequence
    ms = int(_source.wall() * 1000)
    noise = int.from_bytes(_source.entropy(10), "big")
    if ms > _last_ms:
        _last_ms, _sequence = ms, (noise >> 70) & 0x7FF
    else:
        _sequence += 1
        if _sequence > 0xFFF:
            _last_ms, _sequence = _last_ms + 1, 0
    value = (_last_ms & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | _sequence << 64 | 0x2 << 62 | (noise & 0x3FFFFFFFFFFFFFFF)
    text = f"{value:032x}"  # a third of the time that UUID takes
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def named_uuid(*parts: bytes) -> str:
    """A UUIDv8 (RFC 9562, 5.8) made of a hash: the same for the same parts, on every machine and at any time."""
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    value = int.from_bytes(digest[:16], "big") & ~(0xF << 76 | 0x3 << 62)
    return str(UUID(int=value | 0x8 << 76 | 0x2 << 62))
