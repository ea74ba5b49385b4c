"""Audit log: what people have done to which saga, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import or_, select

from orchestrix.persistence.storable_text import cleaned

from .dialects import BulkInsert
from .dialects.port import Row
from .engine import Connection, Transaction
from .tables import audit


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """At a moment `actor` did what `verb` says and gave a reason.

    The saga's fields are None for what belongs to no saga, the versions also where none was changed. `detail` is what
    else was asked for.
    """

    at: datetime
    actor: str
    verb: str
    reason: str
    saga: str | None = None
    instance_id: int | None = None
    from_version: int | None = None
    to_version: int | None = None
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """What the rows of a list have in common; None is no condition."""

    actor: str | None = None
    verb: str | None = None
    saga: str | None = None
    instance_id: int | None = None
    after: datetime | None = None
    before: datetime | None = None


_FIELDS: Final = tuple(field.name for field in fields(AuditRow))
_PLAIN: Final = tuple(name for name in _FIELDS if name not in ("reason", "detail"))
_INSERT: Final = BulkInsert(audit, (*_PLAIN, "reason", "detail"))
_plain: Final = attrgetter(*_PLAIN)


async def insert(tx: Transaction, rows: Sequence[AuditRow]) -> None:
    """Inserts the rows, in the order given."""
    if rows:
        await tx.dialect.insert(tx, _INSERT, [_values(row) for row in rows])


async def listing(connection: Connection, saga: str, id: int) -> list[AuditRow]:
    """What was done to an instance, the oldest first."""
    query = select(*(audit.c[name] for name in _FIELDS)).where(audit.c.saga == saga, audit.c.instance_id == id)
    return [AuditRow(**row._mapping) for row in await connection.execute(query.order_by(audit.c.id))]


async def page(
    connection: Connection, wanted: AuditFilter, limit: int, last_seen: tuple[datetime, int] | None = None
) -> list[tuple[int, AuditRow]]:
    """Up to `limit` rows that fit, each with its id, the newest first; `last_seen` has the last one's time and id.

    By time, as the indexes of its filters are: by id, a filter by time would read all rows that are newer.
    """
    table = audit.c
    query = select(table.id, *(table[name] for name in _FIELDS))
    for name in ("actor", "verb", "saga", "instance_id"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(table[name] == value)
    if wanted.after is not None:
        query = query.where(table.at > wanted.after)
    if wanted.before is not None:
        query = query.where(table.at < wanted.before)
    if last_seen is not None:
        at, id = last_seen
        query = query.where(table.at <= at, or_(table.at < at, table.id < id))
    found = await connection.execute(query.order_by(table.at.desc(), table.id.desc()).limit(limit))
    return [(row.id, AuditRow(**{name: getattr(row, name) for name in _FIELDS})) for row in found]


def _values(row: AuditRow) -> Row:
    return (*_plain(row), cleaned(row.reason), None if row.detail is None else dict(row.detail))
