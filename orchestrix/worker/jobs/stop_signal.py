"""Stop signal: why a job must stop, readable from the event loop and from any thread."""

from __future__ import annotations

import asyncio
from enum import Enum


class StopCause(Enum):
    """Who wants a job to stop."""

    CANCELLED = "cancelled"
    """It was requested, or another attempt has replaced this one."""
    TIMED_OUT = "timed out"
    """It timed out."""
    WORKER_STOPPED = "worker stopped"
    """The worker stops, and the job has not ended in the time that was left."""


class JobCancelled(asyncio.CancelledError):
    """The job is to stop, or has ended; the text says why. No `except Exception` catches it."""


class StopSignal:
    """The request to stop; the first one counts. `noticed` says that the job has seen it, `over` that the final status
    is sent, so that the job's further reports are dropped. Set in the event loop; may be read in any thread."""

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

    def set_urgent(self) -> None:
        """The job has no more time to end by itself."""
        self._urgent.set()

    async def wait(self) -> None:
        """Returns when the job is to stop."""
        await self._set.wait()

    async def urgent(self) -> None:
        """Returns when there is no more time."""
        await self._urgent.wait()
