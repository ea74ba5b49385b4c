"""Are jobs for groups of executors kept, and told from those of queues, alike on all databases?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from sqlalchemy import update

from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.dispatch_capacity import OpenJobs, target_of
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.nodes import FEATURE_LEVEL, NodeState
from orchestrix.persistence.cluster import clone_rows, installation, nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_admission, job_predicates, job_queues, jobs
from orchestrix.persistence.tables import nodes as node_table
from tests.conformance.store.test_jobs import dispatched, inserted, now, pending, running, stored

SHOP, REPORTS = target_of(None, "shop"), target_of(None, "reports")


def routed(group: str = "shop", **more: Any) -> dict[str, Any]:
    return {"queue": None, "executor_group": group, "routing": "CONSISTENT_HASH", **more}


async def test_a_job_for_a_group_comes_back_as_it_went_in(database: Database) -> None:
    shard: dict[str, Any] = {"shard_index": 3, "shard_total": 7, "parent_id": "p", "broadcast_end": "any"}
    full = pending(database, **routed("läden", routing_key="k-é", routing_address="http://a:1", **shard))
    [found] = await inserted(database, full)
    assert found == full
    called = replace(found, address="http://a:1", called_at=database.now(), children_left=2, children_failed=1)
    assert await now(database, await stored(database, found, replace(called, version=2))) == replace(called, version=2)


async def test_its_attempt_forgets_where_the_one_before_was_called(database: Database) -> None:
    job = await dispatched(database, **routed(retries=1))
    job = await stored(database, job, replace(job, address="http://a:1", called_at=database.now(), version=3))
    lost = rules.ended(job, rules.WORKER_SILENT, database.now(), 0.5)
    assert lost.attempt is not None
    job = await stored(database, job, lost)
    async with database.read() as connection:
        [attempt] = await jobs.attempts(connection, job.id)
    assert (attempt.address, attempt.called_at) == ("http://a:1", job.called_at)
    again = await stored(database, job, rules.dispatched(job, "h-2", database.now()))
    assert (again.address, again.called_at) == (None, None)


async def test_groups_take_their_turn_beside_queues(database: Database) -> None:
    many: list[JobRow] = [pending(database, **routed()) for _ in range(8)]
    few = [pending(database, **routed("reports")), pending(database, queue="shop")]
    await inserted(database, *many, *few)
    async with database.begin() as tx:
        assert await job_admission.waiting(tx) == ["shop", REPORTS, SHOP]
        found = await job_admission.due(tx, 100, open_limit=8, silent=30.0)
    # A quarter of the open jobs for each target, and a queue of the name of a group is another target.
    assert sorted(target_of(job.queue, job.executor_group) for job in found) == [REPORTS, SHOP, SHOP, "shop"]


async def test_open_jobs_of_a_group_count_as_served(database: Database) -> None:
    for _ in range(3):
        await dispatched(database, **routed())
    await dispatched(database, queue="q")
    async with database.read() as connection:
        assert await job_admission.open_jobs(connection) == {SHOP: OpenJobs(3, 0), "q": OpenJobs(1, 0)}
        assert await job_admission.slots_taken(connection, 10, silent=30.0) == 3


async def test_no_rule_about_workers_applies_to_it(database: Database) -> None:
    job = await dispatched(database, **routed())
    work = await running(database, **routed())
    async with database.read() as connection:
        assert await job_queues.not_started_counts(connection) == {}
        assert await job_queues.named(connection) == set()
        context = await job_queues.diagnosis_context(connection, [job, work], 30.0)
        assert not (await job_predicates.jobs_to_rescue(connection, 0.0, 15.0, None)).silent
    assert set(context) == {job.id, work.id}
    assert context[job.id].workers.known == 0
    assert dispatch_queue("q") not in (str(job.queue), str(work.queue))


async def test_the_least_feature_level_is_that_of_a_node_that_is_alive(database: Database) -> None:
    async with database.begin() as tx:
        assert await nodes.least_feature_level(tx) is None
        assert await nodes.join(tx, "new-1", "new", [], feature_level=FEATURE_LEVEL)
        assert await nodes.least_feature_level(tx) == FEATURE_LEVEL
        assert await nodes.join(tx, "old-1", "old", [])
        assert await nodes.least_feature_level(tx) == 0
        await tx.execute(update(node_table).where(node_table.c.id == "old-1").values(state=NodeState.DEAD.value))
        assert await nodes.least_feature_level(tx) == FEATURE_LEVEL


async def test_all_nodes_have_one_report_key_and_a_clone_another(database: Database) -> None:
    await database.ping()
    first, second = await asyncio.gather(installation.report_key(database), installation.report_key(database))
    assert first == second
    assert len(first) == 32
    assert await installation.report_key(database) == first
    async with database.begin() as tx:
        await clone_rows.finish(tx, "another")
    assert await installation.report_key(database) != first
