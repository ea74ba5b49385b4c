"""Job retry delays: how long a job waits before its next attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from orchestrix.saga.definition import RetryPolicy

IMMEDIATE_RETRIES: Final = 3
"""So many attempts that do not count are followed at once by others; a worker that loses more is not to be trusted."""
_BACKOFF: Final = RetryPolicy()
_LONGEST_MS: Final = 2**40


def retry_delay(attempts: int, tries: int, *, counts: bool, jitter: float) -> timedelta:
    """The delay after so many attempts, of which `tries` count, and the last one if `counts`.

    `jitter` is drawn from [0, 1).
    """
    failures = max(tries, 1) if counts else attempts - tries - IMMEDIATE_RETRIES
    return _BACKOFF.wait(failures, jitter) if failures > 0 else timedelta(0)


def requested_delay(milliseconds: object) -> timedelta | None:
    """The delay that a worker requests; None if it is no valid one."""
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds < 0:
        return None
    return timedelta(milliseconds=min(milliseconds, _LONGEST_MS))
