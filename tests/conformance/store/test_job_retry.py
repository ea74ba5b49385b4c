"""Is a job that has ended retried once, on all databases, however many ask for it?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import FAILED, PENDING, JobRow
from orchestrix.errors import ConflictError, NotFound
from orchestrix.jobs.cancellation import JobCanceller
from orchestrix.jobs.retry import JobRetrier
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter, AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_admission, jobs
from tests.conformance.store.test_jobs import now, running, stored

LIMIT = 100


def retrier(database: Database, woken: list[str] | None = None) -> JobRetrier:
    """What retries, and notes in `woken` whom it wakes."""
    seen = [] if woken is None else woken
    return JobRetrier(database, seen.extend, lambda: seen.append("leader"))


async def failed(database: Database, **more: Any) -> JobRow:
    """A job whose only attempt has failed, and whose queues are gone."""
    job = await running(database, **more)
    error = {"type": "Broken", "message": "é"}
    status = rules.AttemptStatus(job.id, str(job.history_id), "w", 2, FAILED, error=error, last_log_seq=0)
    found = rules.reported(job, status, database.now(), 0.5)
    assert isinstance(found, rules.JobTransition)
    ended = await stored(database, job, found)
    return await stored(database, ended, rules.closed(ended, database.now()))


async def audited(database: Database) -> list[tuple[str, str, Any]]:
    """Who has retried what and why."""
    async with database.read() as connection:
        rows = await audit.page(connection, AuditFilter(verb="retry-job"), 100)
    return [(row.actor, row.reason, row.detail) for _, row in rows]


async def due(database: Database) -> list[JobRow]:
    """What the leader would dispatch."""
    async with database.begin() as tx:
        return await job_admission.due(tx, 10, LIMIT, 30.0)


async def test_a_failed_job_is_due_again_and_keeps_its_attempts(database: Database) -> None:
    job, woken = await failed(database, payload={"month": 3}), list[str]()
    await retrier(database, woken).retry(job.id, "mended", "ada")
    after = await now(database, job)
    assert (after.state, after.version, after.error, after.finished_at) == (PENDING, job.version + 1, None, None)
    assert woken == [job.id, "leader"]
    [again] = await due(database)
    assert again.payload == {"month": 3}
    await stored(database, again, rules.dispatched(again, clock.uuid7(), database.now()))
    async with database.read() as connection:
        tried = await jobs.attempts(connection, job.id)
    assert [(one.attempt, one.state) for one in tried] == [(1, FAILED), (2, "DISPATCHED")]
    assert (tried[0].history_id, tried[0].error) == (job.history_id, job.error)
    assert await audited(database) == [("ada", "mended", {"job": job.id, "state": FAILED, "attempt": 1})]


async def test_many_that_ask_at_once_make_one_attempt(database: Database, peer: Database) -> None:
    job = await failed(database)
    asked = [retrier(one).retry(job.id, "mended", "ada") for one in (database, peer) * 4]
    answers = await asyncio.gather(*asked)
    assert {(one.state, one.version) for one in answers} == {(PENDING, job.version + 1)}
    assert len(await audited(database)) == 1
    assert [one.id for one in await due(database)] == [job.id]


async def test_one_that_asks_while_another_retries_waits_for_it(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, insert, go = await failed(database), audit.insert, asyncio.Event()

    async def slow(tx: Transaction, rows: Sequence[AuditRow]) -> None:
        await go.wait()
        await insert(tx, rows)

    monkeypatch.setattr(audit, "insert", slow)
    first, second = [asyncio.create_task(retrier(one).retry(job.id, "mended", "ada")) for one in (database, peer)]
    done, _ = await asyncio.wait({first, second}, timeout=0.3)
    assert not done
    go.set()
    assert await first == await second
    assert len(await audited(database)) == 1


async def test_one_that_asks_while_the_attempt_is_sent_is_refused(database: Database, peer: Database) -> None:
    job = await failed(database)
    await retrier(database).retry(job.id, "mended", "ada")
    async with database.begin() as tx:
        [again] = await job_admission.due(tx, 10, LIMIT, 30.0)
        late = asyncio.create_task(retrier(peer).retry(job.id, "once more", "bob"))
        done, _ = await asyncio.wait({late}, timeout=0.3)
        assert not done, "it waits until it is known whether the attempt is sent"
        sent = rules.dispatched(again, clock.uuid7(), database.now())
        await jobs.store(tx, [(again.version, sent.job)], [sent.attempt] if sent.attempt else [])
    with pytest.raises(ConflictError, match="DISPATCHED"):
        await late
    assert (await now(database, job)).attempt == 2
    assert len(await audited(database)) == 1


async def test_a_retry_that_is_not_committed_leaves_neither_an_attempt_nor_a_row(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, woken = await failed(database), list[str]()

    async def refuse(tx: Transaction, rows: object) -> None:
        raise ConflictError("no more audit")

    monkeypatch.setattr(audit, "insert", refuse)
    with pytest.raises(ConflictError):
        await retrier(database, woken).retry(job.id, "mended", "ada")
    assert await now(database, job) == job
    assert woken == []


async def test_a_cancel_of_before_is_forgotten(database: Database) -> None:
    job = await running(database, retries=5)
    canceller = JobCanceller(database, lambda stops: None, lambda ids: None)
    asked = await canceller.cancel(job.id, "not wanted", "ada")
    found = rules.ended(asked, rules.WORKER_SILENT, database.now(), 0.5)
    await stored(database, asked, found)
    again = await retrier(database).retry(job.id, "wanted", "ada")
    assert (again.state, again.cancel_reason) == (PENDING, None)
    sent = await stored(database, again, rules.dispatched(again, clock.uuid7(), database.now()))
    lost = rules.ended(sent, rules.WORKER_SILENT, database.now(), 0.5).job
    assert lost.state == PENDING, "it is tried again, as nobody wants its end any more"


async def test_a_retry_of_no_job(database: Database) -> None:
    with pytest.raises(NotFound):
        await retrier(database).retry(clock.uuid7(), "x", "ada")
