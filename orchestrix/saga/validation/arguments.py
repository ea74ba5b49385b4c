"""Arguments: checks the values that an author passed, and says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Any, Final

from orchestrix.saga.errors import DefinitionError

_SHOWN: Final = 60
"""Characters of a wrong value that are shown."""
_PLAIN: Final = {"async_generator": "async generator", "NoneType": "None"}
TEN_YEARS: Final = 3650 * 86_400
"""Seconds: the upper limit of every time limit."""


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """What a parameter must be. `wanted` names it with its article, `example` is a valid value as code."""

    fits: Callable[[object], bool]
    wanted: str
    example: Callable[[object], str]


def type_problem(call: str, name: str, value: object, kind: ArgumentKind) -> str | None:
    """A sentence if `value` is not what the parameter `name` of `call` takes; `call` ends where its parameters
    begin."""
    if kind.fits(value):
        return None
    return f"{call}{name}={brief(value)}): expected {kind.wanted}, e.g. {name}={kind.example(value)}"


def demand(made: object, **kinds: ArgumentKind) -> None:
    """Raises `DefinitionError` for the first of these fields of `made` that is not of its kind."""
    for name, kind in kinds.items():
        if (wrong := type_problem(_call(made, name), name, getattr(made, name), kind)) is not None:
            raise DefinitionError(wrong)


def _call(made: object, field: str) -> str:
    """The beginning of the author's call: its name says which one is meant."""
    called = getattr(made, "name", None)
    known = field != "name" and isinstance(called, str)
    return f"{type(made).__name__}({brief(called) + ', ' if known else ''}"


def brief(value: object) -> str:
    """`value` as an author has written it, on one line and not too long."""
    try:
        text = " ".join(repr(value).split())
    except BaseException:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def called(value: object) -> str:
    """What `value` is, for people: `an int`, `a list`, `an async generator`."""
    name = type(value).__name__
    plain = _PLAIN.get(name, name)
    return plain if value is None else f"{'an' if plain[:1] in 'aeioAEIO' else 'a'} {plain}"


def of(wanted: str, example: str, *types: type[Any]) -> ArgumentKind:
    """One of these types."""
    return ArgumentKind(lambda value: isinstance(value, types), wanted, lambda _value: example)


def perhaps(kind: ArgumentKind) -> ArgumentKind:
    """The same, or None."""
    return ArgumentKind(lambda value: value is None or kind.fits(value), f"{kind.wanted} or None", kind.example)


def listed(value: object) -> object:
    """The same as a tuple, if it is a list or another iterable that is no string and no mapping."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else value


def number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -inf < value < inf


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and number(value) and 0 <= value <= TEN_YEARS


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _meant(value: object) -> str | None:
    """The number that was meant, if it is a simple one."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    try:
        meant = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        meant = -1.0
    return f"{meant:g}" if 0 <= meant < 1e6 else None


def _whole_meant(value: object) -> str:
    meant = None if isinstance(value, timedelta) else _meant(value)
    return meant if meant is not None and meant.isdigit() else "3"


def _expected_text(value: object) -> str:
    if isinstance(value, BaseException):
        return "str(error)"
    return '"…"' if (meant := _meant(value)) is None else f'"{meant}"'


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _words(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)


def span_of(seconds: str) -> str:
    """A length of time as code."""
    return f"timedelta(seconds={seconds})"


TEXT: Final = ArgumentKind(lambda value: isinstance(value, str), "a string", _expected_text)
TEXTS: Final = ArgumentKind(
    _texts, "a tuple of strings", lambda value: f"({brief(value)},)" if isinstance(value, str) else '("…",)'
)
FLAG: Final = of("True or False", "True", bool)
WHOLE: Final = ArgumentKind(_whole, "a whole number", _whole_meant)
SPAN: Final = ArgumentKind(
    lambda value: isinstance(value, timedelta), "a timedelta", lambda v: span_of(_meant(v) or "30")
)
SECONDS: Final = ArgumentKind(_seconds, "a number of seconds from 0 to ten years", lambda value: _meant(value) or "30")
REASON: Final = ArgumentKind(
    lambda value: isinstance(value, str) and bool(value.strip()),
    "a non-empty reason",
    lambda _value: '"a sent mail cannot be recalled"',
)
WORDS: Final = ArgumentKind(_words, "a mapping of strings to strings", lambda _value: '{"BOOKED": "MAILING"}')
