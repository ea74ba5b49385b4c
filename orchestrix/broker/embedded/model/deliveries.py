"""Deliveries: unacked messages of a channel, and what an ack, a reject, a cancel or its end does to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrix.broker.embedded import errors
from orchestrix.broker.embedded.model.queues import EmbeddedQueue, QueuedMessage, Subscription


@dataclass(frozen=True, slots=True)
class Unacked:
    """A message that the client has not acked; without consumer it was fetched by basic.get."""

    entry: QueuedMessage
    queue: EmbeddedQueue
    consumer: Subscription | None


class Deliveries:
    """Delivery tags of one channel, oldest first, and its consumers."""

    def __init__(self) -> None:
        self.consumers: dict[str, Subscription] = {}
        self._unacked: dict[int, Unacked] = {}
        self._last_tag = 0

    def next_tag(self) -> int:
        self._last_tag += 1
        return self._last_tag

    def remember(self, tag: int, entry: QueuedMessage, queue: EmbeddedQueue, consumer: Subscription | None) -> None:
        self._unacked[tag] = Unacked(entry, queue, consumer)

    def ack(self, tag: int, multiple: bool) -> None:
        """Raises AmqpError 406 for a tag that is not unacked."""
        self._settle_queues(self._take(tag, multiple))

    def nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        """Requeue, or dead-letter. Raises AmqpError 406 for a tag that is not unacked."""
        taken = self._take(tag, multiple)
        if requeue:
            _requeue(taken, nacked=True)
        else:
            for one in taken:
                one.queue.reject(one.entry)
        self._settle_queues(taken)

    def recover(self) -> None:
        """Requeue everything that is unacked."""
        taken = self._take_all()
        _requeue(taken, nacked=False)
        self._settle_queues(taken)

    def release(self) -> list[EmbeddedQueue]:
        """The channel ends: consumers leave first, then their messages go back, then the next consumers get them.

        Returns the queues that lost a consumer.
        """
        left = list(self.consumers.values())
        self.consumers.clear()
        for consumer in left:
            consumer.queue.remove(consumer)
        taken = self._take_all()
        _requeue(taken, nacked=False)
        queues = list(dict.fromkeys(consumer.queue for consumer in left))
        for queue in dict.fromkeys([one.queue for one in taken] + queues):
            queue.settle()
        return queues

    def _take(self, tag: int, multiple: bool) -> list[Unacked]:
        if multiple and tag == 0:
            return self._take_all()
        if tag not in self._unacked:
            raise errors.unknown_delivery_tag(tag)
        if not multiple:
            return [self._remove(tag)]
        tags = []
        for known in self._unacked:
            if known > tag:
                break
            tags.append(known)
        return [self._remove(one) for one in tags]

    def _take_all(self) -> list[Unacked]:
        return [self._remove(tag) for tag in list(self._unacked)]

    def _remove(self, tag: int) -> Unacked:
        one = self._unacked.pop(tag)
        if one.consumer is not None:
            one.consumer.unacked -= 1
        return one

    @staticmethod
    def _settle_queues(taken: Iterable[Unacked]) -> None:
        for queue in dict.fromkeys(one.queue for one in taken):
            queue.settle()


def _requeue(taken: Iterable[Unacked], *, nacked: bool) -> None:
    by_queue: dict[EmbeddedQueue, list[QueuedMessage]] = {}
    for one in taken:
        by_queue.setdefault(one.queue, []).append(one.entry)
    for queue, entries in by_queue.items():
        queue.requeue(entries, nacked=nacked)
