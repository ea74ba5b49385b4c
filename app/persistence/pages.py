"""Which instances does one page of a list show?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import and_, or_
from sqlalchemy.sql import ColumnElement

from app.errors import Invalid
from sagas.engine.state import Instance

from .engine import Connection
from .pairs import Pair

_LAST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_SORTS: Final = {"createdAt": "created_at", "updatedAt": "updated_at"}

After = tuple[datetime | str, int]


@dataclass(frozen=True, slots=True)
class Filter:
    """What the instances of a list have in common. The bounds themselves are not included; no field set means all."""

    states: Sequence[str] = ()
    created_by: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    prefix: str | None = None


def conditions(connection: Connection, pair: Pair, saga: str, wanted: Filter) -> list[ColumnElement[bool]]:
    """The filter in SQL."""
    table = pair.instances.c
    found: list[ColumnElement[bool]] = [] if pair.saga else [table.saga == saga]
    if wanted.states:
        found.append(table.state.in_(sorted(set(wanted.states))))
    if wanted.created_by is not None:
        found.append(table.created_by == wanted.created_by)
    if wanted.created_after is not None:
        found.append(table.created_at > wanted.created_after)
    if wanted.created_before is not None:
        found.append(table.created_at < wanted.created_before)
    if wanted.prefix:
        found.extend(_begins(connection, table[pair.key], wanted.prefix))
    return found


def order(pair: Pair, sort: str) -> tuple[ColumnElement[Any], bool]:
    """The column to sort by and whether it descends; raises `Invalid` for an unknown sort."""
    name = sort.removeprefix("-")
    column = pair.key if name in ("appName", "key") else _SORTS.get(name)
    if column is None:
        raise Invalid(f"sort: {name!r} is not one of createdAt, updatedAt, {'appName' if pair.saga else 'key'}")
    return pair.instances.c[column], sort.startswith("-")


def behind(column: ColumnElement[Any], id: ColumnElement[int], descends: bool, after: After) -> ColumnElement[bool]:
    """The rows that follow `after` in the order of (column, id)."""
    value, last = after
    if descends:
        return and_(column <= value, or_(column < value, id < last))
    return and_(column >= value, or_(column > value, id > last))


def sort_value(sort: str, instance: Instance) -> datetime | str:
    """What `instance` is sorted by: the first half of `after` for the page behind it."""
    return {"createdAt": instance.created_at, "updatedAt": instance.updated_at}.get(
        sort.removeprefix("-"), instance.key
    )


def _begins(connection: Connection, column: ColumnElement[str], prefix: str) -> list[ColumnElement[bool]]:
    # A range and not LIKE: LIKE knows no case on SQLite, has wildcards, and cannot always use the index.
    bound = _successor(prefix)
    upper = [column < bound] if bound else []
    return [column >= prefix, *upper, *connection.dialect.begins_with(column, prefix)]


def _successor(prefix: str) -> str | None:
    """The least text that is greater than all that begin with `prefix`; None if there is none."""
    letters = prefix.rstrip(chr(_LAST))
    if not letters:
        return None
    following = ord(letters[-1]) + 1
    return letters[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
