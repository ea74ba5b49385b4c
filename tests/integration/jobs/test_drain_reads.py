"""Does a node that drains read its jobs until others have them, and does each offer say why it is made?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrix.broker.port import Outgoing, Published
from orchestrix.broker.topology import JOB_HANDOFF
from orchestrix.domain.handoff import NODE_CRASH, REBALANCE, SHUTDOWN
from orchestrix.domain.jobs import HANDING_OFF
from tests.integration.jobs.plant import Node, Plant
from tests.integration.jobs.test_handing import CALM, LAZY, started
from tests.support import eventually


class Wire:
    """What a link of a node has published of offers."""

    def __init__(self, node: Node) -> None:
        self.offers: list[tuple[str, str]] = []
        for link in (node.control, node.outlet):
            self._publish = link.publish
            link.publish = self._tap(link.publish)  # type: ignore[method-assign]

    def _tap(self, publish: Any) -> Any:
        async def tapped(messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
            bodies = [json.loads(one.body) for one in messages if one.routing_key == JOB_HANDOFF]
            self.offers += [(body["jobId"], body["reason"]) for body in bodies]
            found: list[Published] = await publish(messages, timeout)
            return found

        return tapped


@pytest.mark.req("S0-41", "S0-42")
async def test_a_draining_node_reads_on_until_another_has_its_jobs(plant: Plant) -> None:
    giver = await plant.node("giver", leads=True, tuned=CALM, cluster=LAZY)
    wire = Wire(giver)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await plant.owned(job, giver)
    draining = asyncio.create_task(giver.jobs.drain())

    async def is_offered() -> bool:
        return (await plant.now(job)).ownership == HANDING_OFF and bool(wire.offers)

    await eventually(is_offered, deadline=10, message="it is on offer, and nobody takes it")
    await task.log("said while it drains")

    async def is_read() -> bool:
        return [one.message for one in await plant.logs(job)][-1:] == ["said while it drains"]

    await eventually(is_read, deadline=10, message="the draining node reads it")
    assert (await plant.now(job)).owner == giver.name
    assert not draining.done()
    taker = await plant.node("taker", tuned=CALM, cluster=LAZY)
    await plant.owned(job, taker, deadline=20)
    await draining
    assert set(wire.offers) == {(job.id, SHUTDOWN)}


@pytest.mark.req("S0-42", "S0-56")
async def test_offers_of_a_balance_and_of_a_crash_say_so(plant: Plant) -> None:
    giver = await plant.node("giver", tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    leader = await plant.node("leader", leads=True, tuned=CALM, cluster=LAZY)
    [(job, _)] = await started(plant, hand, 1)
    holder = (await plant.owned(job)).owner
    owner = giver if holder == giver.name else leader
    other = leader if owner is giver else giver
    wire = Wire(owner)
    assert await owner.jobs.handoff_publisher.hand_off(REBALANCE, 1) == 1
    await plant.owned(job, other)
    assert set(wire.offers) == {(job.id, REBALANCE)}
    if leader is other:
        await leader.resign()
        await owner.lead(2)
        leader = owner
    told = Wire(leader)
    plant.nodes.remove(other)
    await other.die()
    leader.signals.orphaned.set()
    await eventually(lambda: (job.id, NODE_CRASH) in told.offers, deadline=30, message="the orphan is offered")
    assert {reason for _, reason in told.offers} == {NODE_CRASH}
