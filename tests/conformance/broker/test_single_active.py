"""Does exactly one consumer at a time get a queue's messages, and does the next take over in order?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.conformance.broker.brokers import PATIENCE, Broker
from tests.conformance.broker.plain import QUORUM, Plain, fresh
from tests.conformance.broker.tasks import connecting

SAC: dict[str, Any] = {**QUORUM, "x-single-active-consumer": True}
Inbox = asyncio.Queue[AbstractIncomingMessage]


async def _subscribe(channel: AbstractChannel, queue: str, prefetch: int = 1) -> Inbox:
    inbox: Inbox = asyncio.Queue()
    await channel.set_qos(prefetch_count=prefetch)
    await (await channel.get_queue(queue)).consume(inbox.put)
    return inbox


async def _next(inbox: Inbox) -> AbstractIncomingMessage:
    return await asyncio.wait_for(inbox.get(), PATIENCE)


async def _publish(channel: AbstractChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body), queue)


Leave = Callable[[Broker, AbstractChannel], Awaitable[object]]


async def _close_channel(_broker: Broker, channel: AbstractChannel) -> None:
    await channel.close()


async def _cut(broker: Broker, _channel: AbstractChannel) -> None:
    await asyncio.to_thread(broker.cut)


@pytest.mark.parametrize("leave", [_close_channel, _cut], ids=["channel closed", "connection cut"])
async def test_the_next_in_line_takes_over(broker: Broker, leave: Leave) -> None:
    queue = fresh()
    async with connecting() as connect:
        connection, doomed = await connect(broker.url), await connect(broker.cut_url)
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=dict(SAC))
        predecessor = await doomed.channel()
        first = await _subscribe(predecessor, queue, prefetch=2)
        second = await _subscribe(await connection.channel(), queue)
        third = await _subscribe(await connection.channel(), queue)
        await _publish(channel, queue, b"1", b"2", b"3", b"4")
        await (await _next(first)).ack()
        assert [(await _next(first)).body for _ in range(2)] == [b"2", b"3"]  # so the ack has arrived
        await leave(broker, predecessor)
        for expected in (b"2", b"3", b"4"):
            message = await _next(second)
            assert message.body == expected
            await message.ack()
        assert second.empty()
        assert third.empty()


async def test_only_the_active_one_gets_messages(broker: Broker) -> None:
    queue = fresh()
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=dict(SAC))
        inboxes = [await _subscribe(await connection.channel(), queue, prefetch=10) for _ in range(3)]
        await _publish(channel, queue, *(str(n).encode() for n in range(8)))
        assert [(await _next(inboxes[0])).body for _ in range(8)] == [str(n).encode() for n in range(8)]
        assert inboxes[1].empty()
        assert inboxes[2].empty()


async def test_a_nack_does_not_hand_over(broker: Broker) -> None:
    queue = fresh()
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=dict(SAC))
        first = await _subscribe(await connection.channel(), queue)
        second = await _subscribe(await connection.channel(), queue)
        await _publish(channel, queue, b"token")
        await (await _next(first)).nack(requeue=True)
        again = await _next(first)
        assert (again.body, again.redelivered) == (b"token", True)
        assert second.empty()


def test_a_cancelled_one_makes_way_at_once(client: Plain) -> None:
    """It keeps what it holds: so two work at a time, which is why the product closes the channel instead."""
    queue = client.queue(SAC)
    one, two = client.connection.channel(), client.connection.channel()
    first, second = client.subscribe(queue, 1, one), client.subscribe(queue, 1, two)
    client.publish(queue, b"1", b"2")
    client.until(lambda: len(first) == 1)
    assert second == []
    client.leave(one)
    client.until(lambda: len(second) == 1)
    assert (first[0].body, second[0].body) == (b"1", b"2")


def test_only_the_active_one_is_counted(client: Plain) -> None:
    """So a count of one does not tell whether a successor waits."""
    queue = client.queue(SAC)
    assert client.consumers(queue) == 0
    for _ in range(3):
        client.subscribe(queue, 1, client.connection.channel())
    assert client.consumers(queue) == 1
