"""JSON values: finds where an author's value is not JSON, and says what to write instead."""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Number
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel

from orchestrix.saga.messages import MAX_NESTING, storable
from orchestrix.saga.validation.arguments import brief, called

MAX_LEVELS: Final = MAX_NESTING - 1
"""The message itself is one more level."""
_SHOWN: Final = 60
"""Characters shown of a path that is too deep."""
_INSTEAD: Final[tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...]] = (
    ((datetime, date, time), "give its .isoformat()"),
    (timedelta, "give its .total_seconds()"),
    ((Decimal, UUID, PurePath, complex), "give str(…) of it"),
    ((bytes, bytearray, memoryview), "give a string, e.g. by .decode() or base64"),
    (Enum, "give its .value"),
    (BaseModel, 'give its .model_dump(mode="json")'),
    (BaseException, "give str(…) of it"),
    (Number, "give int(…) or float(…) of it"),
    (Mapping, "give dict(…) of it"),
    ((set, frozenset), "give sorted(…) of it"),
    (Iterable, "give list(…) of it"),
)


def json_problem(value: Mapping[Any, Any]) -> str | None:
    """A sentence about the first part of `value` that is not JSON, with its place, its type and the remedy.

    None if all of it is. A sentence begins with the place, such as `['items'][2]['at']`.
    """
    place, wrong = next(_problems(value, "", ()), ("", None))
    return None if wrong is None else f"{place or 'it'} {wrong}"


def _problems(value: Any, place: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Each place and what is wrong there; `above` are the ids of the containers around it."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not storable(value):
            yield place, "is a string with a NUL character or a lone surrogate: remove it"
    elif isinstance(value, int):
        if not _writable(value):
            yield place, f"is a number that has more than {sys.get_int_max_str_digits()} digits: give it as a string"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield place, f"is {value}, which JSON cannot hold: give None, or leave it out"
    elif isinstance(value, dict | list | tuple) or not above:
        yield from _inside(value, place, above)
    else:
        yield place, f"is {called(value)}, {_instead(value)}"


def _inside(value: Any, place: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if id(value) in above:
        yield place, f"is {called(value)} that contains itself: remove that"
        return
    if len(above) >= MAX_LEVELS:
        yield f"{place[:_SHOWN]}…", f"is nested too deeply: at most {MAX_LEVELS} levels of objects and arrays"
        return
    path = (*above, id(value))
    if not isinstance(value, Mapping):
        for number, part in enumerate(value):
            yield from _problems(part, f"{place}[{number}]", path)
        return
    for key, part in value.items():
        yield from _key(key, place)
        yield from _problems(part, f"{place}[{brief(key)}]", path)


def _key(key: object, place: str) -> Iterator[tuple[str, str]]:
    if not isinstance(key, str):
        yield place, f"has the key {brief(key)}, {called(key)}, but keys are strings in JSON: give str(…) of it"
    elif not storable(key):
        yield place, f"has the key {brief(key)} with a NUL character or a lone surrogate: remove it"


def _writable(number: int) -> bool:
    most = sys.get_int_max_str_digits()
    return not most or number.bit_length() < 3 * most or abs(number) < 10**most


def _instead(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()  # it is never awaited, and Python warns of that here
    if inspect.isawaitable(value):
        return "because an await is missing: give await … of it"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "which JSON cannot hold: give dataclasses.asdict(…) of it"
    way = next((way for types, way in _INSTEAD if isinstance(value, types)), "give a string, number, list or dict")
    return f"which JSON cannot hold: {way}"
