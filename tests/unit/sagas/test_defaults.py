"""Does a saga begin with what its model knows, and with nothing that the client has not meant?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import core_schema

from orchestrix import Saga
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.initial_data import begun
from tests.unit.sagas.builders import step


def of(model: type[BaseModel]) -> Saga:
    return Saga("order", (step("pay", "PAYING", then="COMPLETED"),), data=model)


class Line(BaseModel):
    """A model within a model."""

    count: int = 1
    note: str | None = None


class Order(BaseModel):
    """What a user's saga may have."""

    film: str
    seats: int = 2
    paid: bool = False
    seat: str | None = None
    line: Line = Line()
    tags: list[str] = Field(default_factory=list)
    day: date = date(2026, 1, 31)


FULL = {"seats": 2, "paid": False, "line": {"count": 1}, "tags": [], "day": "2026-01-31"}


def test_what_is_left_out_has_the_model_s_defaults() -> None:
    assert begun(of(Order), {"film": "Metropolis"}) == {**FULL, "film": "Metropolis"}


def test_what_is_given_stays_as_it_is_written() -> None:
    given: dict[str, Any] = {
        "film": "M",
        "seats": 3,
        "seat": None,
        "line": {"note": "x"},
        "more": 1,
        "day": "2026-02-01",
    }
    assert begun(of(Order), given) == {**FULL, **given, "line": {"count": 1, "note": "x"}}


def test_what_the_model_refuses_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="film"):
        begun(of(Order), {})


def test_a_default_that_is_made_is_made_once() -> None:
    class Ticket(BaseModel):
        number: int = Field(default_factory=iter(range(100)).__next__)

    first = begun(of(Ticket), {})
    assert begun(of(Ticket), first) == first
    assert begun(of(Ticket), {}) != first


def test_a_field_is_called_as_in_data() -> None:
    class Named(BaseModel):
        model_config = ConfigDict(extra="forbid")

        size: int = Field(3, alias="howMany")
        plain: Annotated[int, Field(serialization_alias="shown")] = 4

    assert begun(of(Named), {}) == {"howMany": 3, "plain": 4}


def _refused() -> type[BaseModel]:
    class Wrong(BaseModel):
        kind: Literal["a"] = "b"  # type: ignore[assignment]

    return Wrong


def _not_both() -> type[BaseModel]:
    class NotBoth(BaseModel):
        a: int = 1
        b: int = 2

        @model_validator(mode="after")
        def _one(self) -> NotBoth:
            if {"a", "b"} <= self.model_fields_set:
                raise ValueError("not both")
            return self

    return NotBoth


def _hidden() -> type[BaseModel]:
    class Hidden(BaseModel):
        secret: SecretStr = Field(default_factory=lambda: SecretStr("s3cret"))

    return Hidden


@pytest.mark.parametrize("model", [_refused, _not_both, _hidden])
def test_defaults_that_could_not_be_data_stay_away(model: Callable[[], type[BaseModel]]) -> None:
    """Else every answer of a step would be refused for what nobody has given."""
    assert begun(of(model()), {}) == {}


# What comes back from JSON as it was.


class Odd(BaseModel):
    """No default of it can be data."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: object = object()


class Login(BaseModel):
    """What must not be stored as asterisks, nor at all."""

    user: str = "ada"
    password: SecretStr = SecretStr("s3cret")


class Raw(BaseModel):
    """Bytes that are no text."""

    raw: bytes = b"\xff\x00"


class Token:
    """A type of the author's own, which compares by identity."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        shown = core_schema.plain_serializer_function_ser_schema(lambda token: "***")
        return core_schema.no_info_plain_validator_function(cls, serialization=shown)


class Own(BaseModel):
    """It is shown as three asterisks."""

    token: Token = Token("x")


class Deep(BaseModel):
    """The wrong one is in a list of a model in a dictionary."""

    hotels: dict[str, list[Login]] = Field(default_factory=dict)


class Infinite(BaseModel):
    """A number that JSON has not."""

    most: float = float("inf")


class Frozen(BaseModel):
    """Its fields cannot be set one by one."""

    model_config = ConfigDict(frozen=True)

    password: SecretStr = SecretStr("s3cret")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd, "Odd.thing is not JSON"),
        (Login, r'Login.password comes back from JSON differently, as "\*+"'),
        (Raw, "Raw.raw is not JSON"),
        (Own, "Own.token comes back from JSON differently"),
        (Deep, "Login.password comes back from JSON differently"),
        (Infinite, "Infinite.most is not JSON"),
        (Frozen, "Frozen.password comes back from JSON differently"),
    ],
)
def test_a_default_that_handlers_would_get_as_something_else_is_refused_at_the_definition(
    model: type[BaseModel], said: str
) -> None:
    with pytest.raises(DefinitionError, match=f"^saga 'order': the default of {said}"):
        of(model)


class Kind(Enum):
    """One of a few."""

    SMALL = "small"


class Many(BaseModel):
    """Types that JSON has not, and that it keeps all the same."""

    model_config = ConfigDict(strict=True)

    at: datetime = datetime(2026, 1, 31, tzinfo=UTC)
    price: Decimal = Decimal("9.90")
    wait: timedelta = timedelta(minutes=90)
    kind: Kind = Kind.SMALL
    id: UUID = UUID(int=7)
    tags: set[str] = {"a"}
    pair: tuple[int, str] = (1, "x")
    text: bytes = b"text"
    path: PurePosixPath = PurePosixPath("/tmp")
    counts: dict[int, int] = {1: 2}


def test_a_default_that_comes_back_as_it_was_counts_whatever_its_type() -> None:
    found = begun(of(Many), {})
    assert found == {
        "at": "2026-01-31T00:00:00Z",
        "price": "9.90",
        "wait": "PT1H30M",
        "kind": "small",
        "id": str(UUID(int=7)),
        "tags": ["a"],
        "pair": [1, "x"],
        "text": "text",
        "path": "/tmp",
        "counts": {"1": 2},
    }
    assert of(Many).read(found) == Many()


def test_one_default_that_does_not_come_back_takes_no_other_along() -> None:
    class Made(BaseModel):
        token: SecretStr = Field(default_factory=lambda: SecretStr("x"))
        seats: int = 2

    assert begun(of(Made), {}) == {"seats": 2}


# Models within the model.


class Hotel(BaseModel):
    """What nests."""

    model_config = ConfigDict(extra="allow")

    name: str
    stars: int = 3
    beds: int = Field(2, alias="howManyBeds")
    line: Line = Line()


class Cat(BaseModel):
    """One of two kinds."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """The other one."""

    kind: Literal["dog"]
    tricks: list[str] = Field(default_factory=list)


@dataclass
class Point:
    """No model, and defaults all the same."""

    x: int
    y: int = 5


class Stay(BaseModel):
    """Models in lists, in dictionaries, in a union, and one that may be missing."""

    hotel: Hotel
    others: list[Hotel] = Field(default_factory=list)
    by_city: dict[str, Hotel] = Field(default_factory=dict)
    pet: Cat | Dog | None = Field(None, discriminator="kind")
    at: Point | None = None
    best: Hotel = Hotel(name="best")


def test_defaults_within_models_come() -> None:
    ritz: dict[str, Any] = {"name": "Ritz"}
    full = {"name": "Ritz", "stars": 3, "howManyBeds": 2, "line": {"count": 1}}
    given = {"hotel": ritz, "others": [ritz, {**ritz, "stars": 5, "sea": True}], "by_city": {"Rome": ritz}}
    assert begun(of(Stay), {**given, "pet": {"kind": "cat"}, "at": {"x": 1}}) == {
        "hotel": full,
        "others": [full, {**full, "stars": 5, "sea": True}],
        "by_city": {"Rome": full},
        "pet": {"kind": "cat", "lives": 9},
        "at": {"x": 1, "y": 5},
        "best": {**full, "name": "best"},
    }
    assert begun(of(Stay), {"hotel": ritz, "pet": {"kind": "dog"}})["pet"] == {"kind": "dog", "tricks": []}


def test_a_field_that_goes_by_one_of_several_names() -> None:
    class Choice(BaseModel):
        size: int = Field(3, validation_alias=AliasChoices("howMany", "size"))
        deep: int = Field(4, validation_alias=AliasPath("a", "b"))

    assert begun(of(Choice), {}) == {"howMany": 3}, "the other has no name of its own"
    assert "howMany" not in begun(of(Choice), {"size": 7})


# Strict: what passes is what the handler gets.


class Exact(BaseModel):
    """One of each."""

    count: int = 0
    share: float = 0.0
    flag: bool = False
    name: str = ""
    at: datetime | None = None
    either: int | str = 0
    hotel: Hotel | None = None


@pytest.mark.parametrize(
    "data",
    [
        {"count": "12"},
        {"count": 12.0},
        {"count": True},
        {"share": "0.5"},
        {"flag": 1},
        {"flag": "true"},
        {"name": 5},
        {"at": 1700000000},
        {"hotel": {"name": "Ritz", "stars": "4"}},
    ],
)
def test_what_the_model_would_have_to_convert_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidDataError):
        begun(of(Exact), data)
    with pytest.raises(InvalidDataError):
        of(Exact).check(data)


@pytest.mark.parametrize("data", [{"share": 1}, {"at": "2026-01-31T00:00:00Z"}, {"either": "12"}, {"either": 12}])
def test_what_json_has_no_other_type_for_is_taken_as_it_is_written(data: dict[str, Any]) -> None:
    assert of(Exact).check(data) == data
    assert begun(of(Exact), data).items() >= data.items()


def test_data_that_an_older_release_took_do_not_stand_in_the_way_of_what_comes() -> None:
    old = {"count": "12"}
    assert of(Exact).check({**old, "name": "x"}, before=old) == {"count": "12", "name": "x"}
    with pytest.raises(InvalidDataError):
        of(Exact).check({**old, "flag": "no idea"}, before=old)
    with pytest.raises(InvalidDataError):
        of(Exact).check({"count": "12"}, before={"count": 12})


class Named(BaseModel):
    shown: int = Field(default=4, alias="alsoKnown")


class Either(Named):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


def test_the_own_name_of_a_field_counts_only_where_the_model_reads_it() -> None:
    assert begun(Saga("named", (step(),), data=Named), {"shown": 9}) == {"shown": 9, "alsoKnown": 4}
    assert begun(Saga("either", (step(),), data=Either), {"shown": 9}) == {"shown": 9}


class Bed(BaseModel):
    width: str = "x" * 90


class House(BaseModel):
    beds: list[Bed]


def test_data_that_its_defaults_make_too_large_are_refused() -> None:
    with pytest.raises(InvalidDataError, match="with the defaults of the model it exceeds 1048576 bytes: send less"):
        begun(Saga("house", (step(),), data=House), {"beds": [{}] * 20_000})
