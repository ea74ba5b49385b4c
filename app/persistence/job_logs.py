"""What have the attempts of a job logged?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Final

from sqlalchemy import and_, or_, select

from .dialects import BulkInsert
from .engine import Connection, Transaction
from .tables import job_attempts, job_logs
from .words import cleaned

LONGEST: Final = 16_000
"""Code points of a message that are kept."""


@dataclass(frozen=True, slots=True)
class Log:
    """One line; `seq` counts the logs and statuses of an attempt together."""

    history_id: str
    seq: int
    job_id: str
    worker_id: str | None
    level: str
    message: str
    at: datetime


After = tuple[str, int]
"""History id and number of the last line seen."""

_FIELDS: Final = tuple(field.name for field in fields(Log))
_INSERT: Final = BulkInsert(job_logs, _FIELDS, key=("history_id", "seq"))
_values: Final = attrgetter(*_FIELDS)


async def insert(tx: Transaction, rows: Iterable[Log]) -> None:
    """Inserts the lines that are not there; the others stay as they are. What is too long is cut."""
    unique = {(row.history_id, row.seq): _stored(row) for row in rows}
    if unique:
        await tx.dialect.insert_absent(tx, _INSERT, [_values(unique[key]) for key in sorted(unique)])


async def page(connection: Connection, job_id: str, limit: int, after: After | None = None) -> list[Log]:
    """Up to `limit` lines of a job behind `after`, attempt by attempt and then by their numbers."""
    table = job_logs.c
    query = select(*(table[name] for name in _FIELDS)).where(table.job_id == job_id)
    if after is not None:
        history_id, seq = after
        behind = or_(table.history_id > history_id, and_(table.history_id == history_id, table.seq > seq))
        query = query.where(table.history_id >= history_id, behind)
    found = await connection.execute(query.order_by(table.history_id, table.seq).limit(limit))
    return [Log(*row) for row in found]


async def last_told(connection: Connection, job_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
    """By job the last line of all that its workers have said to be there, by history id and number."""
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    table = job_attempts.c
    query = select(table.job_id, table.history_id, table.last_log_seq)
    query = query.where(connection.dialect.among(table.job_id, wanted), table.last_log_seq > 0).order_by(table.attempt)
    return {row[0]: (row[1], row[2]) for row in await connection.execute(query)}


async def present(connection: Connection, lines: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Which of the lines, by history id and number, are there."""
    if not lines:
        return set()
    table = job_logs.c
    histories, numbers = (sorted(set(part)) for part in zip(*lines, strict=True))
    among = connection.dialect.among
    query = select(table.history_id, table.seq).where(among(table.history_id, histories), among(table.seq, numbers))
    return {(row[0], row[1]) for row in await connection.execute(query)} & set(lines)


def _stored(row: Log) -> Log:
    worker = None if row.worker_id is None else cleaned(row.worker_id, 200)
    return Log(
        row.history_id, row.seq, row.job_id, worker, cleaned(row.level, 20), cleaned(row.message, LONGEST), row.at
    )
