"""Does a saga begin with what its model knows, and with nothing that the client has not meant?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sagas import Saga
from sagas.engine.defaults import begun
from sagas.engine.definition import BadData
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
    given: dict[str, Any] = {"film": "M", "seats": "3", "seat": None, "line": {"note": "x"}, "more": 1}
    assert begun(of(Order), given) == {**FULL, **given}


def test_what_the_model_refuses_is_refused() -> None:
    with pytest.raises(BadData, match="film"):
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


def _strict() -> type[BaseModel]:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)

        at: datetime = datetime(2026, 1, 31)

    return Strict


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


def _no_json() -> type[BaseModel]:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        thing: object = object()

    return Odd


@pytest.mark.parametrize("model", [_refused, _strict, _not_both, _no_json])
def test_defaults_that_could_not_be_data_stay_away(model: Callable[[], type[BaseModel]]) -> None:
    """Else every answer of a step would be refused for what nobody has given."""
    assert begun(of(model()), {}) == {}
