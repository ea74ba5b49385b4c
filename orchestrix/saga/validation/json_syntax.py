"""JSON syntax: explains where a text stops being JSON, and what is expected there."""

from __future__ import annotations

import re
from typing import Final

_AT: Final = re.compile(r"(?P<what>.*): line (?P<line>\d+) column (?P<column>\d+) \(char \d+\)", re.DOTALL)
# Keyed by the beginning of the error text of Python's JSON parser.
_STOPPED: Final = {
    "Expecting value": "a value must stand there; texts have double quotes",
    "Expecting property name": "the name of a field must stand there, in double quotes",
    "Expecting ':'": "a colon must stand there, between the field's name and its value",
    "Expecting ','": "a comma must stand there, or the end of the object or array",
    "Illegal trailing comma": "this comma must go: nothing follows it",
    "Extra data": "the JSON has ended before that: send nothing behind it",
    "Unterminated string": "the text that begins there does not end: close it with double quotes",
    "Invalid control character": "a text has a control character there: write it as an escape such as \\n",
    "Invalid \\": "this backslash begins no escape that JSON knows: write \\\\ for the character itself",
    "Unexpected UTF-8 BOM": "a byte order mark stands there: leave it out",
}


def stopped(said: str) -> str | None:
    """The place, and what is wrong there, from the error text of Python's JSON parser; None for any other text."""
    stop = _AT.fullmatch(said)
    if stop is None:
        return None
    why = next((ours for begin, ours in _STOPPED.items() if stop["what"].startswith(begin)), "it cannot be read there")
    return f"line {stop['line']}, column {stop['column']}: {why}"
