"""Do messages go out, come back and count their returns alike?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from tests.conformance.broker.brokers import PATIENCE, Broker
from tests.conformance.broker.plain import CLASSIC, QUORUM, Delivery, Plain, fresh, plain
from tests.conformance.broker.tasks import connecting

KINDS = pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])
LIMITED = {**QUORUM, "x-delivery-limit": 10}


def _bodies(deliveries: list[Delivery]) -> bytes:
    return b"".join(one.body for one in deliveries)


def _numbered(client: Plain, kind: dict[str, Any], count: int) -> str:
    queue = client.queue(kind)
    client.publish(queue, *(str(number).encode() for number in range(count)))
    return queue


@KINDS
def test_prefetch_limits_what_is_out(client: Plain, kind: dict[str, Any]) -> None:
    queue = _numbered(client, kind, 5)
    inbox = client.subscribe(queue, prefetch=2)
    client.until(lambda: len(inbox) == 2)
    assert client.depth(queue) == 3
    client.channel.basic_ack(inbox[0].tag)
    client.until(lambda: len(inbox) == 3)
    assert client.depth(queue) == 2
    assert _bodies(inbox) == b"012"


def test_a_new_prefetch_is_for_new_consumers(client: Plain) -> None:
    queue = _numbered(client, QUORUM, 9)
    inbox = client.subscribe(queue, prefetch=2)
    client.until(lambda: len(inbox) == 2)
    client.channel.basic_qos(prefetch_count=5)
    assert client.depth(queue) == 7
    second = client.subscribe(queue, prefetch=5)
    client.until(lambda: len(second) == 5)
    assert (len(inbox), client.depth(queue)) == (2, 2)


def test_a_consumer_without_acks_gets_everything(client: Plain) -> None:
    queue = _numbered(client, QUORUM, 5)
    got: list[bytes] = []
    client.channel.basic_qos(prefetch_count=1)
    client.channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    client.until(lambda: len(got) == 5)
    assert client.depth(queue) == 0


def test_ack_of_several(client: Plain) -> None:
    queue = _numbered(client, QUORUM, 5)
    inbox = client.subscribe(queue, prefetch=3)
    client.until(lambda: len(inbox) == 3)
    client.channel.basic_ack(inbox[1].tag, multiple=True)
    client.until(lambda: len(inbox) == 5)
    client.channel.basic_ack(0, multiple=True)
    client.channel.close()
    client.channel = client.connection.channel()
    assert client.depth(queue) == 0


@KINDS
def test_consumers_take_turns(client: Plain, kind: dict[str, Any]) -> None:
    queue = client.queue(kind)
    inboxes = [client.subscribe(queue, 10, client.connection.channel()) for _ in range(3)]
    client.publish(queue, *(b"x" for _ in range(9)))
    client.until(lambda: sum(map(len, inboxes)) == 9)
    assert [len(inbox) for inbox in inboxes] == [3, 3, 3]


@KINDS
def test_the_first_delivery_is_not_marked_and_later_ones_are(client: Plain, kind: dict[str, Any]) -> None:
    queue = _numbered(client, {**kind, **({"x-delivery-limit": 10} if kind is QUORUM else {})}, 1)
    inbox = client.subscribe(queue, prefetch=1)
    for expected in range(3):
        client.until(lambda n=expected: len(inbox) == n + 1)  # type: ignore[misc]
        got = inbox[expected]
        assert got.redelivered == (expected > 0)
        counted = kind is QUORUM and expected > 0
        assert got.headers == ({"x-delivery-count": expected} if counted else {})
        client.channel.basic_nack(got.tag)


def test_the_count_leaves_other_headers_alone(client: Plain) -> None:
    queue = client.queue(LIMITED)
    headers = {"i": 2**40, "n": -1, "b": True, "none": None, "s": "ü", "l": [1, "a", {"z": 1}], "bytes": b"\xff"}
    client.publish(queue, b"1", headers=headers, priority=3, timestamp=123, app_id="a", type="t", reply_to="r")
    client.channel.basic_nack(client.get(queue).tag)
    got = client.get(queue)
    assert got.headers == {**headers, "x-delivery-count": 1}
    rest = (got.properties.priority, got.properties.timestamp, got.properties.app_id, got.properties.type)
    assert (*rest, got.properties.reply_to) == (3, 123, "a", "t", "r")


def test_the_default_delivery_limit(broker: Broker, client: Plain) -> None:
    limit = broker.features.default_delivery_limit
    dead = client.queue(QUORUM)
    queue = client.queue({**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    client.publish(queue, b"poison")
    for expected in range(21):
        got = client.get(queue)
        assert got.returns == expected
        client.channel.basic_nack(got.tag)
    survivor = client.get(queue if limit is None else dead)
    assert survivor.returns == (21 if limit is None else 0)


Return = Callable[[Plain, list[Delivery]], object]


def _nack_upto_third(client: Plain, held: list[Delivery]) -> None:
    client.channel.basic_nack(held[2].tag, multiple=True)


def _nack_backwards(client: Plain, held: list[Delivery]) -> None:
    for one in reversed(held):
        client.channel.basic_nack(one.tag)


def _ack_second_and_close(client: Plain, held: list[Delivery]) -> None:
    client.channel.basic_ack(held[1].tag)
    client.channel.close()


RETURNS: dict[str, tuple[Return, dict[str, Any], bytes]] = {
    "nack of several, classic": (_nack_upto_third, CLASSIC, b"0124567"),
    "nack of several, quorum": (_nack_upto_third, LIMITED, b"0124567"),
    "nack backwards, classic": (_nack_backwards, CLASSIC, b"01234567"),
    "nack backwards, quorum": (_nack_backwards, LIMITED, b"32104567"),
    "close, classic": (_ack_second_and_close, CLASSIC, b"0234567"),
    "close, quorum": (_ack_second_and_close, LIMITED, b"0234567"),
    "close, quorum without limit": (_ack_second_and_close, QUORUM, b"0234567"),
}


def _order_after(client: Plain, kind: dict[str, Any], give_back: Return, count: int) -> bytes:
    """Eight messages, four of them held by a consumer that leaves, some given back: in which order are they?"""
    queue = _numbered(client, kind, 8)
    reader, client.channel = client.channel, client.connection.channel()
    client.channel.basic_qos(prefetch_count=4)
    held = client.subscribe(queue, prefetch=4)
    client.until(lambda: len(held) == 4)
    client.channel.basic_cancel(client.channel.consumer_tags[0])
    give_back(client, held)
    client.channel = reader
    client.until(lambda: client.depth(queue) == count)
    return b"".join(client.get(queue, ack=True).body for _ in range(count))


@pytest.mark.parametrize("case", RETURNS)
def test_messages_come_back_in_their_place(client: Plain, case: str) -> None:
    give_back, kind, expected = RETURNS[case]
    assert _order_after(client, kind, give_back, len(expected)) == expected


def test_nacked_messages_of_a_quorum_queue_without_its_own_limit(broker: Broker, client: Plain) -> None:
    expected = b"0124567" if broker.features.nack_keeps_place_without_limit else b"4567012"
    assert _order_after(client, QUORUM, _nack_upto_third, 7) == expected


def test_a_cancelled_consumer_keeps_what_it_holds(client: Plain) -> None:
    queue = _numbered(client, QUORUM, 3)
    inbox = client.subscribe(queue, prefetch=1)
    client.until(lambda: len(inbox) == 1)
    client.leave(client.channel)
    client.settle()
    assert client.depth(queue) == 2
    client.channel.basic_ack(inbox[0].tag)
    client.settle()
    assert client.channel.is_open
    assert len(inbox) == 1


def test_recover_gives_everything_back(client: Plain) -> None:
    queue = _numbered(client, LIMITED, 2)
    client.get(queue)
    client.get(queue)
    client.channel.basic_recover(requeue=True)
    client.until(lambda: client.depth(queue) == 2)
    got = client.get(queue)
    assert (got.body, got.redelivered) == (b"0", True)


@KINDS
def test_a_cut_connection_gives_its_messages_back(broker: Broker, client: Plain, kind: dict[str, Any]) -> None:
    queue = _numbered(client, kind, 4)
    doomed = Plain(broker.cut_url)
    held = doomed.subscribe(queue, prefetch=3)
    doomed.until(lambda: len(held) == 3)
    doomed.channel.basic_ack(held[0].tag)
    doomed.settle()
    broker.cut()
    client.until(lambda: client.depth(queue) == 3)
    got = [client.get(queue, ack=True) for _ in range(3)]
    assert [(one.body, one.redelivered) for one in got] == [(b"1", True), (b"2", True), (b"3", True)]
    doomed.until_lost()


async def test_aio_pika_gets_a_message_again_after_a_cut(broker: Broker) -> None:
    queue = fresh()
    first: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    async with connecting() as connect:
        connection, doomed = await connect(broker.url), await connect(broker.cut_url)
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=dict(QUORUM))
        await channel.default_exchange.publish(aio_pika.Message(b"again"), queue)
        lost = asyncio.Event()
        doomed.close_callbacks.add(lambda *_: lost.set())
        doomed_channel = await doomed.channel()
        await (await doomed_channel.get_queue(queue)).consume(first.put)
        assert not (await asyncio.wait_for(first.get(), PATIENCE)).redelivered
        broker.cut()
        await asyncio.wait_for(lost.wait(), PATIENCE)
        second: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await (await channel.get_queue(queue)).consume(second.put)
        message = await asyncio.wait_for(second.get(), PATIENCE)
        assert (message.redelivered, message.headers) == (True, {"x-delivery-count": 1})
        await message.ack()


async def test_aio_pika_prefetch_under_load(broker: Broker) -> None:
    """A hundred messages through a window of seven: never more than that are out."""
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel()
        queue = await channel.declare_queue(fresh(), durable=True, arguments=dict(QUORUM))
        await channel.set_qos(prefetch_count=7)
        out, most, done = 0, 0, asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: AbstractIncomingMessage) -> None:
            nonlocal out, most
            out += 1
            most = max(most, out)
            await asyncio.sleep(0)
            out -= 1
            seen.append(message.body)
            await message.ack()
            if len(seen) == 100:
                done.set()

        await queue.consume(handle)
        publish = channel.default_exchange.publish
        await asyncio.gather(*(publish(aio_pika.Message(str(n).encode()), queue.name) for n in range(100)))
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert most <= 7
        assert len(set(seen)) == 100


def test_messages_survive_for_another_connection(broker: Broker, client: Plain) -> None:
    queue = client.queue(QUORUM)
    with plain(broker.url) as other:
        other.publish(queue, b"1")
    assert client.get(queue, ack=True).body == b"1"
