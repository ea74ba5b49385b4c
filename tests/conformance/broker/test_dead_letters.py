"""Does a dead message reach its queue's dead letters, and is the same written on it?"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.conformance.broker.brokers import Broker
from tests.conformance.broker.plain import CLASSIC, QUORUM, Delivery, Plain, fresh

KINDS = pytest.mark.parametrize("kind", [QUORUM, CLASSIC], ids=["quorum", "classic"])


def _pair(client: Plain, kind: dict[str, Any], **arguments: Any) -> tuple[str, str]:
    """A queue, and the queue of its dead letters."""
    dead = client.queue(QUORUM)
    more = {name.replace("_", "-"): value for name, value in arguments.items()}
    target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    return client.queue({**kind, **target, **more}), dead


def _deaths(letter: Delivery) -> list[dict[str, Any]]:
    """`x-death` without the times, which are checked here."""
    deaths = []
    for death in letter.headers["x-death"]:
        rest = dict(death)
        assert isinstance(rest.pop("time"), datetime)
        deaths.append(rest)
    return deaths


def _death(queue: str, reason: str, count: int = 1) -> dict[str, Any]:
    return {"queue": queue, "reason": reason, "count": count, "exchange": "", "routing-keys": [queue]}


def _check_summaries(broker: Broker, letter: Delivery, first: tuple[str, str], last: tuple[str, str]) -> None:
    keys = ("x-{}-death-queue", "x-{}-death-reason", "x-{}-death-exchange")
    assert tuple(letter.headers[key.format("first")] for key in keys) == (*first, "")
    told = tuple(letter.headers.get(key.format("last")) for key in keys)
    assert told == ((*last, "") if broker.features.last_death_headers else (None, None, None))


@KINDS
def test_rejected(broker: Broker, client: Plain, kind: dict[str, Any]) -> None:
    queue, dead = _pair(client, kind)
    client.publish(queue, b"body", message_id="m1", headers={"k": "v"}, delivery_mode=2, correlation_id="c1")
    client.channel.basic_reject(client.get(queue).tag, requeue=False)
    letter = client.get(dead)
    assert _deaths(letter) == [_death(queue, "rejected")]
    _check_summaries(broker, letter, (queue, "rejected"), (queue, "rejected"))
    assert (letter.body, letter.exchange, letter.routing_key, letter.redelivered) == (b"body", "", dead, False)
    assert (letter.properties.message_id, letter.properties.correlation_id) == ("m1", "c1")
    assert letter.headers["k"] == "v"


@KINDS
def test_expired(broker: Broker, client: Plain, kind: dict[str, Any]) -> None:
    queue, dead = _pair(client, kind, **{"x-message-ttl": 20})
    client.publish(queue, b"late")
    letter = client.get(dead)
    assert _deaths(letter) == [_death(queue, "expired")]
    _check_summaries(broker, letter, (queue, "expired"), (queue, "expired"))


@KINDS
def test_expired_by_its_own_time(client: Plain, kind: dict[str, Any]) -> None:
    queue, dead = _pair(client, kind)
    client.publish(queue, b"late", expiration="20")
    letter = client.get(dead)
    assert _deaths(letter) == [{**_death(queue, "expired"), "original-expiration": "20"}]
    assert letter.properties.expiration is None


@KINDS
def test_too_many(client: Plain, kind: dict[str, Any]) -> None:
    queue, dead = _pair(client, kind, **{"x-max-length": 1})
    client.publish(queue, b"old", b"new")
    letter = client.get(dead)
    assert letter.body == b"old"
    assert _deaths(letter) == [_death(queue, "maxlen")]


def test_delivery_limit(broker: Broker, client: Plain) -> None:
    queue, dead = _pair(client, QUORUM, **{"x-delivery-limit": 2})
    client.publish(queue, b"poison")
    for expected in range(3):
        got = client.get(queue)
        assert (got.returns, got.redelivered) == (expected, expected > 0)
        client.channel.basic_nack(got.tag)
    letter = client.get(dead)
    assert _deaths(letter) == [_death(queue, "delivery_limit")]
    _check_summaries(broker, letter, (queue, "delivery_limit"), (queue, "delivery_limit"))
    assert letter.returns == 0


def test_the_count_goes_on_when_a_message_dies_again(broker: Broker, client: Plain) -> None:
    queue, dead = fresh(), fresh()
    for here, there in ((queue, dead), (dead, queue)):
        client.queue({**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": there}, name=here)
    client.publish(queue, b"ping pong")
    for here in (queue, dead, queue, dead):
        client.channel.basic_reject(client.get(here).tag, requeue=False)
    letter = client.get(queue)
    assert _deaths(letter) == [_death(dead, "rejected", 2), _death(queue, "rejected", 2)]
    _check_summaries(broker, letter, (queue, "rejected"), (dead, "rejected"))


def test_the_routing_key_is_kept_where_the_queue_names_none(client: Plain) -> None:
    exchange, dead = fresh("x"), client.queue(QUORUM)
    client.channel.exchange_declare(exchange, "direct", durable=True)
    queue = client.queue({**QUORUM, "x-dead-letter-exchange": exchange})
    client.channel.queue_bind(dead, exchange, queue)
    client.publish(queue, b"1")
    client.channel.basic_reject(client.get(queue).tag, requeue=False)
    letter = client.get(dead)
    assert (letter.exchange, letter.routing_key) == (exchange, queue)


def test_dead_letters_without_queue_go_to_the_alternate_exchange(client: Plain) -> None:
    """The product's own topology: whatever dies is kept, even when its dead queue is missing."""
    unrouted, dead = fresh("x"), fresh("x")
    client.channel.exchange_declare(unrouted, "fanout", durable=True)
    client.channel.exchange_declare(dead, "direct", durable=True, arguments={"alternate-exchange": unrouted})
    kept = client.queue(QUORUM)
    client.channel.queue_bind(kept, unrouted)
    name = fresh()
    queue = client.queue({**QUORUM, "x-dead-letter-exchange": dead, "x-dead-letter-routing-key": name}, name=name)
    client.publish(queue, b"1")
    client.channel.basic_reject(client.get(queue).tag, requeue=False)
    assert client.get(kept).headers["x-first-death-queue"] == queue


@KINDS
def test_without_dead_letters_a_rejected_message_is_gone(client: Plain, kind: dict[str, Any]) -> None:
    for arguments in (kind, {**kind, "x-dead-letter-exchange": "missing"}):
        queue = client.queue(arguments)
        client.publish(queue, b"1", b"2")
        client.channel.basic_reject(client.get(queue).tag, requeue=False)
        got = client.get(queue)
        assert (got.body, got.redelivered) == (b"2", False)


def test_a_circle_without_reject_ends(client: Plain) -> None:
    queue, end = fresh(), client.queue()
    other = fresh()
    for here, there in ((queue, other), (other, queue)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": there, "x-message-ttl": 20}
        client.queue(arguments, name=here)
    client.publish(queue, b"round")
    client.until(lambda: client.depth(queue) + client.depth(other) == 0)
    client.publish(end, b"the broker lives")
    assert client.depth(queue) + client.depth(other) == 0


def test_forged_headers_do_no_harm(client: Plain) -> None:
    queue, dead = _pair(client, QUORUM)
    client.publish(queue, b"1", headers={"x-death": "garbage", "x-first-death-queue": 7})
    client.channel.basic_reject(client.get(queue).tag, requeue=False)
    assert _deaths(client.get(dead)) == [_death(queue, "rejected")]
