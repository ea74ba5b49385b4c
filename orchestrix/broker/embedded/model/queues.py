"""Embedded queue: gives messages to its consumers, and requeues, expires, drops or dead-letters them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from orchestrix import clock

if TYPE_CHECKING:
    from orchestrix.broker.embedded.model.arguments import QueueSettings
    from orchestrix.broker.embedded.model.message import Message
    from orchestrix.broker.embedded.model.ports import ChannelPort, ConnectionPort


class DeadLetterSink(Protocol):
    """Takes what a queue dead-letters."""

    def dead_letter(self, queue: EmbeddedQueue, message: Message, reason: str) -> None: ...


class QueuedMessage:
    """A message's position in one queue: lower positions go first. `expires` is a monotonic time.

    `returns` counts how often it came back; only a `counted` one, in a quorum queue, shows that to consumers.
    """

    __slots__ = ("counted", "expires", "message", "position", "redelivered", "returns")

    def __init__(self, message: Message, position: int, expires: float | None, counted: bool) -> None:
        self.message = message
        self.position = position
        self.expires = expires
        self.counted = counted
        self.returns = 0
        self.redelivered = False


# Positions of messages that came back to a quorum queue count up from 0, so they come before all fresh ones.
FIRST_FRESH = 1 << 62


class Subscription:
    """One subscription. `prefetch` 0 is no limit."""

    __slots__ = ("channel", "encoded_tag", "exclusive", "no_ack", "prefetch", "queue", "tag", "unacked")

    def __init__(
        self,
        channel: ChannelPort,
        queue: EmbeddedQueue,
        tag: str,
        encoded_tag: bytes,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.encoded_tag = encoded_tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.unacked = 0

    @property
    def has_room(self) -> bool:
        free = self.no_ack or not self.prefetch or self.unacked < self.prefetch
        return free and self.channel.link.writable


class EmbeddedQueue:
    """Messages in order, and the consumers that take turns (or wait, with a single active one)."""

    def __init__(
        self, name: str, settings: QueueSettings, owner: ConnectionPort | None, dead_letter_sink: DeadLetterSink
    ) -> None:
        self.name = name
        self.settings = settings
        self.owner = owner
        self.ready: deque[QueuedMessage] = deque()
        self.consumers: deque[Subscription] = deque()
        self._dead_letter_sink = dead_letter_sink
        self._active: Subscription | None = None
        self._next_fresh = FIRST_FRESH
        self._next_returned = 0
        self._timer: asyncio.TimerHandle | None = None
        self.deleted = False

    @property
    def consumer_count(self) -> int:
        """As in queue.declare-ok: a quorum queue with a single active consumer does not count those that wait."""
        if self.settings.quorum and self.settings.single_active:
            return min(1, len(self.consumers))
        return len(self.consumers)

    @property
    def unsettled(self) -> int:
        """Messages that are ready, or unacked at one of its consumers."""
        return len(self.ready) + sum(consumer.unacked for consumer in self.consumers)

    def publish(self, message: Message) -> None:
        self.ready.append(QueuedMessage(message, self._fresh_position(), self._deadline(message), self.settings.quorum))
        self.settle()

    def _fresh_position(self) -> int:
        self._next_fresh += 1
        return self._next_fresh

    def pump(self) -> None:
        """Deliver what the consumers' prefetch allows."""
        while self.ready:
            consumer = self._next_consumer()
            if consumer is None:
                return
            self._deliver(consumer, self.ready.popleft())

    def _deliver(self, consumer: Subscription, entry: QueuedMessage) -> None:
        if not consumer.no_ack:
            consumer.unacked += 1
        consumer.channel.deliver(consumer, entry)

    def _next_consumer(self) -> Subscription | None:
        if self.settings.single_active:
            return self._active if self._active is not None and self._active.has_room else None
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.has_room:
                return consumer
        return None

    def take(self) -> QueuedMessage | None:
        """The first message, for basic.get."""
        entry = self.ready.popleft() if self.ready else None
        self._schedule_expiry()
        return entry

    def requeue(self, entries: Iterable[QueuedMessage], *, nacked: bool) -> None:
        """Requeue messages; those over the delivery limit are dead-lettered. The caller settles.

        A classic queue puts them where they were. A quorum queue puts them before all never delivered, in the order
        in which they come back; without delivery limit, nacked ones go to its end (RabbitMQ 3.10, measured).
        """
        returned = [entry for entry in entries if not self.deleted and self._may_requeue(entry)]
        for entry in returned:
            entry.position = self._position_of_returned(entry, nacked)
        for entry in sorted(returned, key=lambda one: one.position, reverse=True):
            self._insert(entry)

    def _may_requeue(self, entry: QueuedMessage) -> bool:
        entry.redelivered = True
        entry.returns += 1
        if self._returned_too_often(entry):
            self._dead_letter_sink.dead_letter(self, entry.message, "delivery_limit")
            return False
        return True

    def _position_of_returned(self, entry: QueuedMessage, nacked: bool) -> int:
        if not self.settings.quorum:
            return entry.position
        if nacked and self.settings.delivery_limit is None:
            return self._fresh_position()
        self._next_returned += 1
        return self._next_returned

    def _returned_too_often(self, entry: QueuedMessage) -> bool:
        limit = self.settings.delivery_limit
        return limit is not None and entry.returns > limit

    def _insert(self, entry: QueuedMessage) -> None:
        """Nearly always the front, or the end: a message that was delivered is older than those that never were."""
        if not self.ready or entry.position > self.ready[-1].position:
            self.ready.append(entry)
            return
        at = 0
        for other in self.ready:
            if other.position > entry.position:
                break
            at += 1
        self.ready.insert(at, entry)

    def settle(self) -> None:
        """After messages came back, or a consumer can take more."""
        self.pump()
        self._trim()
        self._schedule_expiry()

    def reject(self, entry: QueuedMessage) -> None:
        self._dead_letter_sink.dead_letter(self, entry.message, "rejected")

    def purge(self) -> int:
        count = len(self.ready)
        self.ready.clear()
        self._schedule_expiry()
        return count

    def add(self, consumer: Subscription) -> None:
        self.consumers.append(consumer)
        if self._active is None:
            self._active = consumer
        self.settle()

    def remove(self, consumer: Subscription) -> None:
        """The next consumer becomes active. The caller pumps, after it has requeued what the consumer had unacked."""
        self.consumers.remove(consumer)
        if self._active is consumer:
            self._active = self.consumers[0] if self.consumers else None

    def close(self) -> int:
        """Drop all messages and cancel all consumers; how many messages were ready."""
        self.deleted = True
        count = self.purge()
        consumers, self._active = list(self.consumers), None
        self.consumers.clear()
        for consumer in consumers:
            consumer.channel.consumer_cancelled(consumer)
        return count

    def _trim(self) -> None:
        limit = self.settings.max_length
        while limit is not None and len(self.ready) > limit:
            self._dead_letter_sink.dead_letter(self, self.ready.popleft().message, "maxlen")

    def _deadline(self, message: Message) -> float | None:
        """The shorter of the queue's and the message's own time to live."""
        lives = [ms for ms in (self.settings.ttl, message.expiration) if ms is not None]
        return clock.monotonic() + min(lives) / 1000 if lives else None

    def _schedule_expiry(self) -> None:
        """Only the head expires, as in RabbitMQ: a message behind a longer-lived one waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.ready and (expires := self.ready[0].expires) is not None:
            delay = max(0.0, expires - clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        while self.ready and (expires := self.ready[0].expires) is not None and expires <= now:
            self._dead_letter_sink.dead_letter(self, self.ready.popleft().message, "expired")
        self._schedule_expiry()
