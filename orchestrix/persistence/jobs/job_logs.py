"""Job logs: the lines that the attempts of a job have logged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from sqlalchemy import and_, or_, select

from orchestrix.domain.jobs import JobRow
from orchestrix.persistence.dialects import BulkInsert
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.storable_text import cleaned
from orchestrix.persistence.tables import job_attempts, job_logs

LOG_MESSAGE_MAX_CHARS: Final = 16_000
"""Code points of a message that are kept."""


@dataclass(frozen=True, slots=True)
class JobLogLine:
    """One line; `seq` counts the logs and statuses of an attempt together. `attempt` is that of `history_id`."""

    history_id: str
    seq: int
    job_id: str
    worker_id: str | None
    level: str
    message: str
    at: datetime
    attempt: int = 1


After = tuple[int, int]
"""Attempt and number of the last line seen."""


@dataclass(frozen=True, slots=True)
class LastLogLine:
    """The last line that a worker has announced."""

    attempt: int
    history_id: str
    seq: int

    @property
    def after(self) -> After:
        """Its position."""
        return self.attempt, self.seq


_FIELDS: Final = tuple(field.name for field in fields(JobLogLine))
_INSERT: Final = BulkInsert(job_logs, _FIELDS, key=("history_id", "seq"))
_values: Final = attrgetter(*_FIELDS)


async def insert(tx: Transaction, rows: Iterable[JobLogLine]) -> None:
    """Inserts the lines that are not there; the others stay as they are. What is too long is cut."""
    unique = {(row.history_id, row.seq): _stored(row) for row in rows}
    if unique:
        await tx.dialect.insert_absent(tx, _INSERT, [_values(unique[key]) for key in sorted(unique)])


async def page(connection: Connection, job_id: str, limit: int, after: After | None = None) -> list[JobLogLine]:
    """Up to `limit` lines of a job behind `after`, attempt by attempt and then by their numbers.

    Never by the ids of the attempts: those come from the clocks of several nodes.
    """
    table = job_logs.c
    query = select(*(table[name] for name in _FIELDS)).where(table.job_id == job_id)
    if after is not None:
        attempt, seq = after
        behind = or_(table.attempt > attempt, and_(table.attempt == attempt, table.seq > seq))
        query = query.where(table.attempt >= attempt, behind)
    found = await connection.execute(query.order_by(table.attempt, table.seq).limit(limit))
    return [JobLogLine(*row) for row in found]


async def place(connection: Connection, job_id: str, history_id: str, seq: int) -> After | None:
    """The position of that line of an attempt among the lines of its job; None where the job has no such attempt."""
    table = job_attempts.c
    query = select(table.attempt).where(table.history_id == history_id, table.job_id == job_id)
    attempt = (await connection.execute(query)).scalar_one_or_none()
    return None if attempt is None else (attempt, seq)


async def last_announced(connection: Connection, job_ids: Iterable[str]) -> dict[str, LastLogLine]:
    """By job the last line that its workers have announced."""
    wanted = sorted(set(job_ids))
    if not wanted:
        return {}
    table = job_attempts.c
    query = select(table.job_id, table.attempt, table.history_id, table.last_log_seq)
    query = query.where(connection.dialect.among(table.job_id, wanted), table.last_log_seq > 0).order_by(table.attempt)
    return {row[0]: LastLogLine(*row[1:]) for row in await connection.execute(query)}


async def complete(connection: Connection, found: Iterable[JobRow]) -> set[str]:
    """Those of the jobs that have ended, and whose last line is stored, which may be an earlier attempt's.

    Where no worker has announced it, the log is complete when the job's queues are deleted. Of a log that was cut
    nothing more will come.
    """
    ended = [job for job in found if job.ended]
    done = {job.id for job in ended if not job.channels or (job.log_cut and job.last_log_seq is not None)}
    open = [job for job in ended if job.id not in done and job.last_log_seq is not None]
    last = {job.id: (str(job.history_id), job.last_log_seq) for job in open if job.last_log_seq}
    announced = await last_announced(connection, [job.id for job in open if not job.last_log_seq and job.attempt > 1])
    last |= {job_id: (one.history_id, one.seq) for job_id, one in announced.items()}
    there = await stored_lines(connection, list(last.values()))
    return done | {job.id for job in open if job.id not in last or last[job.id] in there}


async def stored_lines(connection: Connection, lines: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Which of the lines, by history id and number, are stored."""
    if not lines:
        return set()
    table = job_logs.c
    histories, numbers = (sorted(set(part)) for part in zip(*lines, strict=True))
    among = connection.dialect.among
    query = select(table.history_id, table.seq).where(among(table.history_id, histories), among(table.seq, numbers))
    return {(row[0], row[1]) for row in await connection.execute(query)} & set(lines)


def _stored(row: JobLogLine) -> JobLogLine:
    worker = None if row.worker_id is None else cleaned(row.worker_id, 200)
    return replace(
        row, worker_id=worker, level=cleaned(row.level, 20), message=cleaned(row.message, LOG_MESSAGE_MAX_CHARS)
    )
