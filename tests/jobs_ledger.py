"""Was every word of every job applied once and in order, by one owner at a time and under one leader per term?

Read from the database, and from the copies that triggers there make of each change (`watch`).

J1 a job has ended well, by one attempt
J2 its lines are there, each once, in order
J3 its numbers fit its lines
J4 its changes follow each other: versions and epochs rise, an epoch has one owner, the number of a status never falls
T1 terms rise by one, each with one holder, and the lease never falls back to an old one
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.persistence.tables import handovers, job_attempts, job_logs, jobs, leases, nodes
from tests import tally

_CHANGES: Final = "job, version, history, seq, state, owner, epoch"
_NEW: Final = "NEW.id, NEW.version, NEW.history_id, NEW.seq, NEW.state, NEW.owner, NEW.owner_epoch"
_TABLES: Final = (
    "CREATE TABLE seen_changes (n {key}, job VARCHAR(36), version BIGINT, history VARCHAR(36), seq BIGINT,"
    " state VARCHAR(20), owner VARCHAR(100), epoch BIGINT)",
    "CREATE TABLE seen_terms (n {key}, term BIGINT, holder VARCHAR(100))",
)
_FUNCTION: Final = "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {insert}; RETURN NULL; END $$"
_TRIGGERS: Final = (
    ("jobs", "UPDATE", "NEW.version <> OLD.version", f"INSERT INTO seen_changes ({_CHANGES}) VALUES ({_NEW})"),
    ("leases", "UPDATE", "TRUE", "INSERT INTO seen_terms (term, holder) VALUES (NEW.term, NEW.holder)"),
)


def _postgresql() -> Iterable[str]:
    yield from (table.format(key="BIGSERIAL PRIMARY KEY") for table in _TABLES)
    for table, event, when, insert in _TRIGGERS:
        yield _FUNCTION.format(name=f"see_{table}", insert=insert)
        body = f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION see_{table}()"
        yield f"CREATE TRIGGER see_{table} AFTER {event} ON {table} {body}"


def _mysql() -> Iterable[str]:
    yield from (table.format(key="BIGINT AUTO_INCREMENT PRIMARY KEY") for table in _TABLES)
    for table, event, when, insert in _TRIGGERS:
        body = f"BEGIN IF {when} THEN {insert}; END IF; END"
        yield f"CREATE TRIGGER see_{table} AFTER {event} ON {table} FOR EACH ROW {body}"


async def watch(url: str) -> None:
    """Lets the database at `url`, whose schema is there, note every change of a job and of the lease."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            statements = _postgresql() if url.startswith("postgresql") else _mysql()
            for statement in statements:
                await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log."""

    seq: int
    message: str
    worker: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """What a job became by one commit."""

    version: int
    history: str | None
    seq: int
    state: str
    owner: str | None
    epoch: int


@dataclass(slots=True, kw_only=True)
class Told:
    """A job with all that is known of it; `tries` are (history id, state, worker, last line) of its attempts."""

    id: str
    state: str
    owner: str | None
    channels: int
    history: str | None
    attempt: int
    tries: int
    seq: int
    last_log_seq: int | None
    worker: str | None
    progress: Any
    result: Any
    error: Any
    attempts: list[tuple[str, str, str | None, int | None]] = field(default_factory=list)
    lines: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Term:
    """A row of `handovers`."""

    term: int
    former: str | None
    holder: str
    reason: str
    gained_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsLedger:
    """What a database holds. `nodes` are the states by id, `lease` is (term, holder), or None before the first term."""

    jobs: dict[str, Told]
    nodes: dict[str, str]
    lease: tuple[int, str] | None
    terms: Sequence[Term]
    seen_terms: Sequence[tuple[int, str]]

    def check(self, submitted: Iterable[str]) -> None:
        """All of the above, at the end, for jobs that talk as `chatter` does and whose workers all live."""
        tally.saw("jobs", len(self.jobs))
        assert set(submitted) == set(self.jobs), "J1: other jobs than those that were put down"
        for job in self.jobs.values():
            _check_end(job)
            _check_lines(job)
            _check_changes(job)
        self.check_terms()

    def check_terms(self) -> None:
        """T1, at any time."""
        for before, after in itertools.pairwise(self.terms):
            assert after.term == before.term + 1, f"T1: term {after.term} came after {before.term}"
            assert after.former == before.holder, f"T1: {after} took over from somebody else than {before}"
            assert after.gained_at >= before.gained_at, f"T1: {after} began before {before}"
        holders = {one.term: one.holder for one in self.terms}
        for term, holder in self.seen_terms:
            assert holders.get(term, holder) == holder, f"T1: term {term} is {holders[term]}'s, and was {holder}'s"
        written = [term for term, _ in self.seen_terms]
        assert written == sorted(written), "T1: the lease fell back to an old term"


def _check_end(job: Told) -> None:
    assert job.state == "SUCCEEDED", f"J1: job {job.id} is {job.state}: {job.error}, {job.attempts}"
    assert (job.attempt, job.tries) == (1, 1), f"J1: job {job.id} took {job.attempt} attempts: {job.attempts}"
    assert job.attempts == [(job.history, "SUCCEEDED", job.worker, job.last_log_seq)], f"J1, J3: {job.attempts}"


def _check_lines(job: Told) -> None:
    assert set(job.lines) <= {job.history}, f"J2: job {job.id} has lines of strangers: {set(job.lines)}"
    lines = job.lines.get(str(job.history), [])
    said = [line.message for line in lines]
    total = job.result["lines"]
    wanted = [f"line {n}" for n in range(1, total + 1)]
    assert said == wanted, f"J2: job {job.id} said {total} lines, there are {len(said)}: {_strange(said, wanted)}"
    assert {line.worker for line in lines} <= {job.worker}, f"J2: job {job.id} has lines of another worker"
    last = lines[-1].seq if lines else 0
    assert job.last_log_seq == last, f"J3: the last line of job {job.id} is {last}, not {job.last_log_seq}"
    assert job.seq > last, f"J3: the last word of job {job.id} has number {job.seq}, its last line {last}"
    assert job.progress == {"lines": total}, f"J3: job {job.id} is at {job.progress} of {total} lines"


def _strange(said: Sequence[str], wanted: Sequence[str]) -> str:
    return f"missing {sorted(set(wanted) - set(said))[:3]}, more {sorted(set(said) - set(wanted))[:3]}"


def _check_changes(job: Told) -> None:
    for before, after in itertools.pairwise(job.changes):
        what = f"J4: job {job.id}: {after} came after {before}"
        assert after.version > before.version, what
        assert after.epoch in (before.epoch, before.epoch + 1), what
        if after.epoch == before.epoch:
            assert after.owner in (before.owner, None), what
        if after.history == before.history:
            assert after.seq >= before.seq, what
            assert before.state != "SUCCEEDED" or after.state == "SUCCEEDED", what


async def read(url: str) -> JobsLedger:
    """What the database at `url` holds now, through a connection of its own. Raises the driver's errors."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return await _read(connection)
    finally:
        await engine.dispose()


async def _read(connection: AsyncConnection) -> JobsLedger:
    told = await _told(connection)
    table = handovers.c
    columns = (table.term, table.from_holder, table.to_holder, table.reason, table.gained_at)
    terms = [Term(*row) for row in await connection.execute(select(*columns).order_by(table.term))]
    seen = await connection.execute(text("SELECT term, holder FROM seen_terms ORDER BY n"))
    states = await connection.execute(select(nodes.c.id, nodes.c.state))
    lease = (await connection.execute(select(leases.c.term, leases.c.holder))).first()
    return JobsLedger(
        jobs=told,
        nodes={row.id: row.state for row in states},
        lease=(lease.term, lease.holder) if lease is not None else None,
        terms=terms,
        seen_terms=[(row[0], row[1]) for row in seen],
    )


async def _told(connection: AsyncConnection) -> dict[str, Told]:
    found = {row.id: _row(row) for row in await connection.execute(select(jobs))}
    for row in await connection.execute(select(job_attempts).order_by(job_attempts.c.attempt)):
        if row.job_id in found:  # what was put down between two of these questions is none of this look's
            found[row.job_id].attempts.append((row.history_id, row.state, row.worker_id, row.last_log_seq))
    for row in await connection.execute(select(job_logs).order_by(job_logs.c.history_id, job_logs.c.seq)):
        if row.job_id in found:
            found[row.job_id].lines[row.history_id].append(Line(row.seq, row.message, row.worker_id))
    changes = text(f"SELECT {_CHANGES} FROM seen_changes ORDER BY n")
    for job, version, history, seq, state, owner, epoch in await connection.execute(changes):
        if job in found:
            found[job].changes.append(Change(version, history, seq, state, owner, epoch))
    return found


def _row(row: Any) -> Told:
    return Told(
        id=row.id,
        state=row.state,
        owner=row.owner,
        channels=row.channels,
        history=row.history_id,
        attempt=row.attempt,
        tries=row.tries,
        seq=row.seq,
        last_log_seq=row.last_log_seq,
        worker=row.worker_id,
        progress=row.progress,
        result=row.result,
        error=row.error,
    )
