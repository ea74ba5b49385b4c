"""Retry buffer: holds the dead letters that could not be stored, and says when each is to be retried."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.lifecycle import backoff
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.dead_letters")

FIRST_RETRY_DELAY_S: Final = 0.5
RETRY_DELAY_LIMIT_S: Final = 30.0
"""Maximum seconds between two retries of one dead letter; the delay doubles each time."""
CROWDED_RETRY_DELAY_S: Final = 5.0
"""The maximum where they use up the prefetch of their queue."""
IN_PLACE_RETRIES: Final = 1
"""Retries while it stays unacknowledged: the broker's record of its death is lost when it is republished."""
LOG_INTERVAL_S: Final = 60.0
"""Seconds for which the same message is not logged again."""
BUFFER_LIMIT: Final = 10_000

Key = tuple[int, int]


class LogRateLimiter:
    """Lets through the first of many equal messages, and then one a minute."""

    def __init__(self) -> None:
        self._next = -math.inf

    def allows(self) -> bool:
        """Whether it is to be logged now."""
        now = clock.monotonic()
        if now < self._next:
            return False
        self._next = now + LOG_INTERVAL_S
        return True


@dataclass(frozen=True, slots=True)
class _BufferedDeadLetter:
    """A dead letter buffered since a monotonic time, with its retry delay in seconds."""

    dead_letter: Delivery
    since: float
    pause: float


class RetryBuffer:
    """The unacknowledged dead letters that could not be stored for their own sake.

    `limit` of them use up the prefetch of their queue: those behind them have to wait. Failures are counted by
    content, so that the retry delay still grows when the dead letter has gone to the end of its queue.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffered: dict[Key, _BufferedDeadLetter] = {}
        self._failures: dict[bytes, int] = {}
        self._log_limiter = LogRateLimiter()

    def failed(self, dead_letter: Delivery, error: Exception) -> None:
        """The dead letter could not be stored."""
        if len(self._failures) >= BUFFER_LIMIT:
            self._failures.clear()
        content = _content(dead_letter)
        failures = self._failures[content] = self._failures.get(content, 0) + 1
        pause = backoff(failures, FIRST_RETRY_DELAY_S, RETRY_DELAY_LIMIT_S)
        self._buffered[key_of(dead_letter)] = _BufferedDeadLetter(dead_letter, clock.monotonic(), pause)
        if self._log_limiter.allows():
            log.error("cannot store %s, the last one from %s", self._count(), dead_letter.queue, exc_info=error)

    def remove_stored(self, dead_letters: Iterable[Delivery]) -> None:
        """They are in the database."""
        for dead_letter in dead_letters:
            self.remove(dead_letter)
            if self._failures:
                self._failures.pop(_content(dead_letter), None)

    def remove(self, dead_letter: Delivery) -> None:
        """It is no longer buffered."""
        self._buffered.pop(key_of(dead_letter), None)

    def due(self, alive: Callable[[Delivery], bool]) -> list[Delivery]:
        """Those that are to be retried now. Drops those that the broker has taken back."""
        self._buffered = {key: buffered for key, buffered in self._buffered.items() if alive(buffered.dead_letter)}
        now = clock.monotonic()
        return [buffered.dead_letter for buffered in self._buffered.values() if self._due(buffered) <= now]

    def has_failed_often(self, dead_letter: Delivery) -> bool:
        """Whether it has failed in place, and should go out of the way of others."""
        return self._failures.get(_content(dead_letter), 0) > IN_PLACE_RETRIES

    def wait(self) -> float | None:
        """Seconds until the first is due, 0.0 if it is; None without any."""
        first = min(map(self._due, self._buffered.values()), default=None)
        return None if first is None else max(0.0, first - clock.monotonic())

    def problem(self) -> str | None:
        """How many there are, for the health report; None without any."""
        return f"cannot store {self._count()} (kept by the broker): see the log" if self._buffered else None

    def _due(self, buffered: _BufferedDeadLetter) -> float:
        same_queue = sum(other.dead_letter.queue == buffered.dead_letter.queue for other in self._buffered.values())
        return buffered.since + (
            min(buffered.pause, CROWDED_RETRY_DELAY_S) if same_queue >= self._limit else buffered.pause
        )

    def _count(self) -> str:
        return counted(len(self._buffered), "dead letter")


def key_of(dead_letter: Delivery) -> Key:
    """Identifies a delivery."""
    return dead_letter.session, dead_letter.tag


def _content(dead_letter: Delivery) -> bytes:
    return hashlib.sha256(dead_letter.queue.encode() + b"\0" + dead_letter.body).digest()
