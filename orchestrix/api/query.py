"""Query parameters: one model for those of each operation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from orchestrix.api.patterns import DURATION, VISIBLE
from orchestrix.api.problems import bad_parameter, ended
from orchestrix.api.validation_errors import wrong_fields
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.validation.names import MAX_NAME_LENGTH

MAX_FIELDS: Final = 100
MAX_LIMIT: Final = 200
DEFAULT_LIMIT: Final = 50
MAX_WAIT_S: Final = 60.0
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_DURATION: Final = re.compile(r"([0-9]{1,9})(ms|s|)")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_FLAGS: Final = {"true": True, "false": False}


class Query(BaseModel):
    """The query parameters of an operation; here none. A field that is a tuple may stand several times."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=False)

    blank: ClassVar[frozenset[str]] = frozenset()
    """Parameters that, when empty, are as good as absent. Others are refused: that could mean all or nothing."""


Q = TypeVar("Q", bound=Query)


def read_query(model: type[Q], raw: bytes) -> Q:
    """The parameters in `raw`. Raises `Problem` 400 for one that is unknown, repeated, empty or wrong."""
    values = _values(model, raw) if raw else {}
    try:
        return model.model_validate(values)
    except ValidationError as refused:
        first = wrong_fields(refused.errors(include_url=False, include_context=False), model, values)[0]
        raise bad_parameter(first["pointer"][1:].partition("/")[0], ended(first["detail"])) from None


def _values(model: type[Query], raw: bytes) -> dict[str, Any]:
    known, found = many_valued(model), dict[str, Any]()
    for name, value in _pairs(raw):
        if name not in known:
            raise bad_parameter(name[:100], f"is not known here; allowed are: {', '.join(known) or 'none'}.")
        if any(unicodedata.category(dead_letter) == "Cc" for dead_letter in value):
            raise bad_parameter(name, "has control characters.")
        if name in found and not known[name]:
            raise bad_parameter(name, "was given more than once.")
        if not value and name in model.blank:
            continue
        if not value:
            raise bad_parameter(name, "is empty; give it a value or leave it out.")
        text = unicodedata.normalize("NFC", value)  # as all stored names are
        found[name] = (*found.get(name, ()), text) if known[name] else text
    return found


@cache
def many_valued(model: type[Query]) -> Mapping[str, bool]:
    """Which parameters there are, and whether each may stand several times."""
    fields = model.model_fields.items()
    return {field.alias or name: get_origin(field.annotation) is tuple for name, field in fields}


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeError:
        raise bad_parameter("query", "is not UTF-8 in percent-encoding.") from None
    except ValueError:
        raise bad_parameter("query", f"has more than {MAX_FIELDS} parameters.") from None


def read_moment(value: object) -> datetime:
    """A time of RFC 3339 with its zone, in UTC. Raises `ValueError` that says what is allowed."""
    try:
        if isinstance(value, str) and _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a time with its zone such as 2026-01-31T12:00:00Z or 2026-01-31T12:00:00+01:00")


def _moment(value: object) -> datetime:
    try:
        return read_moment(value)
    except ValueError as refused:
        raise ValueError(str(refused).replace("+", "%2B")) from None


def _duration(value: object) -> float:
    """Seconds, of `20s`, `500ms` or `20`."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = int(match[1]) / (1000 if match[2] == "ms" else 1) if match else MAX_WAIT_S + 1
    if seconds > MAX_WAIT_S:
        raise ValueError(f"must be a duration such as 20s, 500ms or 20, at most {MAX_WAIT_S:g}s")
    return seconds


def read_whole(value: object) -> object:
    """A whole number of its digits; anything else as it is, which its field refuses."""
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _flag(value: object) -> object:
    return _FLAGS.get(value, value) if isinstance(value, str) else value


Whole = Annotated[int, Field(ge=0, lt=MAX_ID), BeforeValidator(read_whole)]
InstanceId = Annotated[int, Field(ge=1, lt=MAX_ID), BeforeValidator(read_whole)]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(read_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, Field(json_schema_extra={"minLength": 1, "pattern": VISIBLE})]
Cursor = Annotated[str, Field(json_schema_extra={"format": "cursor", "minLength": 1})]
NameText = Annotated[str, Field(max_length=MAX_NAME_LENGTH, json_schema_extra={"minLength": 1, "pattern": VISIBLE})]
Prefix = Annotated[str, Field(max_length=MAX_NAME_LENGTH, json_schema_extra={"pattern": VISIBLE})]
Instant = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION}),
]


class Paging(Query):
    """Which page."""

    limit: Limit = Field(DEFAULT_LIMIT, description="How many items a page has.")
    cursor: Cursor | None = Field(None, description="`nextCursor` of the page before.")
