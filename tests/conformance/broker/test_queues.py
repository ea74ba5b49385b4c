"""Do declaring, counting, purging, deleting and owning queues work alike?"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest

from tests.conformance.broker.brokers import Broker
from tests.conformance.broker.plain import CLASSIC, QUORUM, Plain, Refusal, fresh, plain, refusal

KINDS = pytest.mark.parametrize("arguments", [QUORUM, CLASSIC], ids=["quorum", "classic"])


@KINDS
def test_a_passive_declare_counts_messages_and_consumers(client: Plain, arguments: dict[str, str]) -> None:
    queue = client.queue(arguments)
    client.publish(queue, b"1", b"2", b"3")
    assert (client.depth(queue), client.consumers(queue)) == (3, 0)
    inbox = client.subscribe(queue, prefetch=1)
    client.until(lambda: len(inbox) == 1)
    assert (client.depth(queue), client.consumers(queue)) == (2, 1)


@KINDS
def test_declaring_again_changes_nothing(client: Plain, arguments: dict[str, str]) -> None:
    queue = client.queue(arguments)
    client.publish(queue, b"1")
    assert client.queue(arguments, name=queue) == queue
    assert client.depth(queue) == 1


@KINDS
def test_purge_counts_what_was_ready_and_leaves_what_is_out(client: Plain, arguments: dict[str, str]) -> None:
    queue = client.queue(arguments)
    client.publish(queue, b"1", b"2", b"3")
    held = client.get(queue)
    assert client.channel.queue_purge(queue).method.message_count == 2
    client.channel.basic_nack(held.tag)
    assert client.get(queue).body == b"1"


def test_delete_counts_what_was_ready(client: Plain) -> None:
    queue = client.queue()
    client.publish(queue, b"1", b"2", b"3")
    client.get(queue)
    assert client.channel.queue_delete(queue).method.message_count == 2
    assert client.channel.queue_delete(queue).method.message_count == 0


@KINDS
def test_acks_and_nacks_after_the_queue_is_gone_are_no_error(client: Plain, arguments: dict[str, str]) -> None:
    queue = client.queue(arguments)
    client.publish(queue, b"1", b"2")
    first, second = client.get(queue), client.get(queue)
    client.channel.queue_delete(queue)
    client.channel.basic_ack(first.tag)
    client.channel.basic_nack(second.tag)
    client.settle()
    assert client.channel.is_open


@KINDS
def test_deleting_a_queue_cancels_its_consumers(client: Plain, arguments: dict[str, str]) -> None:
    queue = client.queue(arguments)
    cancelled: list[str] = []
    client.channel.add_on_cancel_callback(lambda method: cancelled.append(method.method.consumer_tag))
    tag = client.channel.basic_consume(queue, lambda *_: None)
    client.connection.channel().queue_delete(queue)
    client.until(lambda: cancelled == [tag])
    assert client.channel.is_open


def test_the_server_names_a_queue(client: Plain) -> None:
    first, second = (client.channel.queue_declare("", exclusive=True).method.queue for _ in range(2))
    assert first.startswith("amq.gen-")
    assert first != second


def test_the_empty_name_means_the_queue_declared_last(client: Plain) -> None:
    queue = client.queue()
    client.publish(queue, b"1")
    assert client.channel.queue_purge("").method.message_count == 1


def test_names_may_hold_any_character(client: Plain) -> None:
    queue = client.queue(name=f"schön 🎉 {fresh()}")
    client.publish(queue, b"1")
    got = client.get(queue, ack=True)
    assert got.routing_key == queue


OTHERS_ACTS: dict[str, Callable[[Plain, str], object]] = {
    "passive": lambda c, q: c.channel.queue_declare(q, passive=True),
    "declare": lambda c, q: c.channel.queue_declare(q, exclusive=True),
    "bind": lambda c, q: c.channel.queue_bind(q, "amq.topic", "a"),
    "consume": lambda c, q: c.channel.basic_consume(q, lambda *_: None),
    "get": lambda c, q: c.channel.basic_get(q),
    "purge": lambda c, q: c.channel.queue_purge(q),
    "delete": lambda c, q: c.channel.queue_delete(q),
}


@pytest.mark.parametrize("act", OTHERS_ACTS)
def test_an_exclusive_queue_is_closed_to_other_connections(broker: Broker, client: Plain, act: str) -> None:
    queue = fresh()
    client.channel.queue_declare(queue, exclusive=True)
    expected: Refusal = ("channel", 405)
    assert refusal(broker.url, lambda c: OTHERS_ACTS[act](c, queue)) == expected


def test_everybody_may_publish_to_an_exclusive_queue(broker: Broker, client: Plain) -> None:
    queue = fresh()
    client.channel.queue_declare(queue, exclusive=True)
    with plain(broker.url) as other:
        other.publish(queue, b"knock")
    assert client.get(queue, ack=True).body == b"knock"


@pytest.mark.parametrize("cut", [False, True], ids=["closed", "cut"])
def test_an_exclusive_queue_goes_with_its_connection(broker: Broker, client: Plain, cut: bool) -> None:
    queue = fresh()
    owner = Plain(broker.cut_url)
    owner.channel.queue_declare(queue, exclusive=True)
    if cut:
        broker.cut()
        owner.until_lost()
    else:
        owner.connection.close()
    client.until(lambda: _is_gone(client, queue))


def _is_gone(client: Plain, queue: str) -> bool:
    channel = client.connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as e:
        return bool(e.reply_code == 404)
    channel.close()
    return False


@pytest.mark.parametrize("leave", ["cancel", "close"])
def test_an_auto_delete_queue_goes_with_its_last_consumer(client: Plain, leave: str) -> None:
    queue = fresh()
    client.channel.queue_declare(queue, durable=True, auto_delete=True)
    assert not _is_gone(client, queue)
    channel = client.connection.channel()
    tag = channel.basic_consume(queue, lambda *_: None)
    if leave == "cancel":
        channel.basic_cancel(tag)
    else:
        channel.close()
    client.until(lambda: _is_gone(client, queue))


def test_a_full_queue_drops_its_oldest(client: Plain) -> None:
    queue = client.queue({**QUORUM, "x-max-length": 2})
    client.publish(queue, b"1", b"2", b"3")
    assert [client.get(queue, ack=True).body for _ in range(2)] == [b"2", b"3"]
