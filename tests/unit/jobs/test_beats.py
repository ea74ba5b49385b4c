"""Is a worker listed that was heard of and has left within the same moment?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

import pytest

from orchestrix.broker.port import Broker, Delivery
from orchestrix.domain.leases import Fence
from orchestrix.errors import Contention
from orchestrix.jobs import worker_heartbeats
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.worker_heartbeats import DeferredHeartbeats, WorkerHeartbeatListener
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from tests.servers import templates

BEATEN = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)


class Post:
    """A broker, and its consumer, with one batch."""

    def __init__(self, batch: list[Delivery]) -> None:
        self.batch = batch
        self.done = asyncio.Event()

    async def consume(self, *args: object, **options: object) -> Post:
        return self

    async def receive(self, *args: object, **options: object) -> list[Delivery]:
        if self.done.is_set():
            await asyncio.Event().wait()
        return self.batch

    async def acknowledge(self, deliveries: object) -> None:
        self.done.set()

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    yield database
    await database.close()


async def heard(database: Database, words: list[str], *, leads: bool) -> list[str]:
    """The workers that are listed once `w-1`, which was listed, has said this at once."""
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", [], 0, BEATEN)]))
    fields = {"workerId": "w-1", "queues": [], "jobs": []}
    said = [word.partition(" at ") for word in words]
    told = [{**fields, "state": state, **({"timestamp": f"2026-01-31T{at}Z"} if at else {})} for state, _, at in said]
    bodies = [json.dumps(one).encode() for one in told]
    post = Post([cast(Delivery, Said(body)) for body in bodies])
    beats = WorkerHeartbeatListener(database, cast(Broker, post), "node-1")
    office = LeaderContext(database, Fence(1, "node-1"), cast(OutboxRelay, None), lambda stops: None, lambda: None)
    if leads:
        beats.begin_term(office)
    await beats.start()
    await asyncio.wait_for(post.done.wait(), 10)
    await beats.stop()
    async with database.read() as connection:
        return [one.id for one in await nodes.listed_workers(connection, 10, 60.0)]


class Said:
    """A message with that body."""

    def __init__(self, body: bytes) -> None:
        self.body = body


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other"])
@pytest.mark.parametrize(
    ("words", "listed"),
    [(["LEFT", "ALIVE"], ["w-1"]), (["ALIVE", "LEFT"], []), (["LEFT", "ALIVE", "LEFT"], []), (["ALIVE"], ["w-1"])],
    ids=" ".join,
)
async def test_the_last_word_of_a_worker_counts(
    database: Database, words: list[str], listed: list[str], leads: bool
) -> None:
    assert await heard(database, words, leads=leads) == listed


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other"])
@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["LEFT at 12:00:04"], ["w-1"]),
        (["LEFT at 12:00:05"], []),
        (["ALIVE at 12:00:20", "LEFT at 12:00:19"], ["w-1"]),
        (["LEFT at yesterday"], []),
    ],
    ids=" ".join,
)
async def test_a_word_of_an_earlier_life_that_comes_late_undoes_nothing(
    database: Database, words: list[str], listed: list[str], leads: bool
) -> None:
    assert await heard(database, words, leads=leads) == listed


@pytest.mark.parametrize("fails", ["record_worker_heartbeats", "by_histories"])
async def test_what_is_held_is_owed_where_the_database_does_not_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async def away(*args: object) -> None:
        raise Contention("somebody has the row")

    monkeypatch.setattr(nodes if fails == "record_worker_heartbeats" else jobs, fails, away)
    late: list[str] = []
    monkeypatch.setattr(DeferredHeartbeats, "defer", lambda self, names, at: late.extend(names))
    held = [{"jobId": "j-1", "historyId": "h-1"}, {"jobId": "j-2", "historyId": "h-2"}]
    body = json.dumps({"workerId": "w-1", "queues": ["q"], "jobs": held, "state": "ALIVE"}).encode()
    post = Post([cast(Delivery, Said(body))])
    beats = WorkerHeartbeatListener(database, cast(Broker, post), "node-1")
    beats.begin_term(
        LeaderContext(database, Fence(1, "node-1"), cast(OutboxRelay, None), lambda stops: None, lambda: None)
    )
    await beats.start()
    await asyncio.wait_for(post.done.wait(), 20)
    await beats.stop()
    assert sorted(late) == ["h-1", "h-2"]


async def test_who_becomes_leader_lists_those_of_whom_it_has_heard_shortly_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {"here": "ALIVE", "left": "ALIVE", "long-gone": "ALIVE"}
    beats = [{"workerId": name, "queues": [], "jobs": [], "state": state, "commandQueues": ["cmd.a"]}
             for name, state in states.items()]  # fmt: skip
    beats.append({**beats[1], "state": "LEFT"})
    post = Post([cast(Delivery, Said(json.dumps(one).encode())) for one in beats])
    listener = WorkerHeartbeatListener(database, cast(Broker, post), "node-1")
    await listener.start()
    await asyncio.wait_for(post.done.wait(), 10)
    async with database.read() as connection:
        assert await nodes.listed_workers(connection, 10, 60.0) == [], "this node does not lead"
    at, beat = listener._recent["long-gone"]
    listener._recent["long-gone"] = at - worker_heartbeats.RECENT_HEARTBEAT_S, beat
    at, beat = listener._recent["here"]
    listener._recent["here"] = at - 5.0, beat
    duty = listener.duty(
        LeaderContext(database, Fence(1, "node-1"), cast(OutboxRelay, None), lambda stops: None, lambda: None)
    )
    await duty.start()
    async with database.read() as connection:
        (worker,) = await nodes.listed_workers(connection, 10, 60.0)
        ago = (connection.now() - worker.beat_at).total_seconds()
    assert (worker.id, worker.command_queues) == ("here", ["cmd.a"])
    assert ago >= 5.0, "it counts from when it was heard"
    await duty.stop()
    await listener.stop()
