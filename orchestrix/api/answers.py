"""Answers: what the API says; the model of an answer is the only list of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from orchestrix.saga.commands import NEVER

T = TypeVar("T")
JSON: Final = "application/json"
_DATE_TIME: Final = {"type": "string", "format": "date-time"}
_PLAIN: Final[tuple[tuple[Any, Any], ...]] = (
    (bool, False),
    (int, 1),
    (datetime, "2026-01-31T12:00:00.000000Z"),
    (dict[str, Any], {}),
    (Any, None),
)
"""Examples of types."""


def moment(value: datetime) -> str:
    """RFC 3339 in UTC with six digits and `Z`."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def perhaps(value: datetime | None) -> str | None:
    """`moment`, where there is one that will ever come."""
    return None if value is None or value >= NEVER else moment(value)


Time = Annotated[datetime, PlainSerializer(moment), WithJsonSchema(_DATE_TIME)]
OptionalTime = Annotated[
    datetime | None, PlainSerializer(perhaps), WithJsonSchema({"anyOf": [_DATE_TIME, {"type": "null"}]})
]
Id = Annotated[str, Field(examples=["0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"], json_schema_extra={"format": "uuid"})]
OptionalId = Annotated[str | None, WithJsonSchema({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]})]


def _with_example(schema: dict[str, Any], model: type[Answer]) -> None:
    example = model.example()
    if example is not None:
        schema["examples"] = [example]


class Answer(BaseModel):
    """The body of an answer. A field has the name of the attribute that it is read from; its alias is that in JSON."""

    model_config = ConfigDict(
        extra="forbid",
        from_attributes=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        json_schema_extra=_with_example,
    )

    @classmethod
    def of(cls, row: object, **more: Any) -> Self:
        """Made of the attributes of `row`, and of what `more` has in their place or besides."""
        return cls.model_validate(_Over(row, more) if more else row)

    @classmethod
    def example(cls) -> dict[str, Any] | None:
        """One for the document, of the examples of its fields; None where some are an author's own models."""
        shown = [field for field in cls.model_fields.values() if field.exclude_if is None]
        found = {str(field.alias): _example_of(field.examples, field.annotation) for field in shown}
        return None if ... in found.values() else found

    @property
    def location(self) -> str | None:
        """Where it is from now on, for what was created."""
        return None

    def json_bytes(self) -> bytes:
        """Compact JSON in UTF-8."""
        return self.__pydantic_serializer__.to_json(self)


class _Over:
    """An object with some other attributes."""

    __slots__ = ("_more", "_row")

    def __init__(self, row: object, more: Mapping[str, Any]) -> None:
        self._row, self._more = row, more

    def __getattr__(self, name: str) -> Any:
        return self._more[name] if name in self._more else getattr(self._row, name)


class AnswerPage(Answer, Generic[T]):
    """What every page has."""

    items: list[T]
    next_cursor: str | None = Field(None, description="For `cursor` of the next call; null at the end.")


def _example_of(given: Sequence[Any] | None, kind: Any) -> Any:
    """The given example, else one that fits the type; `...` where there is none."""
    if given:
        return given[0]
    if isinstance(kind, type) and issubclass(kind, Answer):
        return ... if (inner := kind.example()) is None else inner
    if get_origin(kind) is list:
        inner = _example_of(None, get_args(kind)[0])
        return ... if inner is ... else [inner]
    if get_origin(kind) in (UnionType, Union):
        return None if NoneType in get_args(kind) else _example_of(None, get_args(kind)[0])
    return next((plain for one, plain in _PLAIN if kind == one), ...)


def respond(answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer over the wire; with its version, where it has one, as the ETag, and with 201 where it is."""
    version, found = getattr(answer, "version", None), dict(headers or {})
    if version is not None:
        found["ETag"] = f'"{version}"'
    if status == 201 and answer.location is not None:
        found["Location"] = answer.location
    return Response(answer.json_bytes(), status, found, JSON)
