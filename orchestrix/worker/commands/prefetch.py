"""Prefetch window: limits the commands that a worker holds to what it will start within about a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from orchestrix.broker.port import Consumer
from orchestrix.worker.commands.delivery import CommandDelivery

PREFETCH_AHEAD_S: Final = 1.0
"""Seconds within which a prefetched command should start."""
NARROW_AFTER_S: Final = 1.0
"""Seconds that a narrower window must have been needed: narrowing costs round trips and redeliveries."""
_AVERAGE_WEIGHT: Final = 0.2
"""Weight of the latest duration in the moving average."""
_MIN_DURATION_S: Final = 0.0005


class PrefetchWindow:
    """Measures how long the commands of each queue take, and sets the prefetch to what the free slots, and those that
    will be free within a second, can start.

    One command of each queue may always be prefetched, so that no slot waits for the broker. `limit` is the limit of
    each queue, however fast its handler is. Times are in seconds.
    """

    def __init__(self, consumer: Consumer, queues: Collection[str], slots: int, limit: int) -> None:
        self._consumer, self._slot_count, self._limit = consumer, slots, limit
        self._mean: dict[str, float] = {}
        self._running: Counter[str] = Counter()
        self._allowed: dict[str, int] = dict.fromkeys(queues, 0)
        self._narrower: dict[str, float] = {}
        self._closed: set[str] = set()
        for queue in queues:
            self._allow(queue, min(slots, limit))

    def began(self, queue: str) -> None:
        """A command of the queue has started."""
        self._running[queue] += 1

    def ended(self, queue: str, seconds: float) -> None:
        """It has ended, after so many seconds."""
        self._running[queue] -= 1
        known = self._mean.get(queue)
        self._mean[queue] = seconds if known is None else known + _AVERAGE_WEIGHT * (seconds - known)
        if known is None:
            self._widen(queue, self._slot_count + self._expected_starts(queue, self._slot_count))

    def close(self, queue: str) -> None:
        """Stops consuming from the queue."""
        self._closed.add(queue)
        self._consumer.allow(queue, 0)

    def open(self, queue: str) -> None:
        """Reverts `close`."""
        if queue in self._closed:
            self._closed.discard(queue)
            self._consumer.allow(queue, self._allowed[queue])

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Recomputes the prefetch of each queue, while these commands run."""
        rate = sum(1 / self._expected(command, now) for command in busy if command.begun is not None)
        free = max(0, self._slot_count - self._running.total())
        for queue in self._allowed:
            room = free + int(rate * PREFETCH_AHEAD_S) + self._expected_starts(queue, free)
            self._request(queue, max(1, min(self._limit, self._running[queue] + room)), now)

    def ahead(self, waiting: Iterable[CommandDelivery], now: float) -> list[CommandDelivery]:
        """Those that have waited for more than a second, without one of each queue, while no slot was free: they should
        wait where other workers can take them. Redelivered commands are not among them: a worker may have died of
        one."""
        if self._running.total() < self._slot_count:
            return []
        kept: set[str] = set()
        found = []
        for command in waiting:
            queue = command.message.type
            if queue not in kept:
                kept.add(queue)
            elif now - command.received > PREFETCH_AHEAD_S + NARROW_AFTER_S and not command.redelivered:
                found.append(command)
        return found

    def _expected(self, command: CommandDelivery, now: float) -> float:
        """The expected duration of the command in seconds."""
        at_work = now - (command.begun if command.begun is not None else now)
        return max(self._mean.get(command.message.type, PREFETCH_AHEAD_S), at_work, _MIN_DURATION_S)

    def _expected_starts(self, queue: str, slots: int) -> int:
        """How many commands of the queue these slots start within a second, beside the first of each."""
        mean = self._mean.get(queue)
        return 0 if mean is None else int(slots * PREFETCH_AHEAD_S / max(mean, _MIN_DURATION_S))

    def _request(self, queue: str, limit: int, now: float) -> None:
        if limit >= self._allowed[queue]:
            self._narrower.pop(queue, None)
            self._widen(queue, limit)
        elif now - self._narrower.setdefault(queue, now) >= NARROW_AFTER_S:
            del self._narrower[queue]
            self._allow(queue, limit)

    def _widen(self, queue: str, limit: int) -> None:
        if min(limit, self._limit) > self._allowed[queue]:
            self._allow(queue, min(limit, self._limit))

    def _allow(self, queue: str, limit: int) -> None:
        self._allowed[queue] = limit
        if queue not in self._closed:
            self._consumer.allow(queue, limit)
