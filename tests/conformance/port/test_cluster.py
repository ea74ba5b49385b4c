"""Does the port give what leadership and membership stand on: one active reader, presence, and ears for a topic?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Consumer, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import HEARTBEAT, LEADER, SINGLE, cluster_topology, heartbeat_queue, node_queue
from orchestrix.clock import uuid7
from tests.conformance.port.rig import Rig, outcomes, take
from tests.support import eventually, holds

LINE = Topology(queues=(Queue(LEADER, SINGLE),))


def sent_to(queue: str, body: bytes = b"{}") -> Outgoing:
    return Outgoing(exchange="", routing_key=queue, body=body, message_id=uuid7())


async def node(rig: Rig, node_id: str) -> AmqpBroker:
    """A node's own link."""
    broker = AmqpBroker(rig.proxy.url, name=node_id, heartbeat=2, topology=cluster_topology(node_id))
    rig.brokers.append(broker)
    await broker.start()
    async with asyncio.timeout(5):
        assert await broker.wait_connected()
    return broker


async def ping(broker: AmqpBroker, node_id: str) -> Outcome:
    (published,) = await broker.publish([sent_to(node_queue(node_id))])
    return published.outcome


@pytest.mark.req("DC-7")
async def test_the_token_goes_on_when_its_holders_channel_is_closed(rig: Rig) -> None:
    first, second = await node(rig, "a-1"), await node(rig, "b-1")
    holder = await first.consume([LEADER], 1, own_topology=LINE)
    await first.publish([sent_to(LEADER, b"1")])
    (held,) = await take(holder, 1, acknowledge=False)
    waiting = await second.consume([LEADER], 1, own_topology=LINE)
    arrival = asyncio.create_task(waiting.receive(1))
    await holds(lambda: not arrival.done(), during=0.3)
    await holder.reopen()
    assert not holder.alive(held)
    async with asyncio.timeout(2):
        (again,) = await arrival
    assert (again.body, again.delivery_count) == (b"1", 1)


async def test_a_fresh_token_takes_the_place_of_the_old_one(rig: Rig) -> None:
    broker = await node(rig, "a-1")
    holder = await broker.consume([LEADER], 1, own_topology=LINE)
    await broker.publish([sent_to(LEADER, b"1")])
    old = await take(holder, 1, acknowledge=False)
    assert outcomes(await broker.publish([sent_to(LEADER, b"2")])) == [Outcome.CONFIRMED]
    await holder.acknowledge(old)
    (fresh,) = await take(holder, 1, acknowledge=False)
    assert (fresh.body, fresh.delivery_count) == (b"2", 0)


async def test_the_end_of_the_queue_is_told_and_it_is_made_again(rig: Rig) -> None:
    broker = await node(rig, "a-1")
    holder = await broker.consume([LEADER], 1, own_topology=LINE)
    lost = asyncio.Event()
    holder.on_channel_lost(lost.set)
    await broker.publish([sent_to(LEADER, b"1")])
    (held,) = await take(holder, 1, acknowledge=False)
    await broker.delete(LEADER)
    async with asyncio.timeout(2):
        await lost.wait()
    assert not holder.alive(held)
    await eventually(lambda: _put(broker), deadline=5)
    (fresh,) = await take(holder, 1)
    assert fresh.body == b"2"


async def test_the_end_of_the_connection_is_told_at_once(rig: Rig) -> None:
    broker = await node(rig, "a-1")
    holder = await broker.consume([LEADER], 1, own_topology=LINE)
    lost = asyncio.Event()
    holder.on_channel_lost(lost.set)
    await broker.publish([sent_to(LEADER, b"1")])
    await take(holder, 1, acknowledge=False)
    rig.proxy.cut()
    await eventually(lost.is_set, deadline=1, message="the consumer is told that its channel is lost")


async def test_presence_ends_with_the_connection_and_comes_back_with_it(rig: Rig) -> None:
    here, there = await node(rig, "a-1"), await node(rig, "b-1")
    for broker, node_id in ((here, "a-1"), (there, "b-1")):
        await broker.consume([node_queue(node_id)], 10)
        await broker.consume([heartbeat_queue(node_id)], 10)
    assert (await ping(here, "b-1"), await ping(here, "c-1")) == (Outcome.CONFIRMED, Outcome.RETURNED)
    await there.stop()
    await eventually(lambda: _is_gone(here, "b-1"), deadline=2)
    rig.proxy.cut()
    assert await here.wait_connected(10)
    await eventually(lambda: _is_there(here, "a-1"), deadline=10)
    assert here.mismatch is None


async def test_a_queue_that_the_lost_connection_still_has_is_no_mismatch(rig: Rig) -> None:
    """The broker misses a frozen connection later than its owner does."""
    broker = await node(rig, "a-1")
    await broker.consume([node_queue("a-1")], 10)
    other = AmqpBroker(rig.proxy.url, name="again", topology=cluster_topology("a-1"))
    rig.brokers.append(other)
    await other.start()
    assert await other.wait_connected(5)
    consumer = await other.consume([node_queue("a-1")], 10)
    assert other.mismatch is None
    await broker.stop()
    await eventually(lambda: _is_there(other, "a-1"), deadline=10)
    await other.publish([sent_to(node_queue("a-1"), b"2")])
    await eventually(lambda: _reads(consumer, b"2"), deadline=10)


@pytest.mark.req("S0-19")
async def test_every_node_hears_every_heartbeat(rig: Rig) -> None:
    brokers = {node_id: await node(rig, node_id) for node_id in ("a-1", "b-1", "c-1")}
    ears = [await broker.consume([heartbeat_queue(node_id)], 10) for node_id, broker in brokers.items()]
    for node_id, broker in brokers.items():
        message = Outgoing(HEARTBEAT, node_id, node_id.encode(), uuid7())
        assert outcomes(await broker.publish([message])) == [Outcome.CONFIRMED]
    for ear in ears:
        assert sorted(one.body for one in await take(ear, 3)) == [b"a-1", b"b-1", b"c-1"]


async def _put(broker: AmqpBroker) -> bool:
    return outcomes(await broker.publish([sent_to(LEADER, b"2")])) == [Outcome.CONFIRMED]


async def _is_gone(broker: AmqpBroker, node_id: str) -> bool:
    return await ping(broker, node_id) is Outcome.RETURNED


async def _is_there(broker: AmqpBroker, node_id: str) -> bool:
    return await ping(broker, node_id) is Outcome.CONFIRMED


async def _reads(consumer: Consumer, body: bytes) -> bool:
    (found,) = await take(consumer, 1)
    return found.body == body
