"""Are jobs for groups of executors kept, and told from those of queues, alike on all databases?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.dispatch_capacity import OpenJobs, target_of
from orchestrix.domain.job_diagnosis import GroupExecutors, SilenceLimits
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.nodes import FEATURE_LEVEL
from orchestrix.domain.registry.executor_calls import called
from orchestrix.errors import ConflictError
from orchestrix.persistence.cluster import clone_rows, installation, nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import (
    executor_jobs,
    group_executors,
    job_admission,
    job_predicates,
    job_queues,
    job_targets,
    jobs,
)
from orchestrix.persistence.jobs.executor_jobs import OwnedAttempt
from orchestrix.persistence.jobs.job_targets import MixedVersions, UnknownGroup
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from tests.conformance.store.plans import accesses, watched
from tests.conformance.store.test_jobs import dispatched, inserted, now, owned, pending, running, stored
from tests.integration.jobs.rows import joined

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


async def test_attempts_in_flight_are_those_that_were_given_away_and_have_not_ended(database: Database) -> None:
    async def given(address: str | None, group: str = "shop", begun: bool = False, retries: int = 0) -> JobRow:
        job = await (running if begun else dispatched)(database, **routed(group, retries=retries))
        called_at = None if address is None else database.now()
        return await stored(database, job, replace(job, address=address, called_at=called_at, version=job.version + 1))

    for address, begun in (("http://a:1", True), ("http://a:1", False), ("http://b:1", False)):
        await given(address, begun=begun)
    await given("http://a:1", "reports")
    await given(None)
    for retries, state in ((0, "FAILED"), (1, "PENDING")):
        ended = await given("http://b:1", begun=True, retries=retries)
        ended = await stored(database, ended, rules.ended(ended, rules.WORKER_SILENT, database.now(), 0.5))
        assert (ended.state, ended.address) == (state, "http://b:1")
    async with database.read() as connection:
        assert await executor_jobs.in_flight(connection, "shop") == {
            ("shop", "http://a:1"): 2,
            ("shop", "http://b:1"): 1,
        }
        every = await executor_jobs.in_flight(connection)
    assert every == {("shop", "http://a:1"): 2, ("shop", "http://b:1"): 1, ("reports", "http://a:1"): 1}


async def test_open_jobs_of_a_group_count_as_served(database: Database) -> None:
    for _ in range(3):
        await dispatched(database, **routed())
    await dispatched(database, queue="q")
    async with database.read() as connection:
        assert await job_admission.open_jobs(connection) == {SHOP: OpenJobs(3, 0), "q": OpenJobs(1, 0)}
        assert await job_admission.slots_taken(connection, 10, silent=30.0) == 3


async def test_no_rule_about_workers_applies_to_it(database: Database) -> None:
    job = await dispatched(database, **routed())
    await joined(database, "a")
    work = await owned(database, "a", await running(database, **routed()))
    async with database.read() as connection:
        assert await job_queues.not_started_counts(connection) == {}
        assert await job_queues.named(connection) == set()
        context = await job_queues.diagnosis_context(connection, [job, work], SilenceLimits(30.0, 90.0))
        assert not (await job_predicates.jobs_to_rescue(connection, 0.0, 15.0, None)).silent
    await owned(database, "a", await running(database, queue="q"))
    async with database.read() as connection:
        assert (await job_predicates.jobs_to_rescue(connection, 0.0, 15.0, None)).silent
    assert set(context) == {job.id, work.id}
    assert context[job.id].workers.known == 0
    assert (context[job.id].limit, context[job.id].executors) == (90.0, GroupExecutors(None))
    assert dispatch_queue("q") not in (str(job.queue), str(work.queue))


async def test_what_is_known_of_the_executors_of_groups(database: Database) -> None:
    async with database.begin() as tx:
        await groups.set_addresses(tx, "shop", ["http://a:1", "http://b:1"], tx.now())
        await groups.set_addresses(tx, "Shop", [], tx.now())
    for address in ("http://a:1", "http://a:1", "http://gone:1", None):
        job = await dispatched(database, **routed(retries=1))
        await stored(database, job, replace(job, address=address, version=job.version + 1))
    ended = await running(database, **routed())
    await stored(database, ended, rules.ended(ended, rules.WORKER_SILENT, database.now(), 0.5))
    await dispatched(database, **routed("other"))
    with watched(database) as sent:
        async with database.read() as connection:
            found = await group_executors.of_groups(connection, ["shop", "Shop", "none"])
            assert await group_executors.of_groups(connection, []) == {}
    assert len(sent) == 1
    assert found == {
        "shop": GroupExecutors(("http://a:1", "http://b:1"), {"http://a:1": 2, "http://gone:1": 1}),
        "Shop": GroupExecutors((), {}),
        "none": GroupExecutors(None),
    }


async def test_attempts_that_no_executor_has_begun_for_a_while_are_counted(database: Database) -> None:
    ago = database.now() - timedelta(seconds=30)
    for more in (routed(), routed(), routed("reports"), {"queue": "q"}):
        job = await dispatched(database, **more)
        await stored(database, job, replace(job, dispatched_at=ago, version=job.version + 1))
    await dispatched(database, **routed("new"))
    await running(database, **routed("begun"))
    async with database.read() as connection:
        assert await group_executors.not_started_counts(connection) == {"shop": 2, "reports": 1}


async def test_nodes_below_a_feature_level_are_named(database: Database) -> None:
    async with database.begin() as tx:
        assert await nodes.join(tx, "new-1", "new", [], feature_level=FEATURE_LEVEL)
        for name in ("old", "gone", "leaving"):
            assert await nodes.join(tx, f"{name}-1", name, [], version="0.9.0")
        await nodes.leave(tx, "gone-1")
        await nodes.mark_draining(tx, "leaving-1")
        found = await nodes.below_feature_level(tx, FEATURE_LEVEL)
        assert [(node.name, node.version) for node in found] == [("leaving", "0.9.0"), ("old", "0.9.0")]
        assert await nodes.below_feature_level(tx, 0) == []


async def test_a_job_for_a_group_needs_the_group_and_nodes_that_know_such_jobs(database: Database) -> None:
    async with database.begin() as tx:
        await groups.set_addresses(tx, "Shop", None, tx.now())
        await job_targets.check(tx, [])
        await job_targets.check(tx, ["Shop"])
        with pytest.raises(UnknownGroup) as unknown:
            await job_targets.check(tx, ["Shop", "shop"])
        assert unknown.value.group == "shop", "upper and lower case are different names"
        await nodes.join(tx, "old-1", "old", [])
        await job_targets.check(tx, [])
        with pytest.raises(MixedVersions, match=r"old \(version not known\) is too old: upgrade or stop it"):
            await job_targets.check(tx, ["Shop"])
        for n in range(6):
            await nodes.join(tx, f"a{n}-1", f"a{n}", [], version="0.9.0")
        with pytest.raises(MixedVersions, match=r"a4 \(0.9.0\) and 2 more are too old: upgrade or stop them"):
            await job_targets.check(tx, ["Shop"])


async def _ids(database: Database, **wanted: Any) -> set[str]:
    async with database.read() as connection:
        return {job.id for job in await jobs.page(connection, JobFilter(**wanted), 100)}


async def test_pages_have_the_jobs_of_a_group_and_the_shards_of_a_broadcast(database: Database) -> None:
    shop, reports = pending(database, **routed()), pending(database, **routed("reports"))
    queue = pending(database, queue="shop")
    parent = pending(database, **routed(routing="SHARDING_BROADCAST"))
    parts = [pending(database, **routed(parent_id=parent.id, shard_index=n, shard_total=2)) for n in range(2)]
    await inserted(database, shop, reports, queue, parent, *parts)
    ids = {part.id for part in parts}
    assert await _ids(database, group="shop", shards=False) == {shop.id, parent.id}
    assert await _ids(database, group="shop") == {shop.id, parent.id, *ids}
    assert await _ids(database, queue="shop") == {queue.id}
    assert await _ids(database, parent_id=parent.id) == ids
    assert await _ids(database, parent_id=shop.id) == set()
    assert await _ids(database, shards=False) == {shop.id, reports.id, queue.id, parent.id}


async def test_a_page_without_parts_is_not_sorted_by_the_database(database: Database) -> None:
    """All jobs without a parent have the same place in the index of parents."""
    await inserted(database, *[pending(database) for _ in range(50)])
    with watched(database) as sent:
        assert len(await _ids(database, shards=False)) == 50
    found = [access for one in sent for access in await accesses(database, one)]
    assert [access.table for access in found] == ["jobs"]
    assert "parent" not in str(found[0].index)


async def test_all_nodes_have_one_report_key_and_a_clone_another(database: Database) -> None:
    await database.ping()
    first, second = await asyncio.gather(installation.report_key(database), installation.report_key(database))
    assert first == second
    assert len(first) == 32
    assert await installation.report_key(database) == first
    async with database.begin() as tx:
        await clone_rows.finish(tx, "another")
    assert await installation.report_key(database) != first


async def at_work(database: Database, node: str, **more: Any) -> tuple[JobRow, OwnedAttempt]:
    """A job for a group that a node owns, and its attempt as the node finds it."""
    job = await owned(database, node, await dispatched(database, **routed(**more)))
    async with database.read() as connection:
        [attempt] = [one for one in await executor_jobs.owned(connection, node) if one.job_id == job.id]
    return job, attempt


async def given(database: Database, node: str, attempt: OwnedAttempt, address: str) -> JobRow | None:
    async with database.begin() as tx:
        job = (await executor_jobs.lock_own(tx, node, [attempt])).get(attempt.history_id)
        if job is not None:
            await executor_jobs.give(tx, [(job, called(job, address, database.now()))])
        return job


async def test_a_node_finds_its_own_attempts_for_groups(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    await at_work(database, "b")
    await owned(database, "a", await dispatched(database, queue="q"))
    await owned(database, "a", await running(database, queue="q"))
    assert (attempt.job_id, attempt.history_id, attempt.owner_epoch) == (job.id, job.history_id, 1)
    assert (attempt.state, attempt.address, attempt.called_at, attempt.cancel_reason) == (
        "DISPATCHED",
        None,
        None,
        None,
    )
    async with database.read() as connection:
        assert await executor_jobs.owned(connection, "a") == [attempt]
        assert await executor_jobs.owned(connection, "c") == []


async def test_what_was_not_called_yet_is_found_before_all_that_runs(database: Database) -> None:
    called_jobs = []
    for number in range(3):
        job, attempt = await at_work(database, "a")
        assert await given(database, "a", attempt, f"http://a:{number + 1}") is not None
        called_jobs.append(job.id)
    new, _ = await at_work(database, "a")
    async with database.read() as connection:
        found = [one.job_id for one in await executor_jobs.owned(connection, "a")]
    assert found == [new.id, *called_jobs]


async def test_the_address_is_stored_in_the_job_and_in_its_attempt_before_the_call(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    assert await given(database, "a", attempt, "http://a:1") is not None
    stored_job = await now(database, job)
    async with database.read() as connection:
        [tried] = await jobs.attempts(connection, job.id)
    assert (stored_job.address, tried.address) == ("http://a:1", "http://a:1")
    assert stored_job.called_at is not None
    assert stored_job.called_at == tried.called_at


async def test_only_the_owner_of_that_epoch_gives_that_attempt_to_an_executor(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    assert await given(database, "b", attempt, "http://a:1") is None
    await owned(database, "a", job)  # the same node, in a later epoch: what it read before is obsolete
    assert await given(database, "a", attempt, "http://a:1") is None
    job, attempt = await at_work(database, "a")
    lost = rules.ended(job, replace(rules.WORKER_SILENT, counts=False), database.now(), 0.5)
    again = rules.dispatched(await stored(database, job, lost), "h-2", database.now())
    await stored(database, lost.job, again)
    assert await given(database, "a", attempt, "http://a:1") is None
    assert (await now(database, job)).address is None


async def test_what_has_begun_or_was_cancelled_is_not_called(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    await stored(database, job, rules.cancelled(job, "no", database.now()))
    assert await given(database, "a", attempt, "http://a:1") is None
    begun = await owned(database, "a", await running(database, **routed()))
    assert await given(database, "a", replace(attempt, job_id=begun.id, history_id=str(begun.history_id)), "x") is None


async def test_two_owners_at_once_store_one_address(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    first = await given(database, "a", attempt, "http://a:1")
    assert first is not None
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await executor_jobs.give(tx, [(first, called(first, "http://b:1", database.now()))])
    assert (await now(database, job)).address == "http://a:1"


async def test_when_the_process_at_its_address_registered_is_read_with_an_attempt(database: Database) -> None:
    job, attempt = await at_work(database, "a")
    await given(database, "a", attempt, "http://a:1")
    others = [Heartbeat("other", "http://a:1", "of another app"), Heartbeat("shop", "http://b:1", "elsewhere")]

    async def known(*heartbeats: Heartbeat) -> datetime | None:
        async with database.begin() as tx:
            before = await registrations.among(tx, [one.executor for one in heartbeats])
            await registrations.record(tx, heartbeats, tx.now(), before)
        async with database.read() as connection:
            [found] = await executor_jobs.owned(connection, "a")
        assert found.job_id == job.id
        return found.registered_at

    assert await known(*others) is None
    first = await known(Heartbeat("shop", "http://a:1", "first"))
    assert first is not None
    assert await known(Heartbeat("shop", "http://a:1", "first", "DRAINING")) == first
    second = await known(Heartbeat("shop", "http://a:1", "second"))
    assert second is not None
    assert second > first


async def test_signs_of_life_count_only_for_attempts_that_were_given_to_that_executor(database: Database) -> None:
    mine, attempt = await at_work(database, "a")
    other, another = await at_work(database, "a", executor_group="reports")
    await given(database, "a", attempt, "http://a:1")
    await given(database, "a", another, "http://a:1")
    waits, _ = await at_work(database, "b")
    ended = await stored(database, waits, replace(waits, address="http://a:1", version=waits.version + 1))
    await stored(database, ended, rules.ended(ended, rules.WORKER_SILENT, database.now(), 0.5))
    names = dict.fromkeys((attempt.history_id, another.history_id, str(waits.history_id)), ("shop", "http://a:1"))
    elsewhere = dict.fromkeys(names, ("shop", "http://b:1"))
    too_long = {attempt.history_id + "x" * 60: ("shop", "http://a:1"), "": ("shop", "http://a:1")}
    async with database.read() as connection:
        assert await executor_jobs.given_to(connection, {**names, **too_long}) == [mine.history_id]
        assert await executor_jobs.given_to(connection, elsewhere) == []
        assert await executor_jobs.given_to(connection, {str(other.history_id): ("reports", "http://a:1")}) == [
            other.history_id
        ]
