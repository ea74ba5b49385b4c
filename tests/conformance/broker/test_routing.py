"""Does a message reach the queues that it should, and does its publisher learn when it reaches none?"""

from __future__ import annotations

import asyncio

import aio_pika
import pika
import pytest
from aio_pika.exceptions import DeliveryError
from pamqp.commands import Basic

from tests.conformance.broker.brokers import Broker
from tests.conformance.broker.plain import QUORUM, Plain, fresh
from tests.conformance.broker.tasks import connecting

TOPIC = [
    ("a.b", "a.b", True),
    ("a.b", "a.c", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("*.b.*", "a.b.c", True),
    ("*", "", False),
    ("#", "", True),
    ("#", "a.b.c", True),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("#.c", "c", True),
    ("#.c", "a.b.c", True),
    ("#.c", "a.b", False),
    ("a.#.c", "a.c", True),
    ("a.#.c", "a.x.y.c", True),
    ("#.#", "a", True),
    ("a..b", "a..b", True),
    ("a.*.b", "a..b", True),
    ("cmd.*", "cmd.createGitRepo", True),
]


def _reaches(client: Plain, exchange: str, key: str) -> bool:
    try:
        client.channel.basic_publish(exchange, key, b"", mandatory=True)
    except pika.exceptions.UnroutableError:
        return False
    return True


def test_topics(client: Plain) -> None:
    wrong = []
    for pattern, key, expected in TOPIC:
        exchange = fresh("x")
        client.channel.exchange_declare(exchange, "topic")
        client.channel.queue_bind(client.queue(), exchange, pattern)
        if _reaches(client, exchange, key) != expected:
            wrong.append((pattern, key))
    assert wrong == []


def test_direct_and_fanout(client: Plain) -> None:
    direct, fanout = fresh("x"), fresh("x")
    one, two = client.queue(), client.queue()
    client.channel.exchange_declare(direct, "direct")
    client.channel.exchange_declare(fanout, "fanout")
    client.channel.queue_bind(one, direct, "a")
    client.channel.queue_bind(one, fanout, "ignored")
    client.channel.queue_bind(two, fanout)
    assert _reaches(client, direct, "a")
    assert not _reaches(client, direct, "a.b")
    assert _reaches(client, fanout, "whatever")
    assert (client.depth(one), client.depth(two)) == (2, 1)


def test_two_bindings_of_one_queue_deliver_once(client: Plain) -> None:
    exchange, queue = fresh("x"), client.queue()
    client.channel.exchange_declare(exchange, "topic")
    client.channel.queue_bind(queue, exchange, "a.*")
    client.channel.queue_bind(queue, exchange, "*.b")
    assert _reaches(client, exchange, "a.b")
    assert client.depth(queue) == 1


def test_an_unbound_queue_gets_nothing_more(client: Plain) -> None:
    exchange, queue = fresh("x"), client.queue()
    client.channel.exchange_declare(exchange, "topic")
    client.channel.queue_bind(queue, exchange, "a")
    assert _reaches(client, exchange, "a")
    client.channel.queue_unbind(queue, exchange, "a")
    assert not _reaches(client, exchange, "a")


def test_a_deleted_queue_is_not_routed_to(client: Plain) -> None:
    exchange, queue = fresh("x"), client.queue()
    client.channel.exchange_declare(exchange, "topic")
    client.channel.queue_bind(queue, exchange, "a")
    assert _reaches(client, exchange, "a")
    client.channel.queue_delete(queue)
    assert not _reaches(client, exchange, "a")
    client.queue(name=queue)
    assert not _reaches(client, exchange, "a")


def test_an_auto_delete_exchange_goes_with_its_last_binding(client: Plain) -> None:
    exchange, queue = fresh("x"), client.queue()
    client.channel.exchange_declare(exchange, "topic", auto_delete=True)
    client.channel.queue_bind(queue, exchange, "a")
    client.channel.queue_unbind(queue, exchange, "a")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        client.channel.exchange_declare(exchange, passive=True)
    assert caught.value.reply_code == 404


def test_an_alternate_exchange_takes_what_finds_no_queue(client: Plain) -> None:
    unrouted, events = fresh("x"), fresh("x")
    known, lost = client.queue(QUORUM), client.queue(QUORUM)
    client.channel.exchange_declare(unrouted, "fanout", durable=True)
    client.channel.exchange_declare(events, "topic", durable=True, arguments={"alternate-exchange": unrouted})
    client.channel.queue_bind(known, events, "evt.known")
    client.channel.queue_bind(lost, unrouted)
    assert _reaches(client, events, "evt.known")
    assert _reaches(client, events, "evt.mistyped")
    assert (client.depth(known), client.depth(lost)) == (1, 1)
    got = client.get(lost)
    assert (got.exchange, got.routing_key, got.headers.get("x-death")) == (events, "evt.mistyped", None)


def test_alternates_of_each_other_end(client: Plain) -> None:
    one, two = fresh("x"), fresh("x")
    client.channel.exchange_declare(one, "topic", arguments={"alternate-exchange": two})
    client.channel.exchange_declare(two, "topic", arguments={"alternate-exchange": one})
    assert not _reaches(client, one, "a")


async def test_a_mandatory_message_without_queue_comes_back_and_is_confirmed(broker: Broker) -> None:
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel(on_return_raises=True)
        message = aio_pika.Message(b"body", message_id="m1", headers={"k": "v"})
        with pytest.raises(DeliveryError) as caught:
            await channel.default_exchange.publish(message, "nobody")
        returned = caught.value.message
        assert returned is not None
        assert returned.header.properties.message_id == "m1"
        assert returned.body == b"body"
        assert isinstance(returned.delivery, Basic.Return)
        assert (returned.delivery.reply_code, returned.delivery.reply_text) == (312, "NO_ROUTE")


async def test_a_message_without_queue_that_is_not_mandatory_is_confirmed(broker: Broker) -> None:
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel(on_return_raises=True)
        answer = await channel.default_exchange.publish(aio_pika.Message(b""), "nobody", mandatory=False)
        assert answer is not None


async def test_many_confirms_are_in_flight_at_once(broker: Broker) -> None:
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel(on_return_raises=True)
        queue = await channel.declare_queue(fresh(), durable=True, arguments=dict(QUORUM))
        messages = [aio_pika.Message(b"x", message_id=str(n)) for n in range(200)]
        sent = [channel.default_exchange.publish(one, queue.name) for one in messages]
        lost = [
            channel.default_exchange.publish(aio_pika.Message(b"", message_id=f"lost-{n}"), "no") for n in range(20)
        ]
        outcomes = await asyncio.gather(*sent, *lost, return_exceptions=True)
        assert not any(isinstance(one, BaseException) for one in outcomes[:200])
        assert all(isinstance(one, DeliveryError) for one in outcomes[200:])
        declared = await channel.declare_queue(queue.name, passive=True)
        assert declared.declaration_result.message_count == 200


async def test_an_unknown_exchange_fails_the_confirms_in_flight(broker: Broker) -> None:
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel()
        exchange = await channel.get_exchange("none", ensure=False)
        with pytest.raises(aio_pika.exceptions.ChannelClosed):
            await exchange.publish(aio_pika.Message(b""), "a")
        again = await connection.channel()
        await again.declare_queue(exclusive=True)
