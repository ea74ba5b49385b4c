"""Is what is wrong with a body said in our own words, by the field's path, and with what to send?"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FutureDate, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ErrorType

from app.apps import NewApp
from orchestrix import COMPLETED, NothingToUndo, Saga, Step
from orchestrix.api.actions.models import Redispatch
from orchestrix.api.dead_letters.models import EditLetter
from orchestrix.api.problems import Problem
from orchestrix.api.request_body import parsed
from orchestrix.api.validation_errors import UNSEEN, pointer, wrong_fields
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.validation import model_errors

FOREIGN = re.compile(
    r"Input should|Field required|Extra inputs|not permitted|valid (string|integer|dictionary|list|number)|instance of"
    r"|Value error|Assertion failed|unable to|dict\[|\bstr\b|\bint\b|NoneType|pydantic|Wish|Left|Right|Color"
)


class Color(Enum):
    """What things are painted in."""

    RED = "red"
    BLUE = "blue"


class Left(BaseModel):
    """One branch."""

    left: int


class Right(BaseModel):
    """The other."""

    right: int


def _refuse(value: object) -> object:
    raise PydanticCustomError("no_luck", "has no luck today")


class Wish(BaseModel):
    """All kinds of fields."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=3)
    count: int = Field(2, ge=1, lt=11)
    even: int = Field(2, multiple_of=2)
    share: float = Field(0.5, gt=0)
    sure: bool = True
    when: datetime | None = None
    day: date | None = None
    id: UUID | None = None
    price: Decimal | None = None
    span: timedelta | None = None
    color: Color = Color.RED
    size: Literal["s", "m"] = "s"
    shelf: Literal["a", 1, None] = None
    pair: tuple[int, int] = (1, 2)
    tags: list[str] = Field([], max_length=2)
    counts: dict[str, int] = {}
    either: dict[str, Any] | str = ""
    side: Left | Right | None = None
    code: str = Field("AB", pattern=r"^[A-Z]+$")
    later: FutureDate | None = None
    luck: Annotated[str, BeforeValidator(_refuse)] = ""


def told(data: dict[str, Any], model: type[BaseModel] = Wish, *, seen: bool = True) -> dict[str, str]:
    """What is said of the fields of `data`, by their pointers."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(data)
    found = wrong_fields(refused.value.errors(), model, data if seen else UNSEEN)
    assert not [one for one in found if FOREIGN.search(one["pointer"] + one["detail"])], found
    return {one["pointer"]: one["detail"] for one in found}


@pytest.mark.parametrize(
    ("data", "place", "sentence"),
    [
        ({"name": 5}, "/name", "must be a text of 1 to 3 code points"),
        ({"name": ""}, "/name", "must be a text of 1 to 3 code points"),
        ({"name": None}, "/name", "must be a text of 1 to 3 code points"),
        ({"count": "x"}, "/count", "must be a whole number from 1 to 10"),
        ({"count": 11}, "/count", "must be a whole number from 1 to 10"),
        ({"count": 1.5}, "/count", "must be a whole number from 1 to 10"),
        ({"even": 3}, "/even", "must be a whole number, a multiple of 2"),
        ({"share": 0}, "/share", "must be a number, above 0"),
        ({"share": "much"}, "/share", "must be a number, above 0"),
        ({"sure": "perhaps"}, "/sure", "must be true or false"),
        ({"when": "noon"}, "/when", "must be a time with its zone such as 2026-01-31T12:00:00Z"),
        ({"day": "2026-02-30"}, "/day", "must be a date such as 2026-01-31"),
        ({"later": "2020-01-31"}, "/later", "must lie in the future"),
        ({"id": "x"}, "/id", "must be a UUID such as 0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"),
        ({"span": "x"}, "/span", "must be a length of time such as PT30S"),
        ({"color": "pink"}, "/color", "must be one of red, blue"),
        ({"size": "xl"}, "/size", "must be one of s, m"),
        ({"shelf": "b"}, "/shelf", "must be one of a, 1, null"),
        ({"pair": [1, 2, 3]}, "/pair", "must be an array of 2 items"),
        ({"tags": {}}, "/tags", "must be an array of at most 2 items"),
        ({"tags": ["a", 1]}, "/tags/1", "must be a text"),
        ({"tags": ["a", "b", "c"]}, "/tags", "must be an array of at most 2 items"),
        ({"counts": {"a": 1, "b": "x"}}, "/counts/b", "must be a whole number"),
        ({"counts": []}, "/counts", "must be an object"),
        ({"either": 5}, "/either", "must be an object or a text"),
        ({"side": 5}, "/side", "must be an object"),
        ({"side": {"left": "x", "right": 1, "c": 1}, "color": "x"}, "/color", "must be one of red, blue"),
        ({"code": "ab"}, "/code", "must be a text that fits ^[A-Z]+$"),
        ({"luck": "x"}, "/luck", "has no luck today"),
        ({"colour": "red"}, "/colour", "is not known here: did you mean color?"),
        ({"COUNT": 1}, "/COUNT", "is not known here: did you mean count?"),
    ],
)
@pytest.mark.parametrize("seen", [True, False], ids=["with the data", "without them"])
def test_each_kind_has_its_sentence(data: dict[str, Any], place: str, sentence: str, seen: bool) -> None:
    assert told({"name": "a", **data}, seen=seen)[place] == sentence


def test_what_is_missing_is_told_with_what_to_send() -> None:
    assert told({}) == {"/name": "is missing: send a text of 1 to 3 code points"}
    found = told({"name": "a", "side": {}})
    assert found == {
        "/side/left": "is missing: send a whole number",
        "/side/right": "is missing: send a whole number",
    }


def test_what_is_known_is_told_where_nothing_is_near() -> None:
    sentence = "is not known here; known are appName, createdBy, data"
    assert told({"appName": "a", "createdBy": "b", "zzz": 1}, NewApp) == {"/zzz": sentence}


def test_a_union_is_one_field() -> None:
    assert told({"reason": "r", "body": 5}, EditLetter) == {"/body": "must be an object or a text"}
    sentence = "must be a whole number from 1 to 9007199254740991"
    assert told({"saga": "app", "ids": [0, "x"]}, Redispatch) == {"/ids/0": sentence, "/ids/1": sentence}


def test_the_fields_around_are_named_too() -> None:
    errors = [{"type": "missing", "loc": ("x",), "msg": "Field required"}]
    assert wrong_fields(errors, None, {}, "data") == [{"pointer": "/data/x", "detail": "is missing: send a value"}]


def test_a_pointer_is_that_of_the_standard() -> None:
    assert pointer(["a/b", 0, "c~d"]) == "/a~1b/0/c~0d"


@pytest.mark.parametrize("type", get_args(ErrorType))
def test_no_error_brings_its_own_words_where_nothing_is_known(type: str) -> None:
    """The message is what an error says that speaks of classes."""
    words = "Input should be a valid dictionary or instance of Wish"
    said = f"Value error, {words[:0]}must be so" if type in ("value_error", "assertion_error") else words
    (found,) = wrong_fields([{"type": type, "loc": ("x",), "msg": said}], None, {"x": 1})
    assert re.match(r"(must|is|cannot|has) ", found["detail"]), found
    assert not FOREIGN.search(found["detail"]), found


def test_a_form_that_no_schema_describes_is_told_by_the_kind_of_error() -> None:
    class Strange(BaseModel):
        """A field that JSON does not know."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        thing: re.Pattern[str] | None = None
        act: type[int] = int
        count: int = 1

    assert told({"count": "x"}, Strange) == {"/count": "must be a whole number"}
    assert "/act" in told({"act": 5}, Strange)


def test_a_model_that_cannot_describe_itself_is_told_by_the_kind_of_error_too() -> None:
    class Mute(BaseModel):
        """A model with a mistake of its author."""

        count: int = 1

        @classmethod
        def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
            raise ZeroDivisionError

    assert told({"count": "x"}, Mute) == {"/count": "must be a whole number"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/count.json"},
        {"anyOf": [True, {"type": "integer"}]},
        {"type": "integer", "exclusiveMinimum": "low"},
    ],
    ids=str,
)
def test_a_schema_of_the_authors_own_that_cannot_be_read_is_told_by_the_kind_of_error(schema: dict[str, Any]) -> None:
    class Odd(BaseModel):
        """A field that says of itself what nobody understands."""

        count: int = Field(1, json_schema_extra=schema)

    assert told({"count": "x"}, Odd) == {"/count": "must be a whole number"}


def test_bodies_that_refer_to_themselves_are_described() -> None:
    class Tree(BaseModel):
        """A tree."""

        name: str
        below: list[Tree] = []

    Tree.model_rebuild()
    found = told({"name": "a", "below": [{"name": "b", "below": [{}]}]}, Tree)
    assert found == {"/below/0/below/0/name": "is missing: send a text"}


def test_the_list_of_foreign_words_knows_pydantics() -> None:
    """Else the tests here could not fail."""
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Wish).validate_python({"count": "x", "colour": 1, "either": 5, "side": 5})
    assert all(FOREIGN.search(error["msg"] + str(error["loc"])) for error in refused.value.errors())


class Many(BaseModel):
    """Fields that can hold much that is wrong."""

    model_config = ConfigDict(extra="forbid")

    name: str
    numbers: list[int] = []
    named: dict[str, int] = {}
    either: list[int | bool | dict[str, int]] = []


MUCH: dict[str, dict[str, Any]] = {
    "unknown": {**{f"k{n}": 1 for n in range(27_000)}, "name": "x"},
    "items": {"name": "x", "numbers": ["x"] * 60_000},
    "values": {"named": {f"k{n}": "x" for n in range(20_000)}, "name": "x"},
    "unions": {"either": [None] * 40_000, "name": "x"},
    "nested": {"name": "x", "either": [{f"k{n}": "x" for n in range(100)}] * 200},
}


@pytest.mark.parametrize("data", MUCH.values(), ids=MUCH)
def test_of_very_much_that_is_wrong_the_first_is_told(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    listed, every = list[int](), model_errors._all

    def counted(refused: ValidationError) -> list[dict[str, Any]]:
        listed.append(refused.error_count())
        return every(refused)

    monkeypatch.setattr(model_errors, "_all", counted)
    with pytest.raises(Problem) as caught:
        parsed(Many, data)
    errors = caught.value.members["errors"]
    assert len(errors) == 100
    assert len(caught.value.response().body) < 100_000
    assert sum(listed) <= 5 * model_errors.SAMPLE_VALUES, (
        "all of it is never listed: that stands in everybody's way for a second"
    )
    assert not [one for one in errors if "missing" in one["detail"]], "what a part lacks is no error"
    assert "95 or more others are wrong" in caught.value.detail


def test_what_only_the_end_has_wrong_is_found_too() -> None:
    data = {"numbers": [*range(2000), *["x"] * 600], "name": "x"}
    with pytest.raises(Problem) as caught:
        parsed(Many, data)
    assert caught.value.members["errors"][0]["pointer"] == "/numbers/2000"


def test_a_long_name_is_cut_off() -> None:
    with pytest.raises(Problem) as caught:
        parsed(Many, {"n" * 200_000: 1, "name": "x", "named": {"m" * 50_000: "x"}})
    assert len(caught.value.response().body) < 10_000


def test_an_authors_model_is_asked_no_more_than_that() -> None:
    saga = Saga(
        name="many", data=Many, steps=(Step("s", "S", "cmd.s", "evt.s", COMPLETED, undo=NothingToUndo("nothing")),)
    )
    with pytest.raises(InvalidDataError) as caught:
        saga.check(MUCH["unknown"])
    assert len(caught.value.errors) <= 2 * model_errors.SAMPLE_VALUES
    assert len(str(caught.value)) < 100_000
