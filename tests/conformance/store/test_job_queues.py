"""Which queues of workers does each database know, and which lines of a job are the last ones?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import update

from app import clock
from app.domain import jobs as rules
from app.domain.job_waits import Crew
from app.domain.jobs import FAILED, Attempt
from app.jobs import outgoing
from app.persistence import job_logs, job_queues, jobs, nodes, outbox
from app.persistence.engine import Database
from app.persistence.nodes import WorkerBeat
from app.persistence.tables import workers
from tests.conformance.store.test_jobs import dispatched, inserted, pending, running, stored


async def heard(database: Database, *beats: WorkerBeat) -> None:
    await database.run(lambda tx: nodes.hear_workers(tx, beats))


async def test_who_serves_which_queue(database: Database) -> None:
    await heard(database, WorkerBeat("w-1", ["a", "b"], 0), WorkerBeat("w-2", ["b"], 3))
    async with database.begin() as tx:
        await tx.execute(update(workers).where(workers.c.id == "w-2").values(beat_at=tx.now() - timedelta(seconds=20)))
    async with database.read() as connection:
        crews = await job_queues.crews(connection, ["a", "b", "c"], 30.0)
        assert crews == {"a": Crew(1, 0), "b": Crew(1, 1), "c": Crew()}
        assert await job_queues.crews(connection, ["b"], 8.0) == {"b": Crew(1, 0)}, "one is gone for long"
        assert await job_queues.crews(connection, [], 30.0) == {}


async def test_the_queues_that_workers_or_unfinished_jobs_name(database: Database) -> None:
    await heard(database, WorkerBeat("w-1", ["a", "b"], 0))
    await dispatched(database, queue="b")
    await dispatched(database, queue="c")
    await running(database, queue="d")
    await inserted(database, pending(database, queue="e"))
    ended = await running(database, queue="f")
    await stored(database, ended, rules.ended(ended, rules.OVERDUE, database.now(), 0.5))
    async with database.read() as connection:
        assert await job_queues.named(connection) == {"a", "b", "c", "d"}
        assert await job_queues.unbegun(connection) == {"b": 1, "c": 1}


async def test_orders_that_the_broker_has_had_for_a_while(database: Database) -> None:
    sent = await dispatched(database, queue="a")
    await dispatched(database, queue="other")
    waits = await dispatched(database, queue="a")
    row = outgoing.dispatch(waits, database.now())
    await database.run(lambda tx: outbox.insert(tx, [row], claimed_by=None, lease_s=0.0))
    async with database.read() as connection:
        assert await job_queues.unbegun_in(connection, ["a"], -1.0, 10) == [sent.id]
        assert await job_queues.unbegun_in(connection, ["a"], 60.0, 10) == []
        assert await job_queues.unbegun_in(connection, ["a", "other"], -1.0, 1) == [sent.id]


async def test_the_last_line_that_was_told_of_is_that_of_the_latest_attempt_that_had_any(database: Database) -> None:
    [job, other] = await inserted(database, pending(database), pending(database))
    at, names = database.now(), [clock.uuid7() for _ in range(3)]
    told = [
        Attempt(name, job.id, n, "w", FAILED, at, last_log_seq=seq)
        for n, (name, seq) in enumerate(zip(names, (9, 4, 0), strict=True))
    ]
    async with database.begin() as tx:
        out = [replace(one, state=rules.DISPATCHED) for one in told]
        await jobs.store(tx, [], out)
        await jobs.store(tx, [], told)
    async with database.read() as connection:
        assert await job_logs.last_told(connection, [job.id, other.id]) == {job.id: (names[1], 4)}
        assert await job_logs.last_told(connection, []) == {}
