"""What does a consumer promise that brings its own queues?"""

from __future__ import annotations

from functools import partial

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Delivery, Outcome, Outgoing
from orchestrix.broker.topology import job_channels, logs_queue, status_queue
from orchestrix.clock import uuid7
from tests.conformance.port.rig import Rig, outcomes, take
from tests.support import eventually, holds

OWN = job_channels("j-1")
STATUS, LOGS = status_queue("j-1"), logs_queue("j-1")


def sent(queue: str, *numbers: int) -> list[Outgoing]:
    return [Outgoing("", queue, b"%d" % number, uuid7()) for number in numbers]


async def is_there(broker: AmqpBroker, queue: str) -> bool:
    return await broker.message_count(queue) is not None


async def test_it_declares_what_is_missing(rig: Rig) -> None:
    broker = await rig.up()
    consumer = await broker.consume([STATUS, LOGS], 10, own_topology=OWN)
    for queue in (STATUS, LOGS):
        await eventually(partial(is_there, broker, queue), deadline=5)
    await broker.publish(sent(STATUS, 1) + sent(LOGS, 2))
    assert sorted(one.body for one in await take(consumer, 2)) == [b"1", b"2"]


async def test_queues_that_are_deleted_come_back(rig: Rig) -> None:
    broker, other = await rig.up(), await rig.up()
    consumer = await broker.consume([STATUS, LOGS], 10, own_topology=OWN)
    await eventually(lambda: is_there(other, LOGS), deadline=5)
    for queue in (STATUS, LOGS):
        await other.delete(queue)
    await eventually(lambda: is_there(other, STATUS), deadline=10)
    await eventually(lambda: is_there(other, LOGS), deadline=10)
    await other.publish(sent(LOGS, 3))
    assert [one.body for one in await take(consumer, 1)] == [b"3"]


@pytest.mark.parametrize("trips", [0, 1, 5, 40])
async def test_once_it_is_closed_it_declares_nothing(rig: Rig, trips: int) -> None:
    broker, other = await rig.up(), await rig.up()

    async def wanted() -> bool:
        return True

    consumer = await broker.consume([STATUS, LOGS], 10, own_topology=OWN, dynamic_topology=wanted)
    for _ in range(trips):
        await other.message_count(STATUS)
    await consumer.close()
    for queue in (STATUS, LOGS):
        await other.delete(queue)
    with pytest.raises(AssertionError, match="made anew"):
        await eventually(partial(is_there, other, STATUS), deadline=0.5, message="made anew")
    assert not await is_there(other, LOGS)


async def test_it_begins_with_its_whole_prefetch(rig: Rig) -> None:
    broker = await rig.up()
    await broker.declare(OWN)
    await broker.publish(sent(STATUS, *range(30)))
    consumer = await broker.consume([STATUS], 20, own_topology=OWN)
    assert len(await take(consumer, 20, acknowledge=False)) == 20

    async def ten_left() -> bool:
        return await broker.message_count(STATUS) == (10, 1)

    await eventually(ten_left, deadline=5)


@pytest.mark.req("DC-7")
async def test_the_next_in_line_gets_what_the_first_has_not_finished(rig: Rig) -> None:
    first, second = await rig.up(), await rig.up()
    reader = await first.consume([STATUS, LOGS], 20, own_topology=OWN)

    async def is_read() -> bool:
        """A quorum queue that was just declared is there, and may still lose what is published to it."""
        return [await second.message_count(queue) for queue in (STATUS, LOGS)] == [(0, 1)] * 2

    await eventually(is_read, deadline=5)
    assert outcomes(await first.publish(sent(STATUS, *range(10)))) == [Outcome.CONFIRMED] * 10
    taken = await take(reader, 10, acknowledge=False)
    await reader.acknowledge(taken[:4])
    successor = await second.consume([STATUS, LOGS], 20, own_topology=OWN)
    arrived: list[Delivery] = []
    await holds(lambda: not arrived, during=0.3)
    await reader.close()
    await reader.acknowledge(taken[4:])  # too late: nobody hears it
    arrived = await take(successor, 6)
    assert [one.body for one in arrived] == [b"%d" % number for number in range(4, 10)]
    assert outcomes(await first.publish(sent(STATUS, 99)))
    assert [one.body for one in await take(successor, 1)] == [b"99"]


async def test_declaring_what_is_there_changes_nothing(rig: Rig) -> None:
    broker = await rig.up()
    await broker.declare(OWN)
    await broker.publish(sent(STATUS, 1))
    await broker.declare(OWN)
    assert await broker.message_count(STATUS) == (1, 0)
