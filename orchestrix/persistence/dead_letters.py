"""Dead letters: the messages that could not be handled, and what has become of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, delete, or_, select, update
from sqlalchemy.sql import ColumnElement

from orchestrix.errors import Invalid
from orchestrix.persistence.sagas.instance_pages import begins
from orchestrix.persistence.storable_text import cleaned, storable_json

from .dialects import BulkInsert
from .dialects.port import Row
from .engine import Connection, Transaction
from .tables import dead_letters

KEPT_BODY_BYTES: Final = 64 * 1024
"""Bytes up to which a body is kept; of a larger one the size and the hash are."""

_LENGTHS: Final = {
    "queue": 255,
    "exchange": 255,
    "routing_key": 255,
    "type": 255,
    "saga": 40,
    "message_id": 255,
    "correlation_id": 255,
    "reason": 500,
    "error": 4000,
}
_COARSE: Final = timedelta(seconds=2)
"""A broker gives the time of dead-lettering in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that could not be handled.

    `id` is a UUID, the same however often the message is dead-lettered; `deliveries` is how often it was delivered
    in vain. It is open until it is redriven; `redriven` counts how often it was. `saga` and `instance_id` are what it
    says itself: there need be no such instance. `body` is None where it was too long to keep.
    """

    id: str
    queue: str
    exchange: str
    routing_key: str
    type: str
    saga: str | None = None
    instance_id: int | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    reason: str
    error: str | None = None
    deliveries: int
    body: bytes | None
    body_size: int
    body_sha256: str
    headers: Mapping[str, Any]
    died_at: datetime
    recorded_at: datetime
    redriven_at: datetime | None = None
    redriven: int = 0
    edited_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """What the dead letters of a list have in common; `reason` is how it begins."""

    queue: str | None = None
    saga: str | None = None
    instance_id: int | None = None
    reason: str | None = None
    open_only: bool = True


After = tuple[datetime, str]

_FIELDS: Final = tuple(field.name for field in fields(DeadLetter))
_DEATH: Final = tuple(name for name in _FIELDS if name not in ("id", "redriven", "edited_at"))
"""The fields that are replaced when a message is dead-lettered again."""
_EDITED: Final = ("body", "body_size", "body_sha256", "saga", "instance_id", "correlation_id", "edited_at")
_INSERT: Final = BulkInsert(dead_letters, _FIELDS, key=("id",))
_LETTER: Final[Select[Any]] = select(*(dead_letters.c[name] for name in _FIELDS))
_values: Final = attrgetter(*_FIELDS)


def kept(body: bytes) -> tuple[bytes | None, int, str]:
    """`body`, `body_size` and `body_sha256` of the dead letter with that body."""
    return body if len(body) <= KEPT_BODY_BYTES else None, len(body), hashlib.sha256(body).hexdigest()


async def record(tx: Transaction, rows: Sequence[DeadLetter]) -> None:
    """Inserts the new dead letters. One that was redriven and is dead-lettered again is open again.

    The same dead-lettering reported twice changes nothing.
    """
    unique = {row.id: row for row in rows}
    known = {dead_letter.id: dead_letter for dead_letter in await lock(tx, list(unique))}
    new = [_stored(unique[id]) for id in sorted(unique) if id not in known]
    if new:
        await tx.dialect.insert_absent(tx, _INSERT, new)
    again = [unique[id] for id, before in known.items() if _died_again(before, unique[id])]
    await _reopen(tx, again)


async def page(
    connection: Connection, filters: DeadLetterFilter, limit: int, after: After | None = None
) -> list[DeadLetter]:
    """Up to `limit` dead letters that fit, the latest first; `after` is `died_at` and `id` of the last one seen."""
    table = dead_letters.c
    query = _LETTER.where(*_conditions(connection, filters))
    if after is not None:
        at, id = after
        query = query.where(table.died_at <= at, or_(table.died_at < at, table.id < id))
    return await _dead_letters(connection, query.order_by(table.died_at.desc(), table.id.desc()).limit(limit))


async def get(connection: Connection, id: str) -> DeadLetter | None:
    """One dead letter."""
    found = await _dead_letters(connection, _LETTER.where(dead_letters.c.id == id))
    return found[0] if found else None


async def of_instance(connection: Connection, saga: str, id: int, limit: int = 200) -> list[DeadLetter]:
    """The last dead letters that name an instance, in the order of `died_at`, also those that were redriven."""
    found = await page(connection, DeadLetterFilter(saga=saga, instance_id=id, open_only=False), limit)
    return found[::-1]


async def about(connection: Connection, saga: str, queues: Sequence[str], limit: int) -> list[tuple[int, str, str]]:
    """(instance, queue, id) of the last `limit` open dead letters of these queues with an instance of the saga."""
    table = dead_letters.c
    query = select(table.instance_id, table.queue, table.id).where(
        table.saga == saga, table.queue.in_(sorted(queues)), table.instance_id.is_not(None), table.redriven_at.is_(None)
    )
    found = await connection.execute(query.order_by(table.died_at.desc(), table.id.desc()).limit(limit))
    return [(row.instance_id, row.queue, row.id) for row in found]


async def sagas(connection: Connection) -> set[str]:
    """The sagas whose instances are named by open dead letters."""
    table = dead_letters.c
    query = select(table.saga).where(table.redriven_at.is_(None), table.instance_id.is_not(None)).distinct()
    return {saga for saga in (await connection.execute(query)).scalars() if saga is not None}


async def owners(connection: Connection, instances: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those of these (saga, instance) that open dead letters name."""
    if not instances:
        return set()
    table, sagas, ids = dead_letters.c, sorted({saga for saga, _ in instances}), sorted({id for _, id in instances})
    query = select(table.saga, table.instance_id).where(table.saga.in_(sagas), table.redriven_at.is_(None)).distinct()
    found = await connection.execute(query.where(connection.dialect.among(table.instance_id, ids)))
    return {(row.saga, row.instance_id) for row in found}.intersection(instances)


async def several(connection: Connection, ids: Sequence[str]) -> list[DeadLetter]:
    """The dead letters with these ids that exist."""
    if not ids:
        return []
    return await _dead_letters(connection, _LETTER.where(connection.dialect.among(dead_letters.c.id, sorted(set(ids)))))


async def lock(tx: Transaction, ids: Sequence[str]) -> list[DeadLetter]:
    """Locks and reads dead letters, by id; waits for others up to the limit on locks, then raises `Contention`."""
    if not ids:
        return []
    query = _LETTER.where(tx.dialect.among(dead_letters.c.id, sorted(set(ids))))
    return await _dead_letters(tx, query.order_by(dead_letters.c.id).with_for_update())


async def lock_one(tx: Transaction, id: str) -> DeadLetter | None:
    """`lock` for one dead letter."""
    found = await lock(tx, [id])
    return found[0] if found else None


async def edit(tx: Transaction, dead_letter: DeadLetter) -> None:
    """Puts the body of `dead_letter`, and the saga and instance that it names, in the place of what is stored under
    its id.

    Raises `Invalid` for a body over 64 KiB.
    """
    if dead_letter.body_size > KEPT_BODY_BYTES:
        raise Invalid(f"the body has {dead_letter.body_size} bytes; at most {KEPT_BODY_BYTES} are stored")
    stored = dict(zip(_FIELDS, _stored(dead_letter), strict=True))
    await _set(tx, [dead_letter.id], **{name: stored[name] for name in _EDITED})


async def redriven(tx: Transaction, ids: Sequence[str], now: datetime) -> None:
    """Notes that the dead letters were sent again: they are no longer open."""
    await _set(tx, ids, redriven_at=now, redriven=dead_letters.c.redriven + 1)


async def refused(tx: Transaction, among: tuple[str, str], times: int, error: str) -> bool:
    """Opens the dead letter that the broker refused when it was redriven for the `times`-th time; whether it did.

    `among` are the lowest and the highest id it can have. One that was dead-lettered again since, or redriven, stays
    as it is.
    """
    table = dead_letters.c
    that = and_(table.id.between(*among), table.redriven == times, table.redriven_at.is_not(None))
    change = {"redriven_at": None, "error": cleaned(error, _LENGTHS["error"])}
    return (await tx.execute(update(dead_letters).where(that).values(change))).rowcount > 0


async def drop(tx: Transaction, ids: Sequence[str]) -> int:
    """Deletes dead letters; how many there were."""
    if not ids:
        return 0
    which = tx.dialect.among(dead_letters.c.id, sorted(set(ids)))
    return (await tx.execute(delete(dead_letters).where(which))).rowcount


def _died_again(before: DeadLetter, now: DeadLetter) -> bool:
    """Whether `now` is another dead-lettering than `before`.

    The same one has the same time. Two within one second have it too, but only if it was redriven so soon.
    """
    if before.redriven_at is None:
        return False
    return now.died_at != before.died_at or before.redriven_at - before.recorded_at < _COARSE


async def _reopen(tx: Transaction, to_reopen: Sequence[DeadLetter]) -> None:
    if not to_reopen:
        return
    change = update(dead_letters).where(dead_letters.c.id == bindparam("which"))
    change = change.values({name: bindparam(f"new_{name}") for name in _DEATH})
    stored = [dict(zip(_FIELDS, _stored(dead_letter), strict=True)) for dead_letter in to_reopen]
    rows = [{"which": row["id"], **{f"new_{name}": row[name] for name in _DEATH}} for row in stored]
    await tx.execute(change, rows)


def _stored(dead_letter: DeadLetter) -> Row:
    """Text from outside is cut to what every database takes."""
    fields = dict(zip(_FIELDS, _values(dead_letter), strict=True))
    texts = {name: cleaned(fields[name], limit) for name, limit in _LENGTHS.items() if fields[name] is not None}
    body = dead_letter.body if dead_letter.body is not None and len(dead_letter.body) <= KEPT_BODY_BYTES else None
    return tuple((fields | texts | {"body": body, "headers": storable_json(dead_letter.headers)}).values())


def _conditions(connection: Connection, filters: DeadLetterFilter) -> list[ColumnElement[bool]]:
    table = dead_letters.c
    same = {table.queue: filters.queue, table.saga: filters.saga, table.instance_id: filters.instance_id}
    found: list[ColumnElement[bool]] = [column == value for column, value in same.items() if value is not None]
    if filters.open_only:
        found.append(table.redriven_at.is_(None))
    if filters.reason:
        found.append(and_(*begins(connection, table.reason, filters.reason)))
    return found


async def _dead_letters(connection: Connection, query: Select[Any]) -> list[DeadLetter]:
    return [DeadLetter(**row._mapping) for row in await connection.execute(query)]


async def _set(tx: Transaction, ids: Sequence[str], **values: Any) -> None:
    if ids:
        which = tx.dialect.among(dead_letters.c.id, sorted(set(ids)))
        await tx.execute(update(dead_letters).where(which).values(values))
