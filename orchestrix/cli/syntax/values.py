"""Values: what options hold, as the API takes it."""

from __future__ import annotations

from typing import Any, NoReturn


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
