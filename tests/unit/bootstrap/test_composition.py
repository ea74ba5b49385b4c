"""Which parts does a node have by its roles, and who wakes whom?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from orchestrix.bootstrap.cluster import ClusterLinks, NodeIds
from orchestrix.bootstrap.context import NodeSignals
from orchestrix.bootstrap.engine import follow_catalog
from orchestrix.broker.port import LinkState
from orchestrix.config.settings import Settings
from orchestrix.dead_letters import redrive
from orchestrix.domain.leases import Fence
from orchestrix.jobs.job_coordinator import JobCoordinator
from orchestrix.lifecycle import Check, WakeSignal
from orchestrix.node import Node, build_node
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.schedules.scheduler import Scheduler
from sagas.app_provisioning import APP_PROVISIONING
from tests.fakes.broker import FakeBroker
from tests.support import eventually

ALL = frozenset({"api", "orchestrator", "coordinator"})


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    """A database of which nothing is asked."""
    made = Database(sqlite_url)
    yield made
    await made.close()


def built(database: Database, roles: frozenset[str] = ALL, **more: Any) -> Node:
    """A node of which nothing runs."""

    def connect(name: str, topology: object = None, *, heartbeat: int = 0, reconnect_max_s: float = 0.0) -> FakeBroker:
        return FakeBroker()

    return build_node(
        Settings(),
        database=database,
        broker=FakeBroker(),
        roles=roles,
        catalog=Catalog([APP_PROVISIONING]),
        name="node-1",
        links=ClusterLinks(database, cast(Any, connect)),
        **more,
    )


def work_of(node: Node) -> JobCoordinator:
    """Its part in jobs."""
    assert node.cluster.coordinator is not None
    work = node.cluster.coordinator.member.work
    assert isinstance(work, JobCoordinator)
    return work


async def test_only_an_orchestrator_moves_sagas_and_only_a_coordinator_is_a_member(database: Database) -> None:
    node = built(database)
    assert node.engine.orchestration is not None
    assert node.dead_letters.collectors is not None
    assert node.cluster.coordinator is not None
    other = built(database, frozenset({"api"}))
    assert other.engine.orchestration is None
    assert other.dead_letters.collectors is None
    assert other.cluster.coordinator is None


async def test_a_leader_has_the_duties_of_jobs_and_of_schedules(database: Database) -> None:
    node = built(database)
    assert node.cluster.coordinator is not None
    duties = node.cluster.coordinator.member.leadership._duties
    assert work_of(node).duties in duties
    made = [type(duty(Fence(1, "node-1"))) for duty in duties]
    assert Scheduler in made


@pytest.mark.req("S1-6", "S1-52")
async def test_a_coordinator_answers_members_of_shard_services_and_says_whether_it_can(database: Database) -> None:
    node = built(database)
    assert node.shards is not None
    assert [one for one in node.works._parts if one in node.shards.works] == list(node.shards.works)
    broker = cast(FakeBroker, node.shards.broker)
    assert broker is not node.context.broker
    broker.state = LinkState.UP
    assert Check("Shards", True) in node.health.checks()
    broker.state = LinkState.DOWN
    assert "Shards" in [one.component for one in node.health.checks() if not one.healthy]
    other = built(database, frozenset({"api", "orchestrator"}))
    assert other.shards is None
    assert "Shards" not in [one.component for one in other.health.checks()]


async def test_whoever_has_written_wakes_the_relay(database: Database) -> None:
    signals = NodeSignals()
    node = built(database, signals=signals)
    node.relay.notify()
    assert await signals.outbox_ready.wait(0)
    node.jobs.steps._sent()
    assert await signals.outbox_ready.wait(0)


async def test_the_relay_hands_refused_rows_to_jobs_and_to_dead_letters(database: Database) -> None:
    jobs, letters = built(database).relay._refused
    assert cast(Any, jobs).__qualname__ == "DeadDispatchHandler.refused"
    assert letters is redrive.refused


async def test_a_notified_node_looks_for_jobs_and_schedules_and_whether_it_is_to_drain(database: Database) -> None:
    signals = NodeSignals()
    node = built(database, signals=signals)
    node.jobs.notifiers.leader._here()
    for signal in (signals.jobs.due, signals.schedules_due, signals.jobs.drain_requested):
        assert await signal.wait(0)


async def test_a_job_that_may_begin_wakes_the_dispatcher_and_the_scheduler(database: Database) -> None:
    signals = NodeSignals()
    work_of(built(database, signals=signals)).notify_leader()
    assert await signals.jobs.due.wait(0)
    assert await signals.schedules_due.wait(0)
    assert not await signals.jobs.drain_requested.wait(0)


async def test_a_node_that_is_alone_drains_as_it_resigns_and_keeps_its_jobs(database: Database) -> None:
    node = built(database, single_process=True)
    work = work_of(node)
    await node.resign()
    assert work.draining.begun
    assert await work._check_drain_request() > 0, "its row is not read any more: there is no table"
    other = built(database)
    await other.resign()
    assert not work_of(other).draining.begun


async def test_a_node_knows_its_present_id(database: Database) -> None:
    ids = NodeIds("a-1", iter(["a-2", "a-3"]).__next__)
    assert not ids.is_current("a-1")
    assert (ids.next(), ids.is_current("a-1")) == ("a-1", True)
    assert (ids.next(), ids.is_current("a-1"), ids.is_current("a-2")) == ("a-2", False, True)
    node = built(database)
    assert node.jobs.notifiers.leader._is_leader_here(node.current_id)
    assert not built(database, frozenset({"api"})).jobs.notifiers.leader._is_leader_here("node-1")


async def test_a_catalog_that_has_grown_is_told_to_all_who_read_queues() -> None:
    grew, told = WakeSignal(), list[str]()
    done = asyncio.Event()
    follower = follow_catalog(grew, [lambda: told.append("listener"), lambda: told.append("held"), done.set])
    grew.set()  # also what was read before it starts
    await follower.start()
    await asyncio.wait_for(done.wait(), 5)
    done.clear()
    grew.set()
    await asyncio.wait_for(done.wait(), 5)
    assert told == ["listener", "held"] * 2
    await follower.stop()


async def test_new_versions_wake_the_followers_of_the_catalog(database: Database) -> None:
    signals = NodeSignals()
    built(database, signals=signals).engine.definitions._on_change()
    await eventually(lambda: signals.catalog_grew.wait(0), deadline=5, message="the catalog has grown")
