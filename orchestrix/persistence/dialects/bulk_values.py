"""Bulk values: many rows of values in one parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any

from sqlalchemy import Column, Float, Integer, LargeBinary, String

from orchestrix.errors import Invalid
from orchestrix.persistence.dialects.port import Row
from orchestrix.persistence.schema.column_types import Json, UtcTime
from orchestrix.saga.messages import compact

_CHUNK = 4 * 1024 * 1024
"""Characters in one document: well below the smallest limit on a packet (16 MiB)."""


class ValueKind(Enum):
    """What a column holds, whatever the database calls it."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    TIME = "time"
    JSON = "json"
    BYTES = "bytes"


@cache
def kind(column: Column[Any]) -> ValueKind:
    """What `column` holds."""
    for type_, found in (
        (UtcTime, ValueKind.TIME),
        (Json, ValueKind.JSON),
        (LargeBinary, ValueKind.BYTES),
        (Integer, ValueKind.INT),
        (Float, ValueKind.FLOAT),
        (String, ValueKind.TEXT),
    ):
        if isinstance(column.type, type_):
            return found
    raise TypeError(f"{column} has a type that does not travel in bulk")


def stamp(value: datetime) -> str:
    """A time as SQLite stores it and MySQL reads it: UTC with six digits. Raises `Invalid` for one without a zone."""
    return zoned(value).astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def zoned(value: datetime) -> datetime:
    """`value`; raises `Invalid` if it has no zone and so could mean many moments."""
    if value.tzinfo is None:
        raise Invalid("a stored time needs a zone")
    return value


def columns_of_values(kinds: Sequence[ValueKind], rows: Sequence[Row]) -> list[list[Any]]:
    """One list per column; JSON as text."""
    lists = zip(kinds, zip(*rows, strict=True), strict=True)
    return [_checked(kind, list(values)) for kind, values in lists]


def document(kinds: Sequence[ValueKind], rows: Sequence[Row]) -> str:
    """The rows as one JSON array of arrays. JSON values are strings in it, so that they come out as they went in."""
    return "[" + ",".join(_cells(kinds, row) for row in rows) + "]"


def documents(kinds: Sequence[ValueKind], rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """The rows as few documents of limited size, each with the rows in it."""
    texts: list[str] = []
    start = size = 0
    for place, row in enumerate(rows):
        text = _cells(kinds, row)
        if texts and size + len(text) > _CHUNK:
            yield f"[{','.join(texts)}]", rows[start:place]
            texts, start, size = [], place, 0
        texts.append(text)
        size += len(text)
    if texts:
        yield f"[{','.join(texts)}]", rows[start:]


def _cells(kinds: Sequence[ValueKind], row: Row) -> str:
    return compact([_cell(kind, value) for kind, value in zip(kinds, row, strict=True)])


def _checked(kind: ValueKind, values: list[Any]) -> list[Any]:
    if kind is ValueKind.TIME:
        return [value and zoned(value) for value in values]
    if kind is ValueKind.JSON:
        return [None if value is None else compact(value) for value in values]
    return values


def _cell(kind: ValueKind, value: Any) -> Any:
    if value is None:
        return None
    if kind is ValueKind.TIME:
        return stamp(value)
    return compact(value) if kind is ValueKind.JSON else value
