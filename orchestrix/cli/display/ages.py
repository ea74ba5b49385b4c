"""Ages: how long ago a moment was, or how soon it comes, in a few characters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_AS_IS_S: Final = 2 * 60
"""Seconds up to which an age is shown in seconds."""


def moment_of(value: Any) -> datetime | None:
    """The moment that a text of the API means, if it means one."""
    if not isinstance(value, str) or "T" not in value:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def age(at: datetime, now: datetime) -> str:
    """`3 min ago` or `in 3 min`; a moment that has just come, or whose clock is a little ahead, is `now`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in its largest unit: `59 min`, `3 d`."""
    if seconds < _AS_IS_S:
        return f"{seconds:.0f} s"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= 2 * size)
    return f"{seconds // size:.0f} {unit}"


def utc(at: datetime) -> str:
    """The moment to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
