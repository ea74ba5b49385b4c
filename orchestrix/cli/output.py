"""Output: shows an answer to a person, or to a script."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

GREEN, RED, YELLOW, DIM = "32", "31", "33", "2"
GAP = 2
"""Columns of the terminal between two of a table."""
SENTENCES: Final = frozenset({"REASON", "WHY", "ERROR", "WAITING FOR", "DETAIL"})
"""Heads of the columns that are cut before all others, but not below `SENTENCE_COLUMNS`."""
SENTENCE_COLUMNS = 24
"""Columns of the terminal that a sentence keeps as long as other cells can be cut."""
SHORT_COLUMNS = 10
"""Columns of the terminal up to which a cell is cut last, as are states: an age, a number."""
_STATE: Final = re.compile(r"[A-Z][A-Z0-9_]*|-")
ID_COLUMNS = 36
"""Columns of the terminal that an id takes, which is never cut. What begins with longer ones begins with names."""
NARROWEST = 6
"""Columns of the terminal that a cell keeps however narrow that is."""
_STATE_COLOURS = {
    "COMPLETED": GREEN,
    "SUCCEEDED": GREEN,
    "ok": GREEN,
    "FAILED": RED,
    "COMPENSATION_FAILED": RED,
    "TIMED_OUT": RED,
    "fail": RED,
    "warn": YELLOW,
    "ALIVE": GREEN,
    "DRAINING": YELLOW,
    "SILENT": RED,
    "DEAD": RED,
    "HEALTHY": GREEN,
    "GRACE_30": YELLOW,
    "GRACE_60": YELLOW,
    "GRACE_90": RED,
    "DEREGISTERING": YELLOW,
    "REMOVED": RED,
}


def coloured(stream: TextIO) -> bool:
    """Whether to use colour there: a terminal, without `NO_COLOR` (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str | None) -> str:
    """`text` in that colour where stdout takes colour."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and coloured(sys.stdout) else text


def paint_state(text: str) -> str:
    """A state or a verdict (also padded) in its colour."""
    return paint(text, _STATE_COLOURS.get(text.strip()))


def mark(good: bool) -> str:
    """A tick or a cross, plain where the terminal has none."""
    return ("✓" if good else "✗") if _unicode() else ("+" if good else "x")


def block() -> str:
    """What a bar is made of, plain where the terminal has no other."""
    return "█" if _unicode() else "="


def dot() -> str:
    """What stands for nothing in a line of signs, plain where there is no terminal or it has no other."""
    return "·" if _unicode() and sys.stdout.isatty() else "."


def visible(text: str) -> str:
    """`text` in one line, control characters shown as escapes: what others wrote must not steer a terminal."""
    return "".join(_escape(char) if unicodedata.category(char) in _UNSAFE else char for char in text)


def _unicode() -> bool:
    """Whether stdout can take any character."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # parts of emoji and of several scripts; harmless


def _escape(char: str) -> str:
    return char if char in _JOINERS else char.encode("unicode_escape").decode("ascii")


def cell(value: Any) -> str:
    """One value as the text of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return visible(json.dumps(value, ensure_ascii=False))
    return visible(str(value))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], columns: int | None = None) -> str:
    """Columns two spaces apart, numbers as they come, states in colour.

    What is wider than so many `columns` of the terminal is cut: sentences and other long cells in turn, but states and
    short ones only where that is not enough. The first column is whole, unless it has names longer than an id that take
    more than two thirds of the room.
    """
    lines = [list(headers), *([cell(value) for value in row] for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(headers))]
    if columns is not None:
        room = columns - GAP * (len(widths) - 1)
        sentences = [place for place, head in enumerate(headers) if place and head in SENTENCES]
        states = [place for place in range(len(headers)) if all(_STATE.fullmatch(line[place]) for line in lines[1:])]
        others = [
            place for place, wide in enumerate(widths) if place not in (0, *sentences, *states) and wide > SHORT_COLUMNS
        ]
        names = [0] if widths[0] > max(ID_COLUMNS, room * 2 // 3) else []
        _narrow(widths, room, names, max(ID_COLUMNS, room // 2))
        _narrow(widths, room, sentences, SENTENCE_COLUMNS)
        _narrow(widths, room, others, SHORT_COLUMNS)
        _narrow(widths, room, sentences, SENTENCE_COLUMNS * 2 // 3)
        _narrow(widths, room, others)
        _narrow(widths, room, sentences)
        _narrow(widths, room, range(1, len(widths)))
        _narrow(widths, room, names, SHORT_COLUMNS)
        lines = [[cut(text, wide) for text, wide in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(_line(line, widths) for line in lines)


def _narrow(widths: list[int], room: int, places: Sequence[int], least: int = NARROWEST) -> None:
    while sum(widths) > room and places:
        widest = max(places, key=lambda place: widths[place])
        if widths[widest] <= least:
            return
        widths[widest] -= 1


def cut(text: str, wide: int) -> str:
    """The beginning of a text that is wider, with a mark at its end."""
    if width(text) <= wide:
        return text
    while width(text) > wide - 1:
        text = text[:-1]
    return text + ("…" if _unicode() else "~")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]], columns: int | None = None) -> None:
    """The table on stdout."""
    print(table(headers, rows, columns))


def terminal_columns() -> int | None:
    """How wide a table may be: as COLUMNS says, else as the terminal is; None where neither does."""
    texts = os.environ.get("COLUMNS", "")
    if texts.isdigit() and int(texts) > 0:
        return int(texts)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def print_fields(fields: Mapping[str, Any]) -> None:
    """One name and value a line."""
    longest = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{visible(name).ljust(longest)}  {paint_state(cell(value))}")


def print_json(value: Any) -> None:
    """The document as it came, indented."""
    print(_harmless(json.dumps(value, indent=2, ensure_ascii=not _unicode())))


def print_json_line(value: Any) -> None:
    """The document in one line, at once: for streams."""
    print(_harmless(json.dumps(value, ensure_ascii=not _unicode(), separators=(",", ":"))), flush=True)


def _harmless(document: str) -> str:
    """The same JSON with `\\u` escapes for what could steer a terminal: C1 controls and DEL, bidi controls, tags."""
    unsafe = {char for char in set(document) if unicodedata.category(char) in _UNSAFE and char not in _JOINERS + "\n"}
    return document.translate({ord(char): json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f" for char in unsafe})


def width(text: str) -> int:
    """How many columns of a terminal the text takes (Unicode UAX #11)."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or char in _JOINERS:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text + " " * (wide - width(text)) for text, wide in zip(cells, widths, strict=True)]
    padded[-1] = cells[-1]
    return (" " * GAP).join(paint_state(text) for text in padded).rstrip(" ")
