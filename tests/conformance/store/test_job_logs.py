"""Are the lines of jobs kept once and in order, and is it known when the last one is there?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrix.domain.jobs import JobAttempt, JobRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_logs, jobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from tests.conformance.store.test_jobs import dispatched, inserted, pending, running, stored

AT = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
FIRST, SECOND = "ffffffff-0000-7000-8000-000000000000", "00000000-0000-7000-8000-000000000000"
"""The ids of two attempts: the clock of whoever made the second one was behind."""


async def test_lines_are_kept_once_and_in_order(database: Database, peer: Database) -> None:
    job = await running(database)
    lines = [
        JobLogLine(history, seq, job.id, "w", "info", f"{history} {seq}", AT) for history in "ab" for seq in (2, 10, 11)
    ]
    lines = [replace(one, attempt=1 + (one.history_id == "b")) for one in lines]
    async with database.begin() as tx:
        await job_logs.insert(tx, reversed(lines[:4]))
    async with peer.begin() as tx:
        await job_logs.insert(tx, [replace(lines[3], message="another"), *lines])
        other = replace(lines[0], job_id="other", history_id="c")
        await job_logs.insert(tx, [other])
    async with database.read() as connection:
        assert await job_logs.page(connection, job.id, 100) == lines
        assert await job_logs.page(connection, job.id, 2, (1, 10)) == lines[2:4]
        assert await job_logs.stored_lines(connection, [("a", 2), ("a", 3), ("b", 11)]) == {("a", 2), ("b", 11)}


async def test_lines_of_a_later_attempt_come_later_whatever_its_id(database: Database) -> None:
    [job] = await inserted(database, pending(database))
    tried = [JobAttempt(name, job.id, n, "w", "DISPATCHED", AT) for n, name in ((1, FIRST), (2, SECOND))]
    lines = [
        JobLogLine(one.history_id, seq, job.id, "w", "info", "x", AT, one.attempt) for one in tried for seq in (3, 12)
    ]
    async with database.begin() as tx:
        await jobs.store(tx, [], tried)
        await job_logs.insert(tx, lines)
    async with database.read() as connection:
        assert await job_logs.page(connection, job.id, 10) == lines
        after = await job_logs.place(connection, job.id, FIRST, 12)
        assert after == (1, 12)
        assert await job_logs.page(connection, job.id, 10, after) == lines[2:]
        assert await job_logs.place(connection, job.id, "unknown", 12) is None
        assert await job_logs.place(connection, "another", FIRST, 12) is None


async def test_lines_of_strangers_are_cut_to_what_fits(database: Database) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    async with database.begin() as tx:
        await job_logs.insert(tx, [JobLogLine("a", 1, "j", "w" * 300, "l" * 30, "😀" * 20_000 + "\0", at)])
    async with database.read() as connection:
        [line] = await job_logs.page(connection, "j", 10)
    assert (len(line.message), len(line.level), len(str(line.worker_id))) == (job_logs.LOG_MESSAGE_MAX_CHARS, 20, 200)


async def ended(database: Database, **more: Any) -> JobRow:
    """A job whose one attempt has said that its last line is number 7."""
    job = await running(database)
    done = {"state": "SUCCEEDED", "finished_at": database.now(), "last_log_seq": 7, **more}
    return await stored(database, job, replace(job, version=job.version + 1, **done))


@pytest.mark.parametrize(
    ("more", "is_complete"),
    [
        ({}, False),
        ({"last_log_seq": 0}, True),
        ({"last_log_seq": None}, False),
        ({"last_log_seq": None, "channels": 0}, True),
        ({"channels": 0}, True),
        ({"log_cut": 1}, True),
        ({"log_cut": 1, "last_log_seq": None}, False),
    ],
)
async def test_a_log_is_complete_once_its_last_line_is_there_or_given_up(
    database: Database, more: dict[str, Any], is_complete: bool
) -> None:
    job, unfinished = await ended(database, **more), await dispatched(database)
    async with database.read() as connection:
        assert await job_logs.complete(connection, [job, unfinished]) == ({job.id} if is_complete else set())
    async with database.begin() as tx:
        await job_logs.insert(tx, [JobLogLine(str(job.history_id), 7, job.id, "w", "info", "the last one", AT)])
    if more.get("last_log_seq", 7) == 7:
        async with database.read() as connection:
            assert await job_logs.complete(connection, [job, unfinished]) == {job.id}
