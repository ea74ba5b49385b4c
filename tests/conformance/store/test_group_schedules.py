"""Are the jobs of a schedule made for a group, and only once every living node can judge them, whatever that delays?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from orchestrix import clock
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.nodes import FEATURE_LEVEL, NodeState
from orchestrix.domain.schedules import FiringOutcome, Misfire, Overlap, Schedule
from orchestrix.errors import Invalid
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import schedules
from orchestrix.persistence.jobs.job_targets import MixedVersions, UnknownGroup
from orchestrix.persistence.jobs.schedules import NEWER_NODES_ONLY
from orchestrix.persistence.registry import groups
from orchestrix.persistence.tables import nodes as node_table
from orchestrix.persistence.tables import schedules as table
from orchestrix.saga.job_targets import JobTarget, Routing, Strategy
from orchestrix.schedules.scheduler import MIXED_VERSIONS_RETRY_INTERVAL
from orchestrix.schedules.service import ScheduleRequester, ScheduleService
from orchestrix.schedules.time_zones import zone
from tests.conformance.store.test_schedules import HOUR, Cluster, cluster, due_times, schedule

__all__ = ["cluster"]
ADA = ScheduleRequester("ada", "because")
GROUP: dict[str, Any] = {"handler": "report", "payload": {"of": "all"}, "retries": 2, "timeout_ms": 3_600_000}
HASHED = JobTarget(group="läden", routing=Routing(Strategy.CONSISTENT_HASH))
KEYED = JobTarget(group="läden", routing=Routing(Strategy.CONSISTENT_HASH, "eu"))


def grouped(name: str = "nightly", target: JobTarget = HASHED, **more: Any) -> Schedule:
    """One whose jobs are for a group."""
    return schedule(name, **{"job": {**target.columns(), **GROUP}, **more})


def target_of(job: JobRow) -> tuple[Any, ...]:
    """For whom it is."""
    return job.queue, job.executor_group, job.routing, job.routing_key


async def with_old_node(database: Database) -> None:
    """A node of the former release lives beside a new one."""
    async with database.begin() as tx:
        assert await nodes.join(tx, "new-1", "new", [], version="0.2", feature_level=FEATURE_LEVEL)
        assert await nodes.join(tx, "old-1", "old", [], version="0.1")


async def without_old_node(database: Database) -> None:
    """It has stopped."""
    async with database.begin() as tx:
        await tx.execute(node_table.update().where(node_table.c.id == "old-1").values(state=NodeState.LEFT.value))


def service(database: Database) -> ScheduleService:
    """That of any node."""
    return ScheduleService(database, lambda: None, lambda stops: None)


async def at_once(database: Database, one: Schedule) -> None:
    """Its next look is now."""
    async with database.begin() as tx:
        before = await schedules.lock(tx, one.id)
        assert before is not None
        await schedules.store(tx, before, replace(before, next_at=tx.now() - timedelta(seconds=5)))


async def test_a_due_time_becomes_a_job_for_the_group(cluster: Cluster) -> None:
    one, keyed = grouped(), grouped("keyed", KEYED)
    await cluster.put(one, keyed)
    assert await cluster.now(one) == one
    assert await (await cluster.leader()).fire() == 2
    [job], [other] = await cluster.runs(one), await cluster.runs(keyed)
    assert target_of(job) == (None, "läden", "CONSISTENT_HASH", one.id), "all runs go to one executor"
    assert target_of(other) == (None, "läden", "CONSISTENT_HASH", "eu")
    assert (job.handler, job.due_at, job.retries, job.timeout_ms) == ("report", one.due_at, 2, 3_600_000)
    assert (await cluster.now(one)).last_outcome is FiringOutcome.STARTED


async def test_a_template_of_a_former_release_makes_jobs_of_its_queue(cluster: Cluster, database: Database) -> None:
    one = schedule()
    await cluster.put(one)
    async with database.read() as connection:
        assert (await connection.execute(select(table.c.zone))).scalars().all() == ["UTC"]
    await (await cluster.leader()).fire()
    [job] = await cluster.runs(one)
    assert target_of(job) == ("reports", None, None, None)


async def test_a_leader_of_the_former_release_passes_it_over(cluster: Cluster, database: Database) -> None:
    """Such a leader takes the zone as it is stored, and waits with what has none that it knows."""
    one = grouped(zone="Europe/Berlin", interval_ms=None, cron="* * * * *")
    await cluster.put(one)
    async with database.begin() as tx:
        await schedules.store(tx, one, replace(one, version=2))
        stored = (await tx.execute(select(table.c.zone))).scalar_one()
    assert stored == f"{NEWER_NODES_ONLY}Europe/Berlin"
    with pytest.raises(Invalid, match="is not in the IANA time zone database"):
        zone(stored)
    assert (await cluster.now(one)).zone == "Europe/Berlin"
    async with database.read() as connection:
        assert [found.zone for found in await schedules.page(connection, 10)] == ["Europe/Berlin"]
    longest = max(zone_names(), key=len)
    assert len(NEWER_NODES_ONLY + longest) <= 100


def zone_names() -> set[str]:
    """All of the database."""
    from zoneinfo import available_timezones

    return available_timezones()


@pytest.mark.parametrize("overlap", Overlap)
async def test_overlap_holds_for_jobs_of_groups(cluster: Cluster, overlap: Overlap) -> None:
    one = grouped(due=clock.now() - 2 * HOUR, overlap=overlap, misfire=Misfire.FIRE_ONCE, missed_after_ms=86_400_000)
    await cluster.put(one)
    leader = await cluster.leader()
    await leader.fire()
    [first] = await cluster.runs(one)
    await cluster.move(first, "DISPATCHED", "RUNNING")
    await leader.fire()
    states = [(job.state, job.cancel_reason is not None) for job in await cluster.runs(one)]
    expected = {
        Overlap.SKIP: [("RUNNING", False)],
        Overlap.QUEUE: [("RUNNING", False), ("PENDING", False)],
        Overlap.CANCEL_PREVIOUS: [("RUNNING", True), ("PENDING", False)],
    }
    assert states == expected[overlap]


@pytest.mark.parametrize(
    ("misfire", "runs"), [(Misfire.IGNORE, 0), (Misfire.FIRE_ONCE, 1), (Misfire.CATCH_UP, 4)], ids=str
)
async def test_it_waits_while_a_living_node_is_too_old_and_then_fires_by_itself(
    cluster: Cluster, database: Database, misfire: Misfire, runs: int
) -> None:
    begin = clock.now() - 3 * HOUR - timedelta(minutes=30)
    one = grouped(due=begin, misfire=misfire, overlap=Overlap.QUEUE)
    other = schedule("other")
    await cluster.put(one, other)
    await with_old_node(database)
    leader = await cluster.leader()
    assert await leader.fire() == 2
    assert len(await cluster.runs(other)) == 1, "those of queues do not wait with it"
    waiting = await cluster.now(one)
    assert (await cluster.runs(one), waiting.due_at, waiting.version, waiting.last_outcome) == ([], begin, 1, None)
    assert waiting.trouble == (
        "jobs for a group of executors need every node to know them, and old (0.1) is too old: upgrade or stop it"
    )
    assert waiting.next_at is not None
    assert timedelta(0) < waiting.next_at - database.now() <= MIXED_VERSIONS_RETRY_INTERVAL
    assert await leader.fire() == 0, "it is looked at again later"
    await at_once(database, one)
    assert await leader.fire() == 1
    assert await cluster.runs(one) == []
    await without_old_node(database)
    await at_once(database, one)
    assert await leader.fire() == 1
    found, after = await cluster.runs(one), await cluster.now(one)
    dues = [begin + n * HOUR for n in range(4)][-runs:] if runs else []
    assert due_times(found) == dues
    assert (after.trouble, after.due_at, after.next_at) == (None, begin + 4 * HOUR, begin + 4 * HOUR)


async def test_what_waits_only_shortly_is_not_late(cluster: Cluster, database: Database) -> None:
    one = grouped(misfire=Misfire.IGNORE)
    await cluster.put(one)
    await with_old_node(database)
    leader = await cluster.leader()
    await leader.fire()
    await without_old_node(database)
    await at_once(database, one)
    await leader.fire()
    assert due_times(await cluster.runs(one)) == [one.due_at]


async def test_a_person_is_refused_while_a_living_node_is_too_old(database: Database) -> None:
    book = service(database)
    async with database.begin() as tx:
        await groups.set_addresses(tx, "läden", ["http://10.0.0.7:9999"], tx.now())
    fields: dict[str, Any] = {"interval_ms": 3_600_000, "job": {**HASHED.columns(), **GROUP}}
    queued: dict[str, Any] = {"interval_ms": 3_600_000, "job": {"queue": "reports", "handler": "report"}}
    one, plain = await book.create({**fields, "name": "one"}, ADA), await book.create({**queued, "name": "q"}, ADA)
    await with_old_node(database)
    start = one.created_at.replace(microsecond=0)
    with pytest.raises(MixedVersions):
        await book.create({**fields, "name": "two"}, ADA)
    with pytest.raises(MixedVersions):
        await book.change("q", {"job": fields["job"]}, ADA)
    with pytest.raises(MixedVersions):
        await book.run("one", ADA)
    with pytest.raises(MixedVersions):
        await book.backfill("one", start, start + timedelta(milliseconds=1), ADA)
    assert (await book.backfill("one", start, start + timedelta(milliseconds=1), ADA, dry_run=True)).dues == (start,)
    assert (await book.get("q")).version == plain.version
    assert (await book.change("one", {"overlap": Overlap.QUEUE}, ADA)).version == one.version + 1
    assert (await book.run("q", ADA)).queue == "reports"
    await without_old_node(database)
    assert target_of(await book.run("one", ADA)) == (None, "läden", "CONSISTENT_HASH", one.id)


async def test_the_group_is_there_when_it_is_named(database: Database) -> None:
    book = service(database)
    fields: dict[str, Any] = {"interval_ms": 3_600_000, "job": {**HASHED.columns(), **GROUP}, "name": "one"}
    with pytest.raises(UnknownGroup, match=r"registry set 'läden' --auto"):
        await book.create(fields, ADA)
    async with database.begin() as tx:
        await groups.set_addresses(tx, "läden", ["http://10.0.0.7:9999"], tx.now())
    await book.create(fields, ADA)
    other = JobTarget(group="other")
    with pytest.raises(UnknownGroup):
        await book.change("one", {"job": {**other.columns(), **GROUP}}, ADA)
    async with database.begin() as tx:
        assert await groups.delete_group(tx, "läden")
    assert (await book.change("one", {"overlap": Overlap.QUEUE}, ADA)).version == 2, "the rest can be changed"
    assert (await book.run("one", ADA)).executor_group == "läden", "its job fails, for everybody to see"
