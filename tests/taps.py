"""What went over the wire, and what is left in the queues?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

COMMANDS, EVENTS = "orchestrator.commands", "orchestrator.events"
QUEUE = "tap"


@dataclass(frozen=True)
class Seen:
    """One copy of a message as the broker took it. `body` is empty where it is no JSON object."""

    exchange: str
    routing_key: str
    message_id: str
    correlation_id: str
    body: dict[str, Any]


class Tap:
    """A queue that gets a copy of every command and event of a virtual host, from now on and in order.

    Declares the two exchanges as the contract says, so that it can be there before the first node. With it no message
    is unroutable any more.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: list[Seen] = []
        with channel(url) as ours:
            ours.exchange_declare(COMMANDS, "topic", durable=True)
            ours.exchange_declare(
                EVENTS, "topic", durable=True, arguments={"alternate-exchange": "orchestrator.unrouted"}
            )
            ours.queue_declare(QUEUE, durable=True)
            for exchange in (COMMANDS, EVENTS):
                ours.queue_bind(QUEUE, exchange, "#")

    def read(self) -> list[Seen]:
        """Everything so far, in the order in which the broker took it."""
        self._seen += taken(self._url, QUEUE)
        return list(self._seen)


@contextmanager
def channel(url: str) -> Iterator[Any]:
    """A channel of plain pika."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def ready(url: str, queues: Iterable[str]) -> dict[str, int]:
    """How many messages are ready in each of the queues; those that do not exist are left out."""
    found: dict[str, int] = {}
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        for queue in queues:
            try:
                declared = connection.channel().queue_declare(queue, passive=True)
            except ChannelClosedByBroker:
                continue
            found[queue] = declared.method.message_count
    finally:
        connection.close()
    return found


def taken(url: str, queue: str) -> list[Seen]:
    """The messages of a queue, which is empty afterwards."""
    found = []
    with channel(url) as ours:
        while (got := ours.basic_get(queue, auto_ack=True))[0] is not None:
            method, properties, body = got
            found.append(_seen(method, properties, body))
    return found


def _seen(method: Any, properties: Any, body: bytes) -> Seen:
    return Seen(
        method.exchange,
        method.routing_key,
        properties.message_id or "",
        properties.correlation_id or "",
        _object(body),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
