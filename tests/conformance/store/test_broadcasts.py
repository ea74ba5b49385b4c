"""Are broadcasts fired once, and their children counted right, alike on all databases, whoever ends them at once?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, select

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import (
    CANCELLED,
    DISPATCHED,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TIMED_OUT,
    AttemptEnding,
    AttemptStatus,
    JobRow,
    JobTransition,
)
from orchestrix.domain.leases import Fence
from orchestrix.domain.registry.routing import NoExecutors
from orchestrix.errors import Contention, NotFound, RefusedAction, StaleTermError
from orchestrix.jobs import step_results
from orchestrix.jobs.broadcasts.firing import FIRED_PER_ROUND, BroadcastFiring
from orchestrix.jobs.broadcasts.reconciler import BroadcastReconciler
from orchestrix.jobs.cancellation import JobCanceller, cancel_jobs
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.retry import JobRetrier
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import broadcasts, job_admission, job_queues, jobs, schedules
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.persistence.tables import outbox
from tests.conformance.store.test_jobs import inserted, now, pending, stored
from tests.integration.jobs.rows import leading
from tests.support import eventually

FENCE = Fence(1, "n")
BROADCAST = {"queue": None, "executor_group": "shop", "routing": "SHARDING_BROADCAST", "broadcast_end": "all"}
FAILURE = AttemptEnding(FAILED, {"type": "Broken", "message": "no paper"}, retryable=False, answered=True)


class Relay:
    """Counts how often it was notified."""

    notified = 0

    def notify(self) -> None:
        self.notified += 1


@dataclass
class Leader:
    """A leader's part in broadcasts, whose groups have these executors."""

    database: Database
    executors: Sequence[str] = ("http://a:1", "http://b:1", "http://c:1")
    missing: Exception | None = None
    fence: Fence = FENCE
    most: int = 100
    relay: Relay = field(default_factory=Relay)
    stops: list[StopRequest] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    poked: int = 0

    async def pick(self, tx: Transaction, job: JobRow) -> Sequence[str]:
        if self.missing is not None:
            raise self.missing
        return self.executors

    def poke(self) -> None:
        self.poked += 1

    async def fire(self) -> int:
        sent, changed = self.relay.notify, self.changed.extend
        firing = BroadcastFiring(
            self.database, self.fence, self.pick, open_limit=self.most, sent=sent, on_change=changed
        )
        return await firing.run_once()

    async def look(self) -> None:
        relay: Any = self.relay
        context = LeaderContext(self.database, self.fence, relay, self.stops.extend, self.poke)
        await BroadcastReconciler(context, self.changed.extend).run_once()

    async def broadcast(self, **more: Any) -> JobRow:
        [job] = await inserted(self.database, pending(self.database, **{**BROADCAST, **more}))
        return job

    async def fired(self, **more: Any) -> tuple[JobRow, list[JobRow]]:
        job = await self.broadcast(**more)
        assert await self.fire() == 1
        return await now(self.database, job), await self.children(job)

    async def children(self, job: JobRow) -> list[JobRow]:
        async with self.database.read() as connection:
            ids = await broadcasts.child_ids(connection, [job.id])
            found = await jobs.of_ids(connection, ids)
        return sorted(found, key=lambda one: one.shard_index or 0)

    async def begun(self, child: JobRow, state: str = RUNNING) -> JobRow:
        """A child that is at work, or was dispatched."""
        child = await stored(self.database, child, rules.dispatched(child, clock.uuid7(), self.database.now()))
        if state == DISPATCHED:
            return child
        status = AttemptStatus(child.id, str(child.history_id), "w", 1, RUNNING)
        moved = rules.reported(child, status, self.database.now(), 0.5)
        assert isinstance(moved, JobTransition)
        return await stored(self.database, child, moved)

    async def end(self, *children: JobRow, state: str = SUCCEEDED, alone: bool = False) -> None:
        """Ends children in one transaction, as their executors report it; `alone` without locking their broadcast."""
        await self.database.run(lambda tx: self.write_end(tx, [one.id for one in children], state, alone))

    async def write_end(self, tx: Transaction, ids: Sequence[str], state: str, alone: bool) -> None:
        locked = await (jobs.lock if alone else jobs.lock_with_parents)(tx, ids)
        moved = [_ended(locked[id], state, self.database) for id in ids]
        changed = [(locked[id].version, one.job) for id, one in zip(ids, moved, strict=True)]
        await step_results.store_with_results(tx, changed, [one.attempt for one in moved if one.attempt])


def _ended(child: JobRow, state: str, database: Database) -> JobTransition:
    if not child.live:
        child = rules.dispatched(child, clock.uuid7(), database.now()).job
    if state == FAILED:
        return rules.ended(child, FAILURE, database.now(), 0.5)
    status = AttemptStatus(child.id, str(child.history_id), "w", child.seq + 1, state, result=f"r{child.shard_index}")
    moved = rules.reported(child, status, database.now(), 0.5)
    assert isinstance(moved, JobTransition)
    return moved


@pytest.fixture
async def leader(database: Database) -> Leader:
    await database.ping()
    await leading(database, FENCE)
    return Leader(database)


async def test_it_is_fired_once_with_a_child_for_each_executor(leader: Leader) -> None:
    parent, children = await leader.fired(payload={"a": 1}, retries=2, timeout_ms=5000, deadline_ms=60_000)
    assert (parent.state, parent.channels, parent.owner, parent.attempt) == (RUNNING, 0, None, 0)
    assert [(one.shard_index, one.routing_address) for one in children] == [
        (0, "http://a:1"),
        (1, "http://b:1"),
        (2, "http://c:1"),
    ]
    assert (await now(leader.database, children[1])).payload == {"a": 1}
    assert await leader.fire() == 0
    assert len(await leader.children(parent)) == 3
    assert leader.changed == [parent.id]


async def test_a_former_leader_fires_nothing(leader: Leader) -> None:
    job = await leader.broadcast()
    with pytest.raises(StaleTermError):
        await replace(leader, fence=Fence(0, "old")).fire()
    assert await now(leader.database, job) == job
    assert await leader.children(job) == []


async def test_without_executors_it_fails_within_its_retries_and_says_it_once(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    leader.missing = NoExecutors("no executors available")
    job = await leader.broadcast(retries=2)
    for tries in (1, 2, 3):
        assert await leader.fire() == 1
        found = await now(leader.database, job)
        assert (found.tries, found.state, found.error["type"]) == (
            tries,
            FAILED if tries == 3 else PENDING,
            "NoExecutors",
        )
        if found.state == PENDING:
            assert await leader.fire() == 0, "it waits"
            due = replace(found, version=found.version + 1, wake_at=leader.database.now() - timedelta(seconds=1))
            await stored(leader.database, found, due)
    said = [one.getMessage() for one in caplog.records if "was not fired" in one.getMessage()]
    assert said == [f"broadcast {job.id} was not fired: no executors available"] * 2, "at first, and at its end"


async def test_a_group_that_is_gone_or_too_large_ends_it(leader: Leader) -> None:
    leader.missing = NotFound("no such group")
    job = await leader.broadcast(retries=2)
    await leader.fire()
    assert (await now(leader.database, job)).error["type"] == "NoGroup"
    leader.missing, leader.executors = None, [f"http://{n}:1" for n in range(201)]
    job = await leader.broadcast(retries=2)
    await leader.fire()
    found = await now(leader.database, job)
    assert (found.state, found.error["type"]) == (FAILED, "TooManyExecutors")
    assert await leader.children(job) == []
    leader.executors = leader.executors[:200]
    assert len((await leader.fired())[1]) == 200


async def test_a_broadcast_takes_no_slot_and_its_children_take_theirs(leader: Leader) -> None:
    job = await leader.broadcast()
    async with leader.database.begin() as tx:
        assert await job_admission.due(tx, 100, open_limit=8, silent=30.0) == []
    await leader.fire()
    async with leader.database.begin() as tx:
        found = await job_admission.due(tx, 100, open_limit=8, silent=30.0)
        assert await job_admission.open_jobs(tx) == {}
    assert {one.parent_id for one in found} == {job.id}
    assert len(found) == 2, "a quarter of the slots for each group"


async def test_a_group_with_many_children_waits_and_others_do_not(leader: Leader) -> None:
    leader.most, leader.executors = -995, leader.executors[:5]  # five children may be left
    for group in ("shop", "shop", "shop", "other"):
        await leader.broadcast(executor_group=group)
    assert await leader.fire() == 3
    async with leader.database.read() as connection:
        waiting = await jobs.page(connection, JobFilter(states=[PENDING], shards=False), 10)
    assert [one.executor_group for one in waiting] == ["shop"]
    assert await leader.fire() == 0
    async with leader.database.read() as connection:
        [first, *_] = await jobs.page(connection, JobFilter(states=[RUNNING], shards=False), 10)
    for one in await leader.children(first):
        if one.executor_group == "shop":
            await leader.end(one)


async def test_many_broadcasts_at_once_keep_no_child_waiting(leader: Leader) -> None:
    parents = [pending(leader.database, **{**BROADCAST, "id": clock.uuid7()}) for _ in range(50)]
    single = pending(leader.database, queue=None, executor_group="shop", routing="FIRST")
    await inserted(leader.database, *parents, single)
    sent: list[JobRow] = []
    for rounds in range(1, 100):
        fired = await leader.fire()
        async with leader.database.begin() as tx:
            due = await job_admission.due(tx, 100, open_limit=40, silent=30.0)
        assert due, "children, or that single job, are dispatched between broadcasts"
        await leader.end(*due)
        async with leader.database.begin() as tx:
            done = (await jobs.lock(tx, [job.id for job in due])).values()
            await jobs.store(tx, [(job.version, rules.closed(job, tx.now())) for job in done])  # they free their slots
        sent += due
        if rounds == 1:
            assert fired == FIRED_PER_ROUND
        if len(sent) == 151:
            break
    assert len({job.id for job in sent}) == 151
    async with leader.database.read() as connection:
        left = await jobs.page(connection, JobFilter(states=[PENDING, RUNNING]), 10)
    assert left == []


@pytest.mark.parametrize("end", ["all", "any"])
async def test_siblings_that_end_at_once_are_all_counted(leader: Leader, end: str) -> None:
    leader.executors = [f"http://{n:02}:1" for n in range(24)]
    parent, children = await leader.fired(broadcast_end=end)
    await asyncio.gather(*(leader.end(one) for one in children))
    found = await now(leader.database, parent)
    assert (found.state, found.children_left, found.children_failed) == (SUCCEEDED, 0, 0)
    if end == "all":
        assert found.result == [f"r{n}" for n in range(24)]
    else:
        assert sum(one is not None for one in found.result) == 1, "the first one, and it stays so"


async def test_batches_of_siblings_in_any_order_and_cancels_are_no_deadlock(leader: Leader) -> None:
    leader.executors = [f"http://{n:02}:1" for n in range(12)]
    first, many = await leader.fired()
    second, more = await leader.fired()
    canceller = JobCanceller(leader.database, leader.stops.extend, leader.changed.extend)

    async def persistent(work: Callable[[], Awaitable[object]]) -> object:
        """As the listeners do it: what another transaction is at is tried again."""
        while True:
            try:
                return await work()
            except Contention:
                await asyncio.sleep(0)

    batches = [[many[n], more[-1 - n]] if n % 2 else [more[-1 - n], many[n]] for n in range(11)]
    ends = [persistent(partial(leader.end, *batch, alone=n % 3 == 0)) for n, batch in enumerate(batches)]
    alone = persistent(lambda: leader.end(many[11], state=FAILED, alone=True))
    cancel = persistent(lambda: canceller.cancel(more[0].id, "not this one", "ada"))
    looks = [persistent(leader.look) for _ in range(3)]
    async with asyncio.timeout(60):
        await asyncio.gather(*ends, alone, cancel, *looks)
    one, two = await now(leader.database, first), await now(leader.database, second)
    assert (one.state, one.children_left, one.children_failed, one.error["indexes"]) == (FAILED, 0, 1, [11])
    assert (two.state, two.children_left, two.children_failed, two.error["indexes"]) == (FAILED, 0, 1, [0])


async def test_a_busy_broadcast_is_not_waited_for_with_locked_children(served: Database) -> None:
    await leading(served, FENCE)
    leader = Leader(served)
    parent, children = await leader.fired()
    async with leader.database.begin() as tx:
        await jobs.lock(tx, [parent.id])
        async with leader.database.begin() as other:
            locked = list((await jobs.lock(other, [children[0].id])).values())
            assert await broadcasts.with_free_parents(other, locked) == []
        with pytest.raises(Contention):
            async with leader.database.begin() as other:
                await leader.write_end(other, [children[0].id], SUCCEEDED, alone=True)
    await leader.end(children[0], alone=True)
    assert (await now(leader.database, parent)).children_left == 2


async def test_the_first_success_of_any_cancels_the_others(leader: Leader) -> None:
    parent, (_, sent, busy) = await leader.fired(broadcast_end="any")
    sent, busy = await leader.begun(sent, DISPATCHED), await leader.begun(busy)
    leader.executors = [*leader.executors, "http://d:1"]
    other, others = await leader.fired(broadcast_end="any")
    await leader.end(others[3])
    await leader.look()
    assert [one.state for one in await leader.children(other)] == [CANCELLED, CANCELLED, CANCELLED, SUCCEEDED]
    done = await now(leader.database, other)
    assert (done.state, done.result, done.wake_at) == (SUCCEEDED, [None, None, None, "r3"], None)
    assert (done.children_left, done.children_failed) == (0, 3)
    await leader.end(busy)
    assert (await now(leader.database, parent)).state == SUCCEEDED
    await leader.look()
    assert [one.state for one in await leader.children(parent)] == [CANCELLED, CANCELLED, SUCCEEDED]
    assert [one.history_id for one in leader.stops] == [sent.history_id]


async def test_a_cancelled_broadcast_ends_with_its_last_child(leader: Leader) -> None:
    parent, (_, _, busy) = await leader.fired(deadline_ms=60_000)
    busy = await leader.begun(busy)
    canceller = JobCanceller(leader.database, leader.stops.extend, leader.changed.extend, notify_leader=leader.poke)
    asked = await canceller.cancel(parent.id, "not wanted", "ada")
    assert (asked.state, leader.poked) == (RUNNING, 1)
    await leader.look()
    children = await leader.children(parent)
    assert [one.state for one in children] == [CANCELLED, CANCELLED, RUNNING]
    assert children[2].cancel_reason == "not wanted"
    assert [one.history_id for one in leader.stops] == [busy.history_id]
    found = await now(leader.database, parent)
    assert (found.state, found.children_left, found.wake_at) == (RUNNING, 1, found.started_at + timedelta(minutes=1))  # type: ignore[operator]
    await leader.end(children[2], state=CANCELLED)
    found = await now(leader.database, parent)
    assert (found.state, found.children_left, found.wake_at, found.cancel_reason) == (CANCELLED, 0, None, "not wanted")


async def test_it_is_cancelled_with_others_in_one_transaction(leader: Leader) -> None:
    (one, _), (two, _) = await leader.fired(), await leader.fired()
    async with leader.database.begin() as tx:
        assert await cancel_jobs(tx, {one.id: "a", two.id: "b"}) == []
    await leader.look()
    assert [(await now(leader.database, job)).state for job in (one, two)] == [CANCELLED, CANCELLED]


async def test_its_deadline_reaches_all(leader: Leader) -> None:
    parent, (_, good, busy) = await leader.fired(deadline_ms=1, saga="app", instance_id=1, step="x")
    busy = await leader.begun(busy)
    await leader.end(good)

    async def over() -> bool:
        await leader.look()
        return (await now(leader.database, parent)).ended

    await eventually(over, deadline=10.0)
    found = await now(leader.database, parent)
    assert (found.state, found.error["type"], found.error["indexes"]) == (TIMED_OUT, "Timeout", [0, 2])
    assert (found.result, found.children_left, found.wake_at) == ([None, "r1", None], 1, None)
    children = await leader.children(parent)
    assert [one.state for one in children] == [CANCELLED, SUCCEEDED, RUNNING]
    assert children[2].cancel_reason == f"job {parent.id} has timed out"
    assert [one.history_id for one in leader.stops] == [busy.history_id]
    await leader.end(children[2], state=CANCELLED)
    assert (await now(leader.database, parent)).state == TIMED_OUT


async def test_a_count_that_is_missing_is_made_by_the_leader(leader: Leader) -> None:
    parent, children = await leader.fired()
    for one in children:
        await stored(leader.database, one, _ended(one, SUCCEEDED, leader.database))  # as a node that counts nothing
    assert (await now(leader.database, parent)).children_left == 3
    await leader.look()
    found = await now(leader.database, parent)
    assert (found.state, found.children_left, found.result) == (SUCCEEDED, 0, ["r0", "r1", "r2"])
    await leader.look()
    assert await now(leader.database, parent) == found


async def test_a_retry_runs_again_what_has_failed_with_its_index(leader: Leader) -> None:
    parent, children = await leader.fired()
    await leader.end(children[0])
    await leader.end(children[1], children[2], state=FAILED)
    retrier = JobRetrier(leader.database, leader.changed.extend, leader.poke)
    with pytest.raises(RefusedAction, match="shard of a broadcast"):
        await retrier.retry(children[1].id, "mended", "ada")
    assert (await retrier.retry(parent.id, "mended", "ada")).state == RUNNING
    again = await leader.children(parent)
    assert [(one.state, one.shard_index) for one in again] == [(SUCCEEDED, 0), (PENDING, 1), (PENDING, 2)]
    await leader.end(*again[1:])
    found = await now(leader.database, parent)
    assert (found.state, found.result, found.children_failed) == (SUCCEEDED, ["r0", "r1", "r2"], 0)


async def test_lists_and_schedules_see_the_broadcast_alone(leader: Leader) -> None:
    schedule = clock.uuid7()
    parent, children = await leader.fired(schedule_id=schedule, due_at=leader.database.now())
    await leader.end(children[0], state=FAILED)
    async with leader.database.read() as connection:
        assert [one.id for one in await jobs.page(connection, JobFilter(shards=False), 10)] == [parent.id]
        found = await jobs.page(connection, JobFilter(parent_id=parent.id), 10)
        assert {one.id for one in found} == {one.id for one in children}
        busy = (await schedules.busy(connection, [schedule]))[schedule]
        assert (busy.running, busy.ready, busy.queued) == (1, 0, 0)
        assert await schedules.unfinished(connection, [schedule]) == [parent.id]
        assert await job_queues.failed(connection, 60.0, 10) == []
        assert await jobs.occupied(connection) == 1, "that of the child"


@pytest.mark.parametrize("end", ["all", "any"])
async def test_the_saga_of_a_step_gets_one_result_with_all(leader: Leader, end: str) -> None:
    step = {"saga": "app", "instance_id": 1, "step": "x", "payload": {"event": "evt.printed"}}
    _, children = await leader.fired(broadcast_end=end, **step)
    bodies = []
    for one in children:
        await leader.end(one)
        async with leader.database.begin() as tx:  # as the relay: what was sent is there no more
            bodies += [json.loads(body) for body in (await tx.execute(select(outbox.c.body))).scalars()]
            await tx.execute(delete(outbox))
    await leader.look()
    expected = ["r0", "r1", "r2"] if end == "all" else ["r0", None, None]
    assert [(body["type"], body["data"]) for body in bodies] == [("evt.printed", {"results": expected})]


async def test_a_failed_step_is_unsure_for_others_may_have_succeeded(leader: Leader) -> None:
    step = {"saga": "app", "instance_id": 1, "step": "x", "payload": {"event": "evt.printed"}}
    _, children = await leader.fired(**step)
    await leader.end(*children[:2])
    await leader.end(children[2], state=FAILED)
    async with leader.database.read() as connection:
        [body] = [json.loads(body) for body in (await connection.execute(select(outbox.c.body))).scalars()]
    assert (body["type"], body["error"]["type"], body["error"]["unsure"]) == (
        "evt.stepFailed",
        "ChildrenFailed",
        True,
    )
