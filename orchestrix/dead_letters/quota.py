"""Dead letter quota: limits how many dead letters may come into the database in a minute."""

from __future__ import annotations

import logging
from typing import Final

from orchestrix import clock
from orchestrix.dead_letters.retry_buffer import LOG_INTERVAL_S, LogRateLimiter

log = logging.getLogger("orchestrix.dead_letters")

REFILL_WAIT_S: Final = 1.0
"""Seconds for which it waits once the quota is used up, so that dead letters come in batches."""


class DeadLetterQuota:
    """So many dead letters a minute, and as many at once after a quiet minute; the rest stay in their queues.

    One with an automatic consequence, so that its saga continues, does not count: only those that wait for an operator,
    and those that any client with the right to publish can send.
    """

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute
        self._left = float(a_minute)
        self._at = clock.monotonic()
        self._exhausted_at: float | None = None
        self._log_limiter = LogRateLimiter()

    def available(self) -> int:
        """How many may come now. Logs it, once a minute, where none may."""
        now = clock.monotonic()
        self._left = min(float(self._a_minute), self._left + (now - self._at) * self._a_minute / 60)
        self._at = now
        if self._left >= 1:
            return int(self._left)
        self._exhausted_at = now
        if self._log_limiter.allows():
            log.warning(
                "limit of dead letters per minute reached (%d): the others stay in their queues", self._a_minute
            )
        return 0

    def wait(self) -> float:
        """Seconds until some may come again."""
        return max(REFILL_WAIT_S, (1 - self._left) * 60 / self._a_minute)

    def take(self, dead_letters: int) -> None:
        """So many have come."""
        self._left -= dead_letters

    def problem(self) -> str | None:
        """The report of the last minute; None if all could come."""
        if self._exhausted_at is None or clock.monotonic() - self._exhausted_at > LOG_INTERVAL_S:
            return None
        return f"more than {self._a_minute} dead letters in a minute: the others stay in their queues"
