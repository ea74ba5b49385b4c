"""Is what JSON does not hold found in a value, and told with its place and the way out?"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel

from orchestrix.saga.messages import dump, load
from orchestrix.saga.validation.json_values import MAX_LEVELS, flaw


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    YES = "yes"


class Place(NamedTuple):
    row: int


@dataclass
class Seat:
    row: int


class Trip(BaseModel):
    city: str


def nested(levels: int) -> dict[str, Any]:
    """So many objects in each other."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"in": value}
    return value


def ringed() -> dict[str, Any]:
    rows: list[Any] = [1]
    rows.append({"back": rows})
    return {"rows": rows}


async def waits() -> int:
    return 1


WRONG: list[tuple[Callable[[], dict[Any, Any]], str]] = [
    (
        lambda: {"a": datetime(2026, 1, 1, tzinfo=UTC)},
        "['a'] is a datetime, which JSON does not hold: give its .isoformat()",
    ),
    (lambda: {"a": date(2026, 1, 1)}, "['a'] is a date, which JSON does not hold: give its .isoformat()"),
    (lambda: {"a": time(1)}, "['a'] is a time, which JSON does not hold: give its .isoformat()"),
    (lambda: {"a": timedelta(1)}, "['a'] is a timedelta, which JSON does not hold: give its .total_seconds()"),
    (lambda: {"a": Decimal("1.5")}, "['a'] is a Decimal, which JSON does not hold: give str(…) of it"),
    (lambda: {"a": UUID(int=1)}, "['a'] is a UUID, which JSON does not hold: give str(…) of it"),
    (lambda: {"a": Path("/")}, "Path, which JSON does not hold: give str(…) of it"),
    (lambda: {"a": b"x"}, "['a'] is a bytes, which JSON does not hold: give a text, as of .decode() or base64"),
    (lambda: {"a": Colour.RED}, "['a'] is a Colour, which JSON does not hold: give its .value"),
    (lambda: {"a": Trip(city="Rome")}, 'is a Trip, which JSON does not hold: give its .model_dump(mode="json")'),
    (lambda: {"a": Seat(1)}, "['a'] is a Seat, which JSON does not hold: give dataclasses.asdict(…) of it"),
    (lambda: {"a": ValueError("x")}, "['a'] is a ValueError, which JSON does not hold: give str(…) of it"),
    (lambda: {"a": MappingProxyType({})}, "['a'] is a mappingproxy, which JSON does not hold: give dict(…) of it"),
    (lambda: {"a": {1}}, "['a'] is a set, which JSON does not hold: give sorted(…) of it"),
    (lambda: {"a": deque([1])}, "['a'] is a deque, which JSON does not hold: give list(…) of it"),
    (lambda: {"a": range(3)}, "['a'] is a range, which JSON does not hold: give list(…) of it"),
    (lambda: {"a": Fraction(1, 3)}, "['a'] is a Fraction, which JSON does not hold: give int(…) or float(…) of it"),
    (lambda: {"a": object()}, "['a'] is an object, which JSON does not hold: give a text, a number, a list or a dict"),
    (lambda: {"a": waits()}, "['a'] is a coroutine, for an await is missing: give await … of it"),
    (lambda: {"a": float("inf")}, "['a'] is inf, which is no number in JSON: give None, or leave it out"),
    (lambda: {"a": -float("inf")}, "['a'] is -inf, which is no number in JSON"),
    (lambda: {"a": 10**5000}, "['a'] is a number that has more than 4300 digits: give it as a text"),
    (lambda: {"a": "\0"}, "['a'] is a text that has a NUL character or half of a surrogate pair: leave it out"),
    (lambda: {"\ud800": 1}, "it has the key '\\ud800' with a NUL character or half of a surrogate pair"),
    (lambda: {"a": {None: 1}}, "['a'] has the key None, None, and keys are texts in JSON: give str(…) of it"),
    (lambda: {True: 1}, "it has the key True, a bool, and keys are texts in JSON"),
    (lambda: {"a": [0, (1, {"b c": {1}})]}, "['a'][1][1]['b c'] is a set"),
    (ringed, "['rows'][1]['back'] is a list that has itself inside, and would never end: leave that out"),
    (lambda: nested(MAX_LEVELS + 1), "is nested too deeply: 63 levels of objects and arrays are the most"),
    (lambda: nested(5000), "is nested too deeply"),
]


@pytest.mark.parametrize(("make", "sentence"), WRONG, ids=[sentence[:50] for _, sentence in WRONG])
def test_what_json_does_not_hold_is_told_with_its_place(make: Callable[[], dict[Any, Any]], sentence: str) -> None:
    told = flaw(make())
    assert told is not None
    assert sentence in told
    assert "\n" not in told
    assert len(told) < 250


async def test_what_is_to_be_awaited_is_told_too() -> None:
    assert "['a'] is a Future, for an await is missing" in str(flaw({"a": asyncio.get_running_loop().create_future()}))


GOOD: list[dict[str, Any]] = [
    {},
    {"a": None, "b": True, "c": 1, "d": 1.5, "e": "é🎉", "f": [1, (2, 3)], "g": {"h": {}}},
    {"enum": Word.YES, Word.YES: Size.BIG, "place": Place(3)},
    OrderedDict(a=1),
    {"much": 10**4000, "less": -(10**4000)},
    {"same": (shared := [1]), "again": shared},
    nested(MAX_LEVELS),
]


@pytest.mark.parametrize("value", GOOD, ids=range(len(GOOD)))
def test_all_else_is_json_that_a_message_can_carry(value: dict[str, Any]) -> None:
    assert flaw(value) is None
    assert load(dump({"data": value}))["data"] == json.loads(json.dumps(value))
    assert flaw(MappingProxyType(value)) is None
