"""Which queues of workers does each database know, and which lines of a job are the last ones?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import QueueWorkers, SilenceLimits
from orchestrix.domain.jobs import FAILED, HANDING_OFF, JobAttempt
from orchestrix.domain.leases import Fence
from orchestrix.jobs import outbox_rows
from orchestrix.persistence import outbox
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import UNTOLD, WorkerFacts, WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_heartbeats, job_logs, job_queues, jobs
from orchestrix.persistence.jobs.job_logs import LastLogLine
from orchestrix.persistence.tables import workers
from tests.conformance.store.test_jobs import dispatched, inserted, owned, pending, running, stored
from tests.integration.jobs.rows import joined, leading


async def heard(database: Database, *beats: WorkerHeartbeatRow) -> None:
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, beats))


async def test_who_serves_which_queue(database: Database) -> None:
    await heard(database, WorkerHeartbeatRow("w-1", ["a", "b"], 0), WorkerHeartbeatRow("w-2", ["b"], 3))
    async with database.begin() as tx:
        await tx.execute(update(workers).where(workers.c.id == "w-2").values(beat_at=tx.now() - timedelta(seconds=20)))
    async with database.read() as connection:
        crews = await job_queues.queue_workers(connection, ["a", "b", "c"], 30.0)
        assert _counts(crews) == {"a": (1, 0), "b": (1, 1), "c": (0, 0)}
        assert 0 <= crews["b"].ago < 10
        known = await job_queues.queue_workers(connection, ["b"], 8.0)
        assert _counts(known) == {"b": (1, 0)}, "one is gone for long"
        assert await job_queues.queue_workers(connection, [], 30.0) == {}


def _counts(crews: dict[str, QueueWorkers]) -> dict[str, tuple[int, int]]:
    return {queue: (crew.known, crew.silent) for queue, crew in crews.items()}


async def test_what_is_known_around_jobs(database: Database) -> None:
    await joined(database, "alive")
    await heard(database, WorkerHeartbeatRow("w-1", ["a"], 0))
    read = await owned(database, "alive", await running(database, queue="a"))
    left = await owned(database, "gone", await running(database, queue="b"))
    async with database.read() as connection:
        assert await job_queues.diagnosis_context(connection, [], SilenceLimits(30.0, 90.0)) == {}
        found = await job_queues.diagnosis_context(connection, [read, left], SilenceLimits(30.0, 90.0))
        assert {one.led_since for one in found.values()} == {None}
    await leading(database, Fence(1, "alive"))
    async with database.read() as connection:
        found = await job_queues.diagnosis_context(connection, [read, left], SilenceLimits(30.0, 90.0))
    assert (found[read.id].is_read, found[left.id].is_read) == (True, False)
    assert (found[read.id].workers.known, found[left.id].workers) == (1, QueueWorkers())
    assert all(one.led_since is not None and one.limit == 30.0 for one in found.values())


async def test_workers_that_end_are_told_by_the_jobs_that_they_are_at(database: Database) -> None:
    for queue, count in (("a", 2), ("b", 1)):
        for _ in range(count):
            await running(database, queue=queue)
    await heard(
        database,
        WorkerHeartbeatRow("w", [], 3),
        WorkerHeartbeatRow("idle", [], 0),
        WorkerHeartbeatRow("other", ["b"], 0),
    )
    async with database.read() as connection:
        crews = await job_queues.queue_workers(connection, ["a", "b", "c"], 30.0)
    assert {queue: crew.stopping for queue, crew in crews.items()} == {"a": 1, "b": 1, "c": 0}
    assert {queue: crew.known for queue, crew in crews.items()} == {"a": 0, "b": 1, "c": 0}
    async with database.begin() as tx:
        await tx.execute(update(workers).where(workers.c.id == "w").values(beat_at=tx.now() - timedelta(seconds=20)))
    async with database.read() as connection:
        assert (await job_queues.queue_workers(connection, ["a"], 30.0))["a"].stopping == 0, (
            "nobody knows whether it lives"
        )


async def test_the_queues_that_workers_or_unfinished_jobs_name(database: Database) -> None:
    await heard(database, WorkerHeartbeatRow("w-1", ["a", "b"], 0))
    await dispatched(database, queue="b")
    await dispatched(database, queue="c")
    await running(database, queue="d")
    await inserted(database, pending(database, queue="e"))
    ended = await running(database, queue="f")
    await stored(database, ended, rules.ended(ended, rules.ATTEMPT_TIMED_OUT, database.now(), 0.5))
    async with database.read() as connection:
        assert await job_queues.named(connection) == {"a", "b", "c", "d"}
        assert await job_queues.not_started_counts(connection) == {"b": 1, "c": 1}


async def test_orders_that_the_broker_has_had_for_a_while(database: Database) -> None:
    await joined(database, "alive")
    sent = await owned(database, "alive", await dispatched(database, queue="a"))
    await owned(database, "alive", await dispatched(database, queue="other"))
    await owned(database, "gone", await dispatched(database, queue="a"))  # what its worker says nobody reads
    await dispatched(database, queue="a")
    moving = await owned(database, "alive", await dispatched(database, queue="a"))
    await stored(database, moving, rules.offered(moving, "Shutdown", HANDING_OFF, database.now()))
    waits = await owned(database, "alive", await dispatched(database, queue="a"))
    row = outbox_rows.dispatch(waits, database.now())
    await database.run(lambda tx: outbox.insert(tx, [row], claimed_by=None, lease_s=0.0))
    assert await _stranded(database, ["a"], -1.0) == [sent.id]
    assert await _stranded(database, ["a"], 60.0) == []
    assert len(await _stranded(database, ["a", "other"], -1.0)) == 2
    assert len(await _stranded(database, ["a", "other"], -1.0, limit=1)) == 1
    long_ago = database.now() - timedelta(seconds=61)
    sent = await stored(database, sent, replace(sent, version=sent.version + 1, dispatched_at=long_ago))
    assert await _stranded(database, ["a"], 60.0) == [], "its owner has only begun to read"
    await stored(database, sent, replace(sent, version=sent.version + 1, taken_at=long_ago))
    assert await _stranded(database, ["a"], 60.0) == [sent.id]


async def _stranded(database: Database, queues: list[str], seconds: float, limit: int = 10) -> list[str]:
    async with database.begin() as tx:
        return await job_queues.lost_dispatches(tx, queues, {}, seconds, 15.0, limit)


async def test_orders_that_later_ones_of_their_queue_have_overtaken(database: Database) -> None:
    await joined(database, "alive")
    at = database.now()
    ago = {n: at - timedelta(seconds=n) for n in (40, 50, 90, 100)}
    early, late = [await owned(database, "alive", await dispatched(database, queue="a")) for _ in range(2)]
    early = await stored(database, early, replace(early, version=9, dispatched_at=ago[100], taken_at=ago[100]))
    await stored(database, late, replace(late, version=9, dispatched_at=ago[40], taken_at=ago[40]))
    busy, done = await running(database, queue="a"), await running(database, queue="b")
    await stored(database, busy, replace(busy, version=9, dispatched_at=ago[90], started_at=ago[50]))
    over: dict[str, Any] = {"state": FAILED, "dispatched_at": ago[90], "started_at": ago[50], "finished_at": ago[40]}
    await stored(database, done, replace(done, version=9, **over))
    await running(database, queue="c")
    async with database.read() as connection:
        found = await job_queues.last_dispatched_at(connection, ["a", "b", "c"], 30.0)
        assert found == {"a": ago[90], "b": ago[90]}
        assert await job_queues.last_dispatched_at(connection, [], 30.0) == {}
        assert await job_queues.last_dispatched_at(connection, ["a"], 60.0) == {}
    async with database.begin() as tx:
        assert await job_queues.lost_dispatches(tx, [], found, 30.0, 15.0, 10) == [early.id]
        assert await job_queues.lost_dispatches(tx, [], {"a": ago[100]}, 30.0, 15.0, 10) == []
    await database.run(lambda tx: job_heartbeats.record_heartbeats(tx, [str(early.history_id)], tx.now()))
    async with database.begin() as tx:
        assert await job_queues.lost_dispatches(tx, ["a"], found, 30.0, 15.0, 10) == [late.id], "somebody beats for it"


async def test_what_somebody_changes_is_not_stranded(served: Database, served_peer: Database) -> None:
    await joined(served, "alive")
    job = await owned(served, "alive", await dispatched(served, queue="a"))
    assert await _stranded(served_peer, ["a"], -1.0) == [job.id]
    async with served.begin() as tx:
        await jobs.lock(tx, [job.id])
        assert await _stranded(served_peer, ["a"], -1.0) == []


async def test_the_last_line_that_was_told_of_is_that_of_the_latest_attempt_that_had_any(database: Database) -> None:
    [job, other] = await inserted(database, pending(database), pending(database))
    at, names = database.now(), [clock.uuid7() for _ in range(3)]
    told = [
        JobAttempt(name, job.id, n, "w", FAILED, at, last_log_seq=seq)
        for n, (name, seq) in enumerate(zip(names, (9, 4, 0), strict=True))
    ]
    async with database.begin() as tx:
        out = [replace(one, state=rules.DISPATCHED) for one in told]
        await jobs.store(tx, [], out)
        await jobs.store(tx, [], told)
    async with database.read() as connection:
        assert await job_logs.last_announced(connection, [job.id, other.id]) == {job.id: LastLogLine(1, names[1], 4)}
        assert await job_logs.last_announced(connection, []) == {}


async def test_a_worker_of_commands_alone_is_none_that_stops_serving_jobs(database: Database) -> None:
    job = await running(database, queue="a")
    commands = WorkerFacts(command_queues=["cmd.a"], commands=1)
    for facts, stopping in ((commands, 0), (UNTOLD, 1)):
        await heard(database, WorkerHeartbeatRow(job.worker_id or "", [], 0, facts=facts))
        async with database.read() as connection:
            assert (await job_queues.queue_workers(connection, ["a"], 30.0))["a"].stopping == stopping
