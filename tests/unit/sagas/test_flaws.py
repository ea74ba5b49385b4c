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
from orchestrix.saga.validation.json_values import MAX_LEVELS, json_problem


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
        "['a'] is a datetime, which JSON cannot hold: give its .isoformat()",
    ),
    (lambda: {"a": date(2026, 1, 1)}, "['a'] is a date, which JSON cannot hold: give its .isoformat()"),
    (lambda: {"a": time(1)}, "['a'] is a time, which JSON cannot hold: give its .isoformat()"),
    (lambda: {"a": timedelta(1)}, "['a'] is a timedelta, which JSON cannot hold: give its .total_seconds()"),
    (lambda: {"a": Decimal("1.5")}, "['a'] is a Decimal, which JSON cannot hold: give str(…) of it"),
    (lambda: {"a": UUID(int=1)}, "['a'] is a UUID, which JSON cannot hold: give str(…) of it"),
    (lambda: {"a": Path("/")}, "Path, which JSON cannot hold: give str(…) of it"),
    (lambda: {"a": b"x"}, "['a'] is a bytes, which JSON cannot hold: give a string, e.g. by .decode() or base64"),
    (lambda: {"a": Colour.RED}, "['a'] is a Colour, which JSON cannot hold: give its .value"),
    (lambda: {"a": Trip(city="Rome")}, 'is a Trip, which JSON cannot hold: give its .model_dump(mode="json")'),
    (lambda: {"a": Seat(1)}, "['a'] is a Seat, which JSON cannot hold: give dataclasses.asdict(…) of it"),
    (lambda: {"a": ValueError("x")}, "['a'] is a ValueError, which JSON cannot hold: give str(…) of it"),
    (lambda: {"a": MappingProxyType({})}, "['a'] is a mappingproxy, which JSON cannot hold: give dict(…) of it"),
    (lambda: {"a": {1}}, "['a'] is a set, which JSON cannot hold: give sorted(…) of it"),
    (lambda: {"a": deque([1])}, "['a'] is a deque, which JSON cannot hold: give list(…) of it"),
    (lambda: {"a": range(3)}, "['a'] is a range, which JSON cannot hold: give list(…) of it"),
    (lambda: {"a": Fraction(1, 3)}, "['a'] is a Fraction, which JSON cannot hold: give int(…) or float(…) of it"),
    (lambda: {"a": object()}, "['a'] is an object, which JSON cannot hold: give a string, number, list or dict"),
    (lambda: {"a": waits()}, "['a'] is a coroutine, because an await is missing: give await … of it"),
    (lambda: {"a": float("inf")}, "['a'] is inf, which JSON cannot hold: give None, or leave it out"),
    (lambda: {"a": -float("inf")}, "['a'] is -inf, which JSON cannot hold"),
    (lambda: {"a": 10**5000}, "['a'] is a number that has more than 4300 digits: give it as a string"),
    (lambda: {"a": "\0"}, "['a'] is a string with a NUL character or a lone surrogate: remove it"),
    (lambda: {"\ud800": 1}, "it has the key '\\ud800' with a NUL character or a lone surrogate"),
    (lambda: {"a": {None: 1}}, "['a'] has the key None, None, but keys are strings in JSON: give str(…) of it"),
    (lambda: {True: 1}, "it has the key True, a bool, but keys are strings in JSON"),
    (lambda: {"a": [0, (1, {"b c": {1}})]}, "['a'][1][1]['b c'] is a set"),
    (ringed, "['rows'][1]['back'] is a list that contains itself: remove that"),
    (lambda: nested(MAX_LEVELS + 1), "is nested too deeply: at most 63 levels of objects and arrays"),
    (lambda: nested(5000), "is nested too deeply"),
]


@pytest.mark.parametrize(("make", "sentence"), WRONG, ids=[sentence[:50] for _, sentence in WRONG])
def test_what_json_does_not_hold_is_told_with_its_place(make: Callable[[], dict[Any, Any]], sentence: str) -> None:
    told = json_problem(make())
    assert told is not None
    assert sentence in told
    assert "\n" not in told
    assert len(told) < 250


async def test_what_is_to_be_awaited_is_told_too() -> None:
    assert "['a'] is a Future, because an await is missing" in str(
        json_problem({"a": asyncio.get_running_loop().create_future()})
    )


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
    assert json_problem(value) is None
    assert load(dump({"data": value}))["data"] == json.loads(json.dumps(value))
    assert json_problem(MappingProxyType(value)) is None
