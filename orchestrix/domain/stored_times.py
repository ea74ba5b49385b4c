"""Stored times: the age of a stored time, where the clock may have been set back since it was written."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final

CLOCK_TOLERANCE_S: Final = 5.0
"""Seconds by which a stored time may lie ahead of the clock: estimates of one clock differ by less."""
CLOCK_TOLERANCE: Final = timedelta(seconds=CLOCK_TOLERANCE_S)


def age_s(then: datetime, now: datetime) -> float:
    """Seconds from `then` to `now`, at least 0; infinite for a time that cannot be true.

    What happened cannot lie ahead. If it does, the clock was set back after it, and it is not known by how much in all.
    """
    passed = (now - then) / timedelta(seconds=1)
    return math.inf if passed < -CLOCK_TOLERANCE_S else max(passed, 0.0)


def believed(until: datetime, now: datetime, limit: timedelta) -> datetime:
    """`until`, the end of a wait that began at `now` or before and was `limit` at most; earlier if it cannot be."""
    return until if until <= now + limit + CLOCK_TOLERANCE else now + limit
