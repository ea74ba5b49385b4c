"""Backoff: the waits between tries, exponential with full jitter."""

from __future__ import annotations

from orchestrix import clock


class Backoff:
    """Exponential with full jitter: each wait is a random number between 0 and a ceiling that doubles.

    `min_s` is the first ceiling and `max_s` the last, in seconds.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s, self._max_s = min_s, max_s
        self._ceiling = min_s

    def next(self) -> float:
        """Seconds to wait now."""
        ceiling, self._ceiling = self._ceiling, min(self._ceiling * 2, self._max_s)
        return clock.uniform(0, ceiling)

    def reset(self) -> None:
        """After a success: the next wait is short."""
        self._ceiling = self._min_s
