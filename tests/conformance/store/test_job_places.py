"""Does each queue of jobs have its share of the places, on each database?"""

from __future__ import annotations

from typing import Any

from orchestrix.domain import jobs as rules
from orchestrix.domain.dispatch_capacity import OpenJobs
from orchestrix.domain.jobs import FAILED, JobRow
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_admission
from tests.conformance.store.test_jobs import SECOND, dispatched, inserted, pending, running, stored

SILENT = 30.0


async def serving(database: Database, *queues: str) -> None:
    """A worker of these queues beats."""
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w", queues, 0)]))


async def due(database: Database, limit: int, most_open: int) -> list[JobRow]:
    async with database.begin() as tx:
        return await job_admission.due(tx, limit, most_open, SILENT)


def ids(found: list[JobRow]) -> list[str]:
    return [job.id for job in found]


async def waiting(database: Database, queue: str, count: int, **more: Any) -> list[str]:
    """The ids of jobs that are due, the one that waits longest first."""
    at = database.now()
    new = [pending(database, queue=queue, wake_at=at - n * SECOND, **more) for n in range(count, 0, -1)]
    await inserted(database, *new)
    return ids(new)


async def test_those_that_are_due_come_in_order_and_within_bounds(database: Database) -> None:
    await serving(database, "q")
    new = await waiting(database, "q", 5, payload={"n": 1})
    await inserted(database, pending(database, wake_at=database.now() + 60 * SECOND))
    again = await dispatched(database, retries=1, wake_at=database.now() - 60 * SECOND)
    error = {"type": "x"}
    moved = rules.ended(again, rules.AttemptEnding(FAILED, error, answered=True), database.now() - 5 * SECOND, 0.0)
    again = await stored(database, again, moved)
    assert ids(await due(database, 10, 100)) == [again.id, *new]
    assert ids(await due(database, 3, 100)) == [again.id, *new[:2]]
    assert ids(await due(database, 10, 12)) == [again.id, *new[:3]], "a quarter of the places"
    assert ids(await due(database, 10, 1)) == [again.id], "one is held already"
    assert (await due(database, 1, 100))[0].id == again.id
    assert (await due(database, 10, 100))[1].payload == {"n": 1}


async def test_a_queue_that_nobody_serves_takes_no_places(database: Database) -> None:
    await serving(database, "alive")
    dead = await waiting(database, "dead", 5)
    alive = await waiting(database, "alive", 1)
    assert ids(await due(database, 10, 5)) == [dead[0], alive[0]], "one of four"
    for _ in range(9):
        await dispatched(database, queue="dead")
    assert ids(await due(database, 10, 5)) == alive
    async with database.read() as connection:
        assert await job_admission.slots_taken(connection, 5, SILENT) == 0
        assert await job_admission.open_jobs(connection) == {"dead": OpenJobs(9, 0)}


async def test_what_is_begun_holds_a_place_and_so_does_what_is_served(database: Database) -> None:
    await serving(database, "alive")
    await running(database, queue="dead")
    await dispatched(database, queue="alive")
    async with database.read() as connection:
        assert await job_admission.slots_taken(connection, 8, SILENT) == 2
        assert await job_admission.waiting(connection) == []
    [next, _] = await waiting(database, "alive", 2)
    assert ids(await due(database, 10, 8)) == [next]
    assert ids(await due(database, 10, 2)) == []


async def test_queues_take_turns_however_many_jobs_one_has(database: Database) -> None:
    await serving(database, "a", "b", "c")
    many, few, last = [await waiting(database, queue, count) for queue, count in (("a", 20), ("b", 2), ("c", 1))]
    async with database.read() as connection:
        assert await job_admission.waiting(connection) == ["a", "b", "c"]
    found = ids(await due(database, 6, 1000))
    assert sorted(found) == sorted([*many[:3], *few, *last])


async def test_two_leaders_do_not_send_the_same_job(served: Database, served_peer: Database) -> None:
    new = [pending(served) for _ in range(4)]
    await inserted(served, *new)
    async with served.begin() as one:
        first = await job_admission.due(one, 2, 100, SILENT)
        async with served_peer.begin() as other:
            second = await job_admission.due(other, 10, 100, SILENT)
    assert sorted(job.id for job in first + second) == [job.id for job in new]


async def test_a_thousand_queues_that_nobody_serves_hide_none_that_is_served(database: Database) -> None:
    """Clients name queues as they like; the last one by name has its turn with the first ones."""
    await inserted(database, *(pending(database, queue=f"q{n:04}") for n in range(1100)))
    await serving(database, "z")
    [last] = await waiting(database, "z", 1)
    async with database.read() as connection:
        assert len(await job_admission.waiting(connection)) == 1101
    for _ in range(3):
        assert last in ids(await due(database, 100, 100))
