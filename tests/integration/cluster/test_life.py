"""What do the others see of a node that is about to leave?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import LinkState
from orchestrix.broker.topology import cluster_topology
from orchestrix.cluster import member as lives
from orchestrix.cluster.member import ClusterMember
from orchestrix.cluster.membership import Identity
from orchestrix.cluster.rejoining_member import RejoiningMember
from orchestrix.config.settings import ClusterSettings
from orchestrix.domain.nodes import FEATURE_LEVEL, NodeState
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from tests.support import eventually

QUICK = ClusterSettings(heartbeat=0.2, dead=3.0, presence=1.0, lease=3.0, renew=0.5)


class Jobs:
    """Work that cannot end before somebody lets it."""

    def __init__(self) -> None:
        self.count = 3
        self.handing, self.handed = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        self.handing.set()
        await self.handed.wait()
        self.count = 0

    async def abandon(self) -> None:
        self.handed.set()


@pytest.mark.req("S0-39")
async def test_a_node_that_leaves_is_draining_for_all_to_see_until_it_has_handed_over(
    broker_url: str, database: Database
) -> None:
    link = AmqpBroker(broker_url, name="a", topology=cluster_topology("a-1"))
    work = Jobs()
    life = ClusterMember(Identity("a-1", "a", ("coordinator",)), database, link, QUICK, workload=work)

    async def seen(state: NodeState, jobs: int) -> bool:
        async with database.read() as connection:
            node = await nodes.get(connection, "a-1")
        return node is not None and (node.state, node.job_count) == (state, jobs)

    await life.start()
    await eventually(lambda: seen(NodeState.ALIVE, 3), deadline=5)
    async with database.read() as connection:
        assert await nodes.below_feature_level(connection, FEATURE_LEVEL) == [], "it can judge jobs for groups"
        assert len(await nodes.below_feature_level(connection, FEATURE_LEVEL + 1)) == 1
    leaving = asyncio.create_task(life.stop())
    await asyncio.wait_for(work.handing.wait(), 5)
    await eventually(lambda: seen(NodeState.DRAINING, 3), deadline=5)
    assert not leaving.done()
    work.handed.set()
    await asyncio.wait_for(leaving, 5)
    assert await seen(NodeState.LEFT, 0) or await seen(NodeState.LEFT, 3)


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "fails"])
async def test_a_node_leaves_though_its_work_does_not_end_well(
    broker_url: str, database: Database, hangs: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lives, "CLOSE_TIMEOUT_S", 0.5)
    link = AmqpBroker(broker_url, name="a", topology=cluster_topology("a-1"))
    work = Jobs()
    quick = QUICK.model_copy(update={"handoff_hard": 0.1})
    life = ClusterMember(Identity("a-1", "a", ("coordinator",)), database, link, quick, workload=work)
    if not hangs:
        work.stop = broken  # type: ignore[method-assign]
    await life.start()
    await asyncio.wait_for(life.membership.joined.wait(), 5)
    await asyncio.wait_for(life.stop(), 10)
    async with database.read() as connection:
        node = await nodes.get(connection, "a-1")
    assert node is not None
    assert node.state is NodeState.LEFT
    assert f"handing the jobs off {'did not finish within 0.6 s' if hangs else 'failed'}" in caplog.text
    work.handed.set()


async def broken() -> None:
    raise RuntimeError("broken")


async def test_a_process_leaves_though_its_next_life_could_not_begin(broker_url: str, database: Database) -> None:
    link = AmqpBroker(broker_url, name="a", topology=cluster_topology("a-1"))
    life = ClusterMember(Identity("a-1", "a", ("coordinator",)), database, link, QUICK)
    made = [life]
    coordinator = RejoiningMember(lambda: made.pop())  # there is no second one
    await coordinator.start()
    await asyncio.wait_for(coordinator.joined(), 5)
    life.membership.found_dead.set()
    await eventually(lambda: coordinator._task is not None and coordinator._task.done(), deadline=10)
    with pytest.raises(IndexError):
        await asyncio.wait_for(coordinator.stop(), 10)
    assert link.state is LinkState.DOWN


async def test_a_process_that_has_resigned_does_not_join_again(broker_url: str, database: Database) -> None:
    link = AmqpBroker(broker_url, name="a", topology=cluster_topology("a-1"))
    life = ClusterMember(Identity("a-1", "a", ("coordinator",)), database, link, QUICK)
    made = [life]
    coordinator = RejoiningMember(lambda: made.pop())
    await coordinator.start()
    await asyncio.wait_for(coordinator.joined(), 5)
    await asyncio.wait_for(coordinator.resign(), 5)
    life.membership.found_dead.set()
    await eventually(lambda: coordinator._task is not None and coordinator._task.done(), deadline=10)
    assert link.state is LinkState.DOWN
    await asyncio.wait_for(coordinator.stop(), 10)
