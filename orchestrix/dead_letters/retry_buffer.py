"""Which dead letters could not be kept, and when is each of them tried again?"""

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

log = logging.getLogger("orchestrix.dead_letters")

FIRST_RETRY_DELAY_S: Final = 0.5
RETRY_DELAY_LIMIT_S: Final = 30.0
"""Seconds between two tries of one letter: doubled each time."""
CROWDED_RETRY_DELAY_S: Final = 5.0
"""The longest where they take the places of others."""
IN_PLACE_RETRIES: Final = 1
"""So often one is tried again where it is: what the broker wrote about its death is lost with its place."""
LOG_INTERVAL_S: Final = 60.0
"""Seconds for which what has been said is not said again."""
BUFFER_LIMIT: Final = 10_000

Key = tuple[int, int]


class LogRateLimiter:
    """Lets through the first of many that say the same, and then one a minute."""

    def __init__(self) -> None:
        self._next = -math.inf

    def may(self) -> bool:
        """Whether it is to be said now."""
        now = clock.monotonic()
        if now < self._next:
            return False
        self._next = now + LOG_INTERVAL_S
        return True


@dataclass(frozen=True, slots=True)
class _Held:
    """A letter in hand since a monotonic time, with its pause in seconds."""

    letter: Delivery
    since: float
    pause: float


class RetryBuffer:
    """The letters in hand that could not be kept for their own sake.

    So many as `most` crowd their queue: what is behind them waits for their places. How often one has failed is known
    by what stands in it, so that its pauses go on growing when it has gone to the end of its queue.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Key, _Held] = {}
        self._failures: dict[bytes, int] = {}
        self._seldom = LogRateLimiter()

    def failed(self, letter: Delivery, error: Exception) -> None:
        """The letter could not be kept."""
        if len(self._failures) >= BUFFER_LIMIT:
            self._failures.clear()
        content = _content(letter)
        failures = self._failures[content] = self._failures.get(content, 0) + 1
        pause = backoff(failures, FIRST_RETRY_DELAY_S, RETRY_DELAY_LIMIT_S)
        self._held[key_of(letter)] = _Held(letter, clock.monotonic(), pause)
        if self._seldom.may():
            log.error("%s cannot be kept, the last one of %s", self._count(), letter.queue, exc_info=error)

    def kept(self, letters: Iterable[Delivery]) -> None:
        """They are in the database."""
        for letter in letters:
            self.gone(letter)
            if self._failures:
                self._failures.pop(_content(letter), None)

    def gone(self, letter: Delivery) -> None:
        """It is no longer in hand."""
        self._held.pop(key_of(letter), None)

    def due(self, alive: Callable[[Delivery], bool]) -> list[Delivery]:
        """Those that are to be tried again now. Forgets those that the broker has taken back."""
        self._held = {key: held for key, held in self._held.items() if alive(held.letter)}
        now = clock.monotonic()
        return [held.letter for held in self._held.values() if self._due(held) <= now]

    def is_stubborn(self, letter: Delivery) -> bool:
        """Whether it has failed where it is, and should go out of the way of others."""
        return self._failures.get(_content(letter), 0) > IN_PLACE_RETRIES

    def wait(self) -> float | None:
        """Seconds until the first is due, 0.0 if it is; None without any."""
        first = min(map(self._due, self._held.values()), default=None)
        return None if first is None else max(0.0, first - clock.monotonic())

    def trouble(self) -> str | None:
        """How many there are, for whoever looks after the process; None without any."""
        stays = "stays" if len(self._held) == 1 else "stay"
        return f"{self._count()} cannot be kept and {stays} with the broker: see the log" if self._held else None

    def _due(self, held: _Held) -> float:
        crowd = sum(other.letter.queue == held.letter.queue for other in self._held.values())
        return held.since + (min(held.pause, CROWDED_RETRY_DELAY_S) if crowd >= self._most else held.pause)

    def _count(self) -> str:
        return "1 dead letter" if len(self._held) == 1 else f"{len(self._held)} dead letters"


def key_of(letter: Delivery) -> Key:
    """What no other delivery has."""
    return letter.session, letter.tag


def _content(letter: Delivery) -> bytes:
    return hashlib.sha256(letter.queue.encode() + b"\0" + letter.body).digest()
