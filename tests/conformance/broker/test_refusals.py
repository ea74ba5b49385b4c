"""Does each mistake of a client get the same code, and end the same thing, on every broker?"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.conformance.broker.brokers import Broker
from tests.conformance.broker.plain import QUORUM, Plain, Properties, Refusal, frame, fresh, plain, refusal, spec

Act = Callable[[Plain], object]

NOT_FOUND: Refusal = ("channel", 404)
ACCESS_REFUSED: Refusal = ("channel", 403)
LOCKED: Refusal = ("channel", 405)
PRECONDITION_FAILED: Refusal = ("channel", 406)
NOT_IMPLEMENTED: Refusal = ("connection", 540)
ACCEPTED: Refusal = ("accepted", 0)


def declares(**kwargs: Any) -> Act:
    return lambda c: c.channel.queue_declare(fresh(), **{"durable": True, **kwargs})


def declares_twice(first: dict[str, Any], second: dict[str, Any]) -> Act:
    def act(c: Plain) -> None:
        name = fresh()
        c.channel.queue_declare(name, **{"durable": True, **first})
        c.channel.queue_declare(name, **{"durable": True, **second})

    return act


def exchange_twice(first: dict[str, Any], second: dict[str, Any]) -> Act:
    def act(c: Plain) -> None:
        name = fresh("x")
        c.channel.exchange_declare(name, **{"exchange_type": "topic", "durable": True, **first})
        c.channel.exchange_declare(name, **{"exchange_type": "topic", "durable": True, **second})

    return act


def on_queue(act: Callable[[Plain, str], object], arguments: dict[str, Any] | None = None) -> Act:
    return lambda c: act(c, c.queue(arguments))


def sends(method: Any, content: tuple[Any, bytes] | None = None) -> Act:
    """Passes by the checks that pika makes itself."""
    return lambda c: c.channel._impl._send_method(method, content)


def sends_frames(*make: Callable[[int], Any]) -> Act:
    def act(c: Plain) -> None:
        for one in make:
            c.connection._impl._send_frame(one(c.channel.channel_number))

    return act


def sends_bytes(data: bytes) -> Act:
    return lambda c: c.connection._impl._output_marshaled_frames([data])


def begins_publish(number: int) -> Any:
    return frame.Method(number, spec.Basic.Publish(exchange="", routing_key="nowhere"))


def fetch_both_then_ack_beyond(c: Plain, queue: str) -> None:
    c.publish(queue, b"1", b"2")
    c.get(queue)
    c.get(queue)
    c.channel.basic_ack(7, multiple=True)


def ack_twice(c: Plain, queue: str) -> None:
    c.publish(queue, b"1")
    tag = c.get(queue).tag
    c.channel.basic_ack(tag)
    c.channel.basic_ack(tag)


def consume_twice_with_one_tag(c: Plain, queue: str) -> None:
    for _ in range(2):
        c.channel._impl._send_method(spec.Basic.Consume(queue=queue, consumer_tag="same"))


def delete_used_exchange(c: Plain, queue: str) -> None:
    exchange = fresh("x")
    c.channel.exchange_declare(exchange, "topic", durable=True)
    c.channel.queue_bind(queue, exchange, "a")
    c.channel.exchange_delete(exchange, if_unused=True)


def delete_used_queue(c: Plain, queue: str) -> None:
    c.subscribe(queue)
    c.channel.queue_delete(queue, if_unused=True)


def delete_full_queue(c: Plain, queue: str) -> None:
    c.publish(queue, b"1")
    c.channel.queue_delete(queue, if_empty=True)


def consume_exclusively_then_again(c: Plain, queue: str) -> None:
    c.channel.basic_consume(queue, _never, exclusive=True)
    c.channel.basic_consume(queue, _never)


def consume_then_exclusively(c: Plain, queue: str) -> None:
    c.channel.basic_consume(queue, _never)
    c.channel.basic_consume(queue, _never, exclusive=True)


def publish_to_internal(c: Plain) -> None:
    exchange = fresh("x")
    c.channel.exchange_declare(exchange, "topic", internal=True)
    c.channel.basic_publish(exchange, "a", b"")


def _never(*_: object) -> None:
    raise AssertionError("nothing was to be delivered")


SAC_QUORUM = {**QUORUM, "x-single-active-consumer": True}

CASES: dict[str, tuple[Act, Refusal]] = {
    # what is not there
    "passive declare of a missing queue": (lambda c: c.channel.queue_declare("none", passive=True), NOT_FOUND),
    "passive declare of a missing exchange": (lambda c: c.channel.exchange_declare("none", passive=True), NOT_FOUND),
    "consume of a missing queue": (lambda c: c.channel.basic_consume("none", _never), NOT_FOUND),
    "get from a missing queue": (lambda c: c.channel.basic_get("none"), NOT_FOUND),
    "purge of a missing queue": (lambda c: c.channel.queue_purge("none"), NOT_FOUND),
    "bind of a missing queue": (lambda c: c.channel.queue_bind("none", "amq.topic", "a"), NOT_FOUND),
    "bind to a missing exchange": (on_queue(lambda c, q: c.channel.queue_bind(q, "none", "a")), NOT_FOUND),
    "consume without a queue's name": (lambda c: c.channel.basic_consume("", _never), NOT_FOUND),
    "publish to a missing exchange": (lambda c: c.channel.basic_publish("none", "a", b""), NOT_FOUND),
    "delete of a missing queue": (lambda c: c.channel.queue_delete("none"), ACCEPTED),
    "delete of a missing exchange": (lambda c: c.channel.exchange_delete("none"), ACCEPTED),
    "unbind of a missing queue": (lambda c: c.channel.queue_unbind("none", "amq.topic", "a"), ACCEPTED),
    "unbind of a missing binding": (on_queue(lambda c, q: c.channel.queue_unbind(q, "amq.topic", "a")), ACCEPTED),
    # what is there, but otherwise
    "queue not durable any more": (declares_twice({}, {"durable": False}), PRECONDITION_FAILED),
    "queue auto-delete now": (declares_twice({}, {"auto_delete": True}), PRECONDITION_FAILED),
    "queue of another type": (declares_twice({"arguments": QUORUM}, {}), PRECONDITION_FAILED),
    "queue with more arguments": (
        declares_twice({}, {"arguments": {"x-dead-letter-exchange": "x"}}),
        PRECONDITION_FAILED,
    ),
    "queue with the default type named": (declares_twice({}, {"arguments": {"x-queue-type": "classic"}}), ACCEPTED),
    "queue exclusive now": (declares_twice({}, {"exclusive": True}), LOCKED),
    "queue exclusive no more": (declares_twice({"exclusive": True}, {"exclusive": False}), LOCKED),
    "exchange of another type": (exchange_twice({}, {"exchange_type": "direct"}), PRECONDITION_FAILED),
    "exchange not durable any more": (exchange_twice({}, {"durable": False}), PRECONDITION_FAILED),
    "exchange with an alternate now": (
        exchange_twice({}, {"arguments": {"alternate-exchange": "a"}}),
        PRECONDITION_FAILED,
    ),
    # what cannot be declared
    "unknown queue type": (declares(arguments={"x-queue-type": "zzz"}), PRECONDITION_FAILED),
    "time to live that is no number": (declares(arguments={"x-message-ttl": "soon"}), PRECONDITION_FAILED),
    "negative time to live": (declares(arguments={"x-message-ttl": -4}), PRECONDITION_FAILED),
    "dead letter key without exchange": (declares(arguments={"x-dead-letter-routing-key": "k"}), PRECONDITION_FAILED),
    "single active consumer that is no bool": (
        declares(arguments={"x-single-active-consumer": "yes"}),
        PRECONDITION_FAILED,
    ),
    "delivery limit of a classic queue": (declares(arguments={"x-delivery-limit": 3}), PRECONDITION_FAILED),
    "quorum queue that is not durable": (declares(durable=False, arguments=QUORUM), PRECONDITION_FAILED),
    "quorum queue that is exclusive": (declares(exclusive=True, arguments=QUORUM), PRECONDITION_FAILED),
    "quorum queue that deletes itself": (declares(auto_delete=True, arguments=QUORUM), PRECONDITION_FAILED),
    "queue with a reserved name": (lambda c: c.channel.queue_declare("amq.mine", durable=True), ACCESS_REFUSED),
    "exchange with a reserved name": (lambda c: c.channel.exchange_declare("amq.mine"), ACCESS_REFUSED),
    "predeclared exchange as it is": (
        lambda c: c.channel.exchange_declare("amq.topic", "topic", durable=True),
        ACCEPTED,
    ),
    "delete of a predeclared exchange": (lambda c: c.channel.exchange_delete("amq.topic"), ACCESS_REFUSED),
    "declare of the default exchange": (lambda c: c.channel.exchange_declare("", "direct"), ACCESS_REFUSED),
    "delete of the default exchange": (lambda c: c.channel.exchange_delete(""), ACCESS_REFUSED),
    "bind to the default exchange": (on_queue(lambda c, q: c.channel.queue_bind(q, "", "a")), ACCESS_REFUSED),
    "unknown exchange type": (lambda c: c.channel.exchange_declare(fresh("x"), "zzz"), ("connection", 503)),
    # what is in use
    "delete of an exchange in use": (on_queue(delete_used_exchange), PRECONDITION_FAILED),
    "delete of a queue in use": (on_queue(delete_used_queue), PRECONDITION_FAILED),
    "delete of a queue that is not empty": (on_queue(delete_full_queue), PRECONDITION_FAILED),
    "conditional delete of a quorum queue (empty)": (
        on_queue(lambda c, q: c.channel.queue_delete(q, if_empty=True), QUORUM),
        NOT_IMPLEMENTED,
    ),
    "conditional delete of a quorum queue (unused)": (
        on_queue(lambda c, q: c.channel.queue_delete(q, if_unused=True), QUORUM),
        NOT_IMPLEMENTED,
    ),
    "second consumer beside an exclusive one": (on_queue(consume_exclusively_then_again), ACCESS_REFUSED),
    "exclusive consumer beside another": (on_queue(consume_then_exclusively), ACCESS_REFUSED),
    "get from a single active consumer queue": (
        on_queue(lambda c, q: c.channel.basic_get(q), SAC_QUORUM),
        LOCKED,
    ),
    "one consumer tag twice": (on_queue(consume_twice_with_one_tag), ("connection", 530)),
    "cancel of an unknown consumer": (sends(spec.Basic.Cancel(consumer_tag="none", nowait=True)), ACCEPTED),
    # delivery tags
    "ack of an unknown tag": (lambda c: c.channel.basic_ack(99), PRECONDITION_FAILED),
    "ack of tag 0": (lambda c: c.channel.basic_ack(0), PRECONDITION_FAILED),
    "ack of all when there are none": (lambda c: c.channel.basic_ack(0, multiple=True), ACCEPTED),
    "nack of an unknown tag": (lambda c: c.channel.basic_nack(99), PRECONDITION_FAILED),
    "reject of an unknown tag": (lambda c: c.channel.basic_reject(99), PRECONDITION_FAILED),
    "ack up to a tag never given": (on_queue(fetch_both_then_ack_beyond), PRECONDITION_FAILED),
    "second ack": (on_queue(ack_twice), PRECONDITION_FAILED),
    # publishing
    "publish to an internal exchange": (publish_to_internal, ACCESS_REFUSED),
    "publish in another's name": (
        lambda c: c.channel.basic_publish("", "a", b"", Properties(user_id="bob")),
        PRECONDITION_FAILED,
    ),
    "expiration that is no number": (
        lambda c: c.channel.basic_publish("", "a", b"", Properties(expiration="soon")),
        PRECONDITION_FAILED,
    ),
    "publish with immediate": (
        sends(spec.Basic.Publish(exchange="", routing_key="a", immediate=True), (Properties(), b"")),
        NOT_IMPLEMENTED,
    ),
    # what no broker offers
    "prefetch in bytes": (lambda c: c.channel.basic_qos(prefetch_size=10), NOT_IMPLEMENTED),
    "flow stopped by the client": (sends(spec.Channel.Flow(False)), NOT_IMPLEMENTED),
    "recover without requeue": (sends(spec.Basic.Recover(False)), NOT_IMPLEMENTED),
    # the protocol itself
    "channel opened twice": (sends(spec.Channel.Open()), ("connection", 504)),
    "method on channel 0": (sends_frames(lambda _: frame.Method(0, spec.Basic.Ack(1))), ("connection", 504)),
    "method for servers": (sends(spec.Basic.ConsumeOk(consumer_tag="x")), ("connection", 503)),
    "content header without publish": (
        sends_frames(lambda n: frame.Header(n, 1, Properties())),
        ("connection", 505),
    ),
    "method instead of content": (sends_frames(begins_publish), ("connection", 505)),
    "body longer than announced": (
        sends_frames(
            begins_publish,
            lambda n: frame.Header(n, 1, Properties()),
            lambda n: frame.Body(n, b"xx"),
        ),
        ("connection", 505),
    ),
    "frame without its end octet": (
        sends_bytes(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\x00"),
        ("connection", 501),
    ),
    "frame of an unknown type": (sends_bytes(b"\x07\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\xce"), ("connection", 501)),
    "frame beyond the limit": (sends_bytes(b"\x03" + struct.pack(">HI", 1, 1 << 20) + bytes(100)), ("connection", 501)),
    "method cut short": (sends_bytes(b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce"), ("connection", 501)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_answered_alike(broker: Broker, case: str) -> None:
    act, expected = CASES[case]
    assert refusal(broker.url, act) == expected


def test_frames_on_a_channel_that_was_closed_end_the_connection(broker: Broker) -> None:
    def ack_after_close(c: Plain) -> None:
        second = c.connection.channel()
        second.close()
        c.connection._impl._send_method(second.channel_number, spec.Basic.Ack(1))
        c.until(lambda: False)

    assert refusal(broker.url, ack_after_close) == ("connection", 504)


def test_a_channel_more_than_agreed_on_ends_the_connection(broker: Broker) -> None:
    def open_one_too_many(c: Plain) -> None:
        for number in range(2, 5):
            c.connection._impl._send_method(number, spec.Channel.Open())
        c.until(lambda: False)

    assert refusal(f"{broker.url}?channel_max=3", open_one_too_many) == ("connection", 530)


def test_after_a_refusal_other_channels_and_connections_go_on(broker: Broker, client: Plain) -> None:
    queue = client.queue()
    other = client.connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        other.queue_declare("none", passive=True)
    assert refusal(broker.url, sends_bytes(b"\xff" * 64)) == ("connection", 501)
    client.publish(queue, b"still here")
    assert client.get(queue, ack=True).body == b"still here"
    again = client.connection.channel()
    again.queue_declare(queue, passive=True)


def test_a_message_over_the_limit_closes_the_channel(broker: Broker) -> None:
    """Only where the limit is small enough to try; the other brokers take the same message."""
    size = 16 * 1024 * 1024 + 1
    expected = PRECONDITION_FAILED if broker.features.max_message_size < size else ACCEPTED
    assert refusal(broker.url, lambda c: c.channel.basic_publish("", "nowhere", bytes(size))) == expected


def test_a_shared_queue_that_is_not_durable(broker: Broker) -> None:
    expected = ACCEPTED if broker.features.transient_shared_queues else ("connection", 541)
    assert refusal(broker.url, declares(durable=False)) == expected


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.connection.channel()._impl._send_method(spec.Tx.Select()),
        sends(spec.Exchange.Bind(destination="amq.fanout", source="amq.topic", routing_key="a")),
        declares(arguments={"x-expires": 60_000}),
        lambda c: c.channel.basic_qos(prefetch_count=1, global_qos=True),
        lambda c: c.channel.basic_publish("", "a", b"", Properties(headers={"CC": ["b"]})),
        on_queue(lambda c, q: c.channel.basic_consume(q, _never, arguments={"x-priority": 3})),
    ],
    ids=["transactions", "exchange bindings", "unknown argument", "shared prefetch", "CC", "consumer priority"],
)
def test_what_the_embedded_broker_leaves_out_it_refuses_in_words(broker: Broker, act: Act) -> None:
    expected = NOT_IMPLEMENTED if broker.features.own_refusals else ACCEPTED
    assert refusal(broker.url, act) == expected


def test_the_reply_text_is_a_sentence_that_names_the_thing(broker: Broker) -> None:
    with plain(broker.url) as c, pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        c.channel.queue_declare("lost", passive=True)
    assert caught.value.reply_text.startswith("NOT_FOUND - no queue 'lost' in vhost '")
