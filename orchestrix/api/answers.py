"""Answers: what the API says; the model of an answer is the only list of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from orchestrix.saga.commands import NEVER

T = TypeVar("T")
JSON: Final = "application/json"
_DATE_TIME: Final = {"type": "string", "format": "date-time"}


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
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
OptionalId = Annotated[str | None, WithJsonSchema({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]})]


class Answer(BaseModel):
    """The body of an answer. A field has the name of the attribute that it is read from; its alias is that in JSON."""

    model_config = ConfigDict(
        extra="forbid",
        from_attributes=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @classmethod
    def of(cls, row: object, **more: Any) -> Self:
        """Made of the attributes of `row`, and of what `more` has in their place or besides."""
        return cls.model_validate(_Over(row, more) if more else row)

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


class Page(Answer, Generic[T]):
    """What every page has."""

    items: list[T]
    next_cursor: str | None = Field(None, description="For `cursor` of the next call; null at the end.")


def example(**fields: Any) -> ConfigDict:
    """The configuration of a model with an example for the document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def respond(answer: Answer, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer over the wire; with its version, where it has one, as the ETag."""
    version = getattr(answer, "version", None)
    tag = {"ETag": f'"{version}"'} if version is not None else {}
    return Response(answer.json_bytes(), status, {**tag, **(headers or {})}, JSON)
