"""Values: what options hold, as the API takes it."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

_AGO: Final = re.compile(r"(\d{1,9})(s|m|min|h|d|w)(?: ago)?", re.ASCII)
_UNITS_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}


def json_object(text: str, flag: str) -> dict[str, Any]:
    """The JSON object that stands behind `flag`. Raises `Invalid`."""
    import json

    from orchestrix.errors import Invalid
    from orchestrix.saga.messages import explained

    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_small_enough)
    except (ValueError, RecursionError) as wrong:
        raise Invalid(f'{flag} is not JSON ({explained(wrong)}): write an object, as \'{{"team": "blue"}}\'') from wrong
    if not isinstance(found, dict):
        raise Invalid(f'{flag} must be a JSON object, as \'{{"team": "blue"}}\'')
    return found


def file_object(place: str, flag: str) -> dict[str, Any]:
    """The JSON object of a file, or of standard input for `-`. Raises `Invalid`."""
    import sys
    from pathlib import Path

    from orchestrix.errors import Invalid

    try:
        text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise Invalid(f"{place} is not UTF-8") from wrong
    except OSError as wrong:
        raise Invalid(f"{place} cannot be read: {wrong.strerror or wrong}") from wrong
    return json_object(text, flag)


def _small_enough(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is larger than JSON's readers can hold")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def moment(text: str, flag: str) -> str:
    """A time as the API takes it: `2h` is two hours ago; days begin at midnight UTC. Raises `Invalid`."""
    from datetime import UTC, datetime, timedelta

    from orchestrix import clock
    from orchestrix.errors import Invalid

    now, word = clock.now(), text.strip().lower()
    try:
        if word in _DAYS_AGO:
            found = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=_DAYS_AGO[word])
        elif ago := _AGO.fullmatch(word):
            found = now - timedelta(seconds=int(ago[1]) * _UNITS_S[ago[2]])
        else:
            found = now if word == "now" else datetime.fromisoformat(text.strip())
            if found.tzinfo and word != "now":
                return text.strip()
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        said = "write how long ago, as 30m, 2h or 7d, or yesterday, or a time such as 2026-01-31T12:00:00Z"
        raise Invalid(f"{flag} {text[:40]!r} is no time: {said}") from None
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")
