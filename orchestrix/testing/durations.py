"""Durations: parses times such as `30s`, and checks whether a time lies between two others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from orchestrix.errors import Invalid
from orchestrix.saga.validation.arguments import TEN_YEARS, brief, number
from orchestrix.saga.validation.signatures import called_as

Span: TypeAlias = str | float | timedelta
"""Seconds, a text such as `500ms`, `30s`, `5m`, `2h` or `1d`, or a `timedelta`."""

_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def is_span(value: object) -> bool:
    """Whether `value` is a length of time."""
    return not isinstance(value, str) or _TEXT.fullmatch(value) is not None


def seconds_of(span: Span) -> float:
    """The seconds of `span`. Raises `Invalid`."""
    seconds = _seconds(span)
    if seconds is None or not 0 <= seconds <= TEN_YEARS:
        raise Invalid(
            f"{brief(span)} is not a duration: write 500ms, 30s, 5m, 2h or 1d, or seconds, from 0 to ten years"
        )
    return seconds


def _seconds(span: object) -> float | None:
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, str):
        match = _TEXT.fullmatch(span)
        return None if match is None else float(match[1]) * _UNITS[match[2]]
    return float(str(span)) if number(span) else None


@dataclass(frozen=True, slots=True)
class Between:
    """A time from `low` to `high`, in seconds."""

    low: float
    high: float

    def __contains__(self, seconds: float) -> bool:
        return self.low <= seconds <= self.high

    def __str__(self) -> str:
        return f"from {self.low:g} s to {self.high:g} s"


@called_as('between("1s", "5s")', Invalid)
def between(low: Span, high: Span) -> Between:
    """What `expect(elapsed=...)` takes. Raises `Invalid`."""
    found = Between(seconds_of(low), seconds_of(high))
    if found.low > found.high:
        raise Invalid(f"between({brief(low)}, {brief(high)}): the first must not exceed the second")
    return found
