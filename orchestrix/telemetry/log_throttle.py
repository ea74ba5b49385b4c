"""Log throttle: writes lines that others can cause as often as they like only now and then."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from orchestrix import clock

THROTTLE_INTERVAL_S: Final = 10.0
MAX_KEYS: Final = 10_000


class LogThrottle:
    """Decides for each `key` (an address, a kind of error) whether its line is written: at most one in `interval_s`
    seconds, and from then on how many were left out. Of more than `limit` keys the oldest is forgotten.
    """

    def __init__(self, interval_s: float = THROTTLE_INTERVAL_S, limit: int = MAX_KEYS) -> None:
        self._interval_s, self._limit = interval_s, limit
        self._last_logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def due(self, key: Hashable) -> int | None:
        """How many lines of `key` were left out before this one; None if this one is to be left out too."""
        now = clock.monotonic()
        last, left_out = self._last_logged.get(key, (now - self._interval_s, 0))
        if now - last < self._interval_s:
            self._last_logged[key] = (last, left_out + 1)
            return None
        self._last_logged[key] = (now, 0)
        self._last_logged.move_to_end(key)
        if len(self._last_logged) > self._limit:
            self._last_logged.popitem(last=False)
        return left_out


class LogThrottleFilter(logging.Filter):
    """Rate-limits each message of a logger, whatever its arguments are."""

    def __init__(self, interval_s: float = THROTTLE_INTERVAL_S) -> None:
        super().__init__()
        self._log_limiter = LogThrottle(interval_s, 1000)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        left_out = self._log_limiter.due(record.msg if isinstance(record.msg, str) else type(record.msg).__name__)
        if left_out:
            record.left_out = left_out
        return left_out is not None
