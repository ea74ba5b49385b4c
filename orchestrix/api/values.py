"""Values: what people send in bodies, by kind: reasons, names, times and lengths of time."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from orchestrix.api import patterns
from orchestrix.api.query import Query, read_moment
from orchestrix.saga.validation.names import MAX_NAME_LENGTH, normal

LONGEST_REASON: Final = 500
NO_REASON: Final = "no reason was given"
"""The reason of a request that gives none."""
SHORTEST_SPAN: Final = timedelta(milliseconds=1)
LONGEST_SPAN: Final = timedelta(days=3650)
NAME_ABOUT: Final = (
    "Brought to Unicode NFC, then 1 to 200 code points without control characters and without white space around it. "
    "Upper and lower case are different names."
)
DATA_ABOUT: Final = "The saga's own data. Steps read it and add to it; the saga's model has the last word."
_SPAN: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|)")
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUEUE: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"


def sentence(text: str) -> str:
    """A reason in NFC. Raises `ValueError` that says what is wrong with it."""
    reason = unicodedata.normalize("NFC", text)
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise ValueError(f"must have 1 to {LONGEST_REASON} code points, not {len(reason)}")
    if any(unicodedata.category(dead_letter) in ("Cc", "Cs") for dead_letter in reason):
        raise ValueError("must not have control characters or lone surrogates")
    if not reason.strip():
        raise ValueError("must say something")
    return reason


def read_span(value: object) -> timedelta:
    """A length of time: seconds, or a text such as `30s` or `5m`. Raises `ValueError` that says what is allowed."""
    seconds = _seconds(value)
    if not SHORTEST_SPAN.total_seconds() <= seconds <= LONGEST_SPAN.total_seconds():
        raise ValueError("must be seconds, or a text such as 500ms, 30s, 5m, 2h or 1d: from 1ms to 3650d")
    return timedelta(seconds=seconds)


def _seconds(value: object) -> float:
    if isinstance(value, str) and (match := _SPAN.fullmatch(value)):
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(str(value))  # infinite, and no error, where it is too much
    return 0.0


def integral(value: object) -> object:
    """`5.0` as 5, for it is the same number in JSON; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def milliseconds(span: timedelta) -> int:
    """`span` in whole milliseconds, at least one."""
    return max(1, round(span / timedelta(milliseconds=1)))


def queue_name(text: str) -> str:
    """`text` if a queue of workers can be called so. Raises `ValueError` that says what is allowed."""
    if not re.fullmatch(_QUEUE.strip("^$"), text, re.ASCII):
        raise ValueError("must have 1 to 100 letters, digits, dots, - or _, the first one a letter or a digit")
    return text


Reason = Annotated[
    str,
    AfterValidator(sentence),
    Field(
        description="Why; it is kept in the history.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_REASON, "pattern": patterns.REASON},
    ),
]
Name = Annotated[
    str,
    AfterValidator(normal),
    Field(
        description=NAME_ABOUT,
        json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": patterns.NAME},
    ),
]
QUEUE_SCHEMA: Final = {"type": "string", "pattern": _QUEUE}
QueueName = Annotated[str, AfterValidator(queue_name), WithJsonSchema(QUEUE_SCHEMA)]
INTEGRAL: Final = BeforeValidator(integral)
Moment = Annotated[datetime, BeforeValidator(read_moment), WithJsonSchema({"type": "string", "format": "date-time"})]


def span_schema(pattern: str, least: float, limit: float) -> dict[str, Any]:
    """What a length of time is in JSON: a text, or seconds."""
    return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": least, "maximum": limit}]}


Span = Annotated[
    timedelta,
    BeforeValidator(read_span),
    WithJsonSchema(span_schema(patterns.SPAN, 0.001, LONGEST_SPAN.total_seconds())),
]


def asked(more: Mapping[str, Any] | None = None, /, **example: Any) -> ConfigDict:
    """The configuration of a body, with an example of it and what `more` its schema says."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example], **(more or {})})


def either(one: str, other: str) -> dict[str, Any]:
    """What a schema says where one of two fields is needed, and not both."""
    null, value = {"type": "null"}, {"not": {"type": "null"}}
    return {
        "oneOf": [
            {"required": [name], "properties": {name: value, left_out: null}}
            for name, left_out in ((one, other), (other, one))
        ]
    }


class RequiredReason(BaseModel):
    """Why it is to be done."""

    model_config = asked(reason="the forge is back")

    reason: Reason


class OptionalReason(BaseModel):
    """Why it is to be done, for what needs no reason."""

    model_config = asked(reason="the worker is fixed")

    reason: Reason | None = None


class ReasonQuery(Query):
    """The reason, for clients that cannot send a body with DELETE."""

    reason: Annotated[str, AfterValidator(sentence)] | None = Field(
        None,
        description="Why; it is kept in the history. May be in the body instead.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_REASON, "pattern": patterns.REASON},
    )


def reason_of(query: ReasonQuery, body: OptionalReason) -> str:
    """What the body says, else the query."""
    return body.reason or query.reason or NO_REASON
