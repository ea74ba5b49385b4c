"""What do declaring, counting and deleting promise?"""

from __future__ import annotations

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Binding, Exchange, Queue, Topology
from orchestrix.errors import ConfigError
from tests.conformance.port.rig import QUORUM, WORK, Rig, fill, take
from tests.support import eventually


async def test_declaring_twice_changes_nothing(broker: AmqpBroker) -> None:
    await fill(broker, 3)
    await broker.declare(WORK)
    assert await broker.message_count("jobs") == (3, 0)


async def test_a_mismatch_names_the_thing_and_the_rest_is_declared(broker: AmqpBroker) -> None:
    other = Topology(
        exchanges=(Exchange("work", "direct"), Exchange("fresh", "fanout")),
        queues=(Queue("jobs", {"x-queue-type": "classic"}), Queue("new", QUORUM)),
        bindings=(Binding("new", "fresh", ""), Binding("new", "missing", "")),
    )
    with pytest.raises(ConfigError) as wrong:
        await broker.declare(other)
    assert "exchange work" in str(wrong.value)
    assert "queue jobs" in str(wrong.value)
    assert "x-queue-type" in str(wrong.value)
    assert "missing" in str(wrong.value)
    assert await broker.message_count("new") == (0, 0)
    assert await broker.message_count("jobs") == (0, 0)
    assert broker.generation == 1


async def test_a_missing_queue_has_no_count_and_can_be_deleted(broker: AmqpBroker) -> None:
    assert await broker.message_count("nothing") is None
    await broker.delete("nothing")


async def test_a_full_queue_can_be_deleted(broker: AmqpBroker) -> None:
    await fill(broker, 2)
    await broker.delete("jobs")
    assert await broker.message_count("jobs") is None


@pytest.mark.parametrize("name", ["emoji 🐇", "x" * 256, "\ud800"])
async def test_a_name_that_cannot_be_sent_is_refused(broker: AmqpBroker, name: str) -> None:
    with pytest.raises(ConfigError):
        await broker.declare(Topology(queues=(Queue(name, QUORUM),)))
    with pytest.raises(ConfigError):
        await broker.message_count(name)
    with pytest.raises(ConfigError):
        await broker.consume([name], 1)
    assert broker.generation == 1


async def test_a_prefetch_without_limit_is_refused(broker: AmqpBroker) -> None:
    with pytest.raises(ConfigError):
        await broker.consume(["jobs"], 0)


async def test_an_exclusive_queue_lives_with_its_connection(rig: Rig, broker: AmqpBroker) -> None:
    mine = Topology(queues=(Queue("mine", exclusive=True),), bindings=(Binding("mine", "work", "mine"),))
    await broker.declare(mine)
    consumer = await broker.consume(["mine"], 10, exclusive=True)
    await fill(broker, 3, key="mine")
    assert len(await take(consumer, 3)) == 3
    other = await rig.up()
    await broker.stop()
    await eventually(lambda: _absent(other), deadline=5)


async def _absent(broker: AmqpBroker) -> bool:
    return await broker.message_count("mine") is None


async def test_a_port_with_a_topology_declares_it_before_it_counts_as_up(rig: Rig) -> None:
    broker = AmqpBroker(lambda: rig.url, name="test", topology=WORK)
    rig.brokers.append(broker)
    await broker.start()
    assert await broker.wait_connected(10)
    await fill(broker, 1)
    assert broker.mismatch is None
    await broker.delete("jobs")
    rig.proxy.cut()
    await eventually(lambda: broker.generation == 2, deadline=5)
    await fill(broker, 1)


async def test_a_topology_that_does_not_fit_is_reported_and_the_link_comes_up(rig: Rig, broker: AmqpBroker) -> None:
    other = AmqpBroker(lambda: rig.url, name="test", topology=Topology(queues=(Queue("jobs"), Queue("more", QUORUM))))
    rig.brokers.append(other)
    await other.start()
    assert await other.wait_connected(10)
    assert "queue jobs" in (other.mismatch or "")
    assert await other.message_count("more") == (0, 0)
