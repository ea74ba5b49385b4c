"""How does a client that knows nothing but AMQP, plain pika, talk to a broker in a test?"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.conformance.broker.brokers import PATIENCE

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}
# pika does not annotate what it generates from the protocol's definition.
spec: Any = pika.spec
frame: Any = pika.frame
Properties: Any = pika.BasicProperties
_numbers = itertools.count(1)


def fresh(prefix: str = "q") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


@dataclass(frozen=True)
class Delivery:
    """What arrived, by push or by basic.get."""

    tag: int
    body: bytes
    exchange: str
    routing_key: str
    redelivered: bool
    properties: pika.BasicProperties

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    @property
    def returns(self) -> int:
        """How often it came back. RabbitMQ 3.10 shows a zero to basic.get and nothing to consumers."""
        return int(self.headers.get("x-delivery-count", 0))


class Plain:
    """One connection with one channel in confirm mode."""

    def __init__(self, url: str) -> None:
        parameters = pika.URLParameters(url)
        parameters.blocked_connection_timeout = PATIENCE
        self.connection = pika.BlockingConnection(parameters)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def queue(self, arguments: dict[str, Any] | None = None, name: str = "") -> str:
        """A durable queue."""
        name = name or fresh()
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    def publish(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", queue, body, Properties(**properties), mandatory=True)

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def consumers(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.consumer_count)

    def get(self, queue: str, *, ack: bool = False) -> Delivery:
        """The next message, waited for."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            method, properties, body = self.channel.basic_get(queue, auto_ack=ack)
            if method is not None:
                return _delivery(method, properties, body)
            self.connection.process_data_events(0.01)
        raise AssertionError(f"no message in {queue} within {PATIENCE} s")

    def subscribe(self, queue: str, prefetch: int = 0, channel: BlockingChannel | None = None) -> list[Delivery]:
        """A list that fills while the connection is served."""
        inbox: list[Delivery] = []
        channel = channel or self.channel
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(queue, lambda _ch, method, props, body: inbox.append(_delivery(method, props, body)))
        return inbox

    @staticmethod
    def leave(channel: BlockingChannel) -> None:
        """Cancel the channel's consumer and keep what it holds, which pika's own cancel gives back."""
        channel._impl._send_method(spec.Basic.Cancel(consumer_tag=channel.consumer_tags[0], nowait=True))

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve the connection until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "the broker did not do it in time"
            self.connection.process_data_events(0.02)

    def until_lost(self) -> None:
        """Serve the connection until it notices that it is cut."""
        try:
            self.until(lambda: False)
        except AMQPError:
            return

    def settle(self) -> None:
        """After this, what the broker had to say before is here."""
        self.channel.basic_qos(prefetch_count=0)
        self.connection.process_data_events(0.02)


def _delivery(method: Any, properties: Any, body: Any) -> Delivery:
    where = method.exchange, method.routing_key
    return Delivery(method.delivery_tag, body, *where, method.redelivered, properties)


@contextmanager
def plain(url: str) -> Iterator[Plain]:
    client = Plain(url)
    try:
        yield client
    finally:
        if client.connection.is_open:
            client.connection.close()


Refusal = tuple[str, int]


def refusal(url: str, act: Callable[[Plain], object]) -> Refusal:
    """What `act` on a fresh connection leads to: ("channel", 404), ("connection", 540) or ("accepted", 0)."""
    client = Plain(url)
    try:
        act(client)
        client.settle()
    except ChannelClosedByBroker as e:
        return "channel", e.reply_code
    except ConnectionClosedByBroker as e:
        return "connection", e.reply_code
    finally:
        _leave(client)
    return "accepted", 0


def _leave(client: Plain) -> None:
    try:
        if client.connection.is_open:
            client.connection.close()
    except AMQPError:
        pass  # the broker's own close was on its way
