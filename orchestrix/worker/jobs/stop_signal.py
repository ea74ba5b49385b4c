"""Why is a job to stop, and who hears of it?"""

from __future__ import annotations

import asyncio
from enum import Enum


class StopCause(Enum):
    """Who wants a job to stop."""

    CANCELLED = "cancelled"
    """Somebody asked for it, or another attempt has taken this one's place."""
    TIMED_OUT = "timed out"
    """Its time is over."""
    WORKER_STOPPED = "worker stopped"
    """The worker ends, and the job has not ended in the time that was left."""


class JobCancelled(asyncio.CancelledError):
    """The job is to stop, or has ended; the text says why. No `except Exception` catches it."""


class StopSignal:
    """The word to stop; the first one counts. `noticed` says that the job has seen it, `over` that the attempt has had
    its last word, so that nobody hears the job any more. Set in the event loop; may be read in any thread."""

    def __init__(self) -> None:
        self.cause: StopCause | None = None
        self.reason = ""
        self.noticed = False
        self.over = False
        self._set, self._urgent = asyncio.Event(), asyncio.Event()

    def set(self, cause: StopCause, reason: str) -> None:
        """The job is to stop because of `reason`."""
        if self.cause is None:
            self.cause, self.reason = cause, reason
            self._set.set()

    def hurry(self) -> None:
        """There is no more time to end by itself."""
        self._urgent.set()

    async def wait(self) -> None:
        """Returns when the job is to stop."""
        await self._set.wait()

    async def urgent(self) -> None:
        """Returns when there is no more time."""
        await self._urgent.wait()
