"""Schema drift: how a database differs from the tables that this version expects, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.schema import SchemaItem

from orchestrix.persistence.schema import collations

_KINDS: Final = {"fk": "foreign key", "table_comment": "comment of table"}


def differences(connection: Connection) -> list[str]:
    """A sentence for each difference."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from orchestrix.persistence.tables import metadata

    options = {"compare_type": True, "include_object": partial(_expected, connection.dialect.name)}
    context = MigrationContext.configure(connection, opts=options)
    found = [sentence for one in compare_metadata(context, metadata) for sentence in _told(one)]
    return [*found, *collations.differences(connection)]


def _expected(database: str, item: SchemaItem, *_: object) -> bool:
    """Whether the item is one for that kind of database: an index can be for others alone."""
    return item.info.get("not_on") != database


def _told(found: Any) -> Iterator[str]:
    """Alembic gives changes of one column as a list, and all else as a tuple of what it would do and to what."""
    if isinstance(found, list):
        for one in found:
            yield from _told(one)
        return
    action, _, kind = str(found[0]).partition("_")
    if action == "modify":
        old, new = (_value(kind, value) for value in found[5:7])
        yield f"column {found[2]}.{found[3]} {old} in the database and {new} in this version"
    else:
        here, there = ("this version", "the database") if action == "add" else ("the database", "this version")
        yield f"{_KINDS.get(kind, kind)} {_name(found)} is in {here} and not in {there}"


def _name(found: Any) -> str:
    """What the item is called; what belongs to a table is named with it."""
    item = found[-1]
    if len(found) == 4:
        return f"{found[2]}.{item.name}"
    table = getattr(item, "table", None)
    name = str(item.name or ", ".join(column.name for column in item.columns))
    return name if table is None else f"{table.name}.{name}"


def _value(kind: str, value: Any) -> str:
    if kind == "nullable":
        return "may be null" if value else "must not be null"
    return f"has the {kind} {getattr(value, 'arg', value)}"
