"""Memory queues: a queue of the memory broker, its messages, and the match of bindings."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrix.broker.port import Delivery, Outgoing, Queue


@dataclass(slots=True, eq=False)
class StoredMessage:
    """A message in a queue. `count` says how often it was requeued; `redelivered` whether it was delivered before."""

    body: bytes
    exchange: str
    routing_key: str
    message_id: str | None
    correlation_id: str | None
    type: str | None
    headers: Mapping[str, object]
    count: int = 0
    redelivered: bool = False
    sent_at: float | None = None
    reply_to: str | None = None


@dataclass(slots=True, eq=False)
class MemoryQueue:
    """A queue in memory. Before `ready_at`, nothing new is visible in it. It is deleted with the session of its
    `owner`.
    """

    declared: Queue
    ready: deque[StoredMessage] = field(default_factory=deque)
    ready_at: float = 0.0
    next_consumer: int = 0
    owner: object = None

    @property
    def single(self) -> bool:
        """Whether a single active consumer gets all messages."""
        return self.declared.arguments.get("x-single-active-consumer") is True


def stored(message: Outgoing) -> StoredMessage:
    """A message as it is enqueued."""
    return StoredMessage(
        body=message.body,
        exchange=message.exchange,
        routing_key=message.routing_key,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        type=message.type,
        headers=dict(message.headers),
        sent_at=None if message.timestamp is None else message.timestamp.timestamp(),
        reply_to=message.reply_to or None,
    )


def delivered(message: StoredMessage, queue: str, tag: int, session: int) -> Delivery:
    """A message as it is delivered."""
    return Delivery(
        body=message.body,
        queue=queue,
        exchange=message.exchange,
        routing_key=message.routing_key,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        type=message.type,
        headers=message.headers,
        redelivered=message.redelivered,
        delivery_count=message.count,
        tag=tag,
        session=session,
        sent_at=message.sent_at,
        reply_to=message.reply_to,
    )


def fits(kind: str, pattern: str, key: str) -> bool:
    """Whether an exchange of this kind routes messages with `key` to a queue that is bound by `pattern`."""
    if kind == "fanout" or pattern == key:
        return True
    return kind == "topic" and _words_fit(pattern.split("."), key.split("."))


def _words_fit(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_words_fit(pattern[1:], words[place:]) for place in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _words_fit(pattern[1:], words[1:])
