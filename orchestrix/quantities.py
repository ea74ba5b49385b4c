"""Quantities: counts and durations in words, for logs, errors and explanations."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `2 jobs`; `plural` where the noun takes more than an s: `2 dispatches`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """The two largest units, in whole seconds: `17 s`, `59 min 41 s`, `2 h`, `1 d 4 h`; below 10 s also `0.5 s`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.3g} s"
    left, parts = round(seconds), []
    for size, unit in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
        if parts and (not left or len(parts) == 2 or not number):
            break
    return " ".join(parts)
