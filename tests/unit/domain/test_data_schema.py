"""Data schemas: are data of a stored version checked as its author's model would?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from orchestrix import Saga
from orchestrix.domain.data_schema import model_of, schema_of
from orchestrix.saga.definition import InvalidDataError
from tests.unit.sagas.builders import ORDER, step


class Room(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stars: int = Field(3, ge=1, le=5)


class Trip(BaseModel):
    film: str = Field(max_length=5)
    kind: Literal["bus", "train"] = "bus"
    room: Room | None = None
    seats: list[int] = []


TRIP = Saga("trip", (step(),), data=Trip)
GOOD: list[dict[str, Any]] = [{"film": "x"}, {"film": "x", "room": {"stars": 5}, "seats": [1], "other": {"a": None}}]
BAD: list[dict[str, Any]] = [
    {},
    {"film": 3},
    {"film": "longer"},
    {"film": "x", "kind": "car"},
    {"film": "x", "room": {"stars": 6}},
    {"film": "x", "room": {"beds": 1}},
    {"film": "x", "seats": ["one"]},
]


def by_schema(saga: Saga) -> Saga:
    """The saga as a process knows it that has not its code."""
    return replace(saga, data=model_of(schema_of(saga)))


@pytest.mark.parametrize("data", GOOD)
def test_what_the_model_takes_stays_as_it_is(data: dict[str, Any]) -> None:
    assert by_schema(TRIP).check(data) == data


@pytest.mark.parametrize("data", BAD)
def test_what_the_model_refuses_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidDataError):
        TRIP.check(data)
    with pytest.raises(InvalidDataError):
        by_schema(TRIP).check(data)


def test_the_refusal_says_where() -> None:
    with pytest.raises(InvalidDataError, match=r"film: 'longer' is too long"):
        by_schema(TRIP).check({"film": "longer"})


def test_data_of_any_shape_are_so_by_their_schema_too() -> None:
    assert by_schema(ORDER).check({"amount": 1, "new": [1, {}]}) == {"amount": 1, "new": [1, {}]}


class Own(BaseModel):
    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        raise RuntimeError("no schema today")


def test_a_model_without_schema_is_checked_by_its_own_code_alone() -> None:
    saga = Saga("own", (step(),), data=Own)
    assert schema_of(saga) is None
    assert by_schema(saga).check({"a": 1}) == {"a": 1}


class Loose(BaseModel):
    n: int = Field(validation_alias=AliasChoices("a", "b"))
    word: str = Field("x", pattern=r"^\p{L}+$")


def test_what_a_schema_cannot_say_ends_no_saga() -> None:
    """Data that the author's model has taken are not refused by its schema when an answer is merged."""
    saga = by_schema(Saga("loose", (step(),), data=Loose))
    before = {"b": 1, "word": "жук"}
    assert saga.check({**before, "more": 1}, before=before) == {**before, "more": 1}
    converted = {"stars": "3"}
    inn = by_schema(replace(TRIP, data=Room))
    assert inn.check({**converted, "stars": "4"}, before=converted) == {"stars": "4"}
    with pytest.raises(InvalidDataError):
        inn.check({"stars": 9}, before={"stars": 3})
