"""JSON syntax: explains where a text stops being JSON, and what is expected there."""

from __future__ import annotations

import re
from typing import Final

_AT: Final = re.compile(r"(?P<what>.*): line (?P<line>\d+) column (?P<column>\d+) \(char \d+\)", re.DOTALL)
# Keyed by the beginning of the error text of Python's JSON parser.
_STOPPED: Final = {
    "Expecting value": "expected a value (strings need double quotes)",
    "Expecting property name": "expected a property name in double quotes",
    "Expecting ':'": "expected a colon between the property name and its value",
    "Expecting ','": "expected a comma, or the end of the object or array",
    "Illegal trailing comma": "trailing comma: remove it",
    "Extra data": "unexpected data after the end of the JSON",
    "Unterminated string": "unterminated string: close it with double quotes",
    "Invalid control character": "control character in a string: escape it, e.g. \\n",
    "Invalid \\": "invalid escape: write \\\\ for a backslash",
    "Unexpected UTF-8 BOM": "byte order mark: remove it",
}


def stopped(text: str) -> str | None:
    """The place, and what is wrong there, from the error text of Python's JSON parser; None for any other text."""
    stop = _AT.fullmatch(text)
    if stop is None:
        return None
    why = next((ours for begin, ours in _STOPPED.items() if stop["what"].startswith(begin)), "invalid JSON")
    return f"line {stop['line']}, column {stop['column']}: {why}"
