"""Backoff: the waits between tries, exponential with full jitter."""

from __future__ import annotations

from orchestrix import clock


class Backoff:
    """Exponential with full jitter: each wait is a random number between 0 and a ceiling that doubles.

    `low` is the first ceiling and `high` the last, in seconds.
    """

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._ceiling = low

    def next(self) -> float:
        """Seconds to wait now."""
        ceiling, self._ceiling = self._ceiling, min(self._ceiling * 2, self._high)
        return clock.uniform(0, ceiling)

    def reset(self) -> None:
        """After a success: the next wait is short."""
        self._ceiling = self._low
