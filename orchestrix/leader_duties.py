"""Leader duties: the services that only the leader runs, from the gain of leadership to its loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from orchestrix.domain.leases import Fence
from orchestrix.errors import StaleTermError
from orchestrix.lifecycle import Loop, Service, WakeSignal

log = logging.getLogger("orchestrix.jobs")

Duty = Callable[[Fence], Service]
"""Makes a part that only the leader runs: it is started at the gain of leadership and stopped at its loss.

Each of its writes ends with `persistence.leases.check_fence(tx, fence)`, for it may run on for a moment after the loss,
or resume after another node has been elected. `StaleTermError` is then not its business: the loss stops it.
"""


class PeriodicDuty:
    """One duty: checks, then again after the seconds that the check returns, or when it is woken.

    A term that has ended is no failure: there is nothing more to do.
    """

    def __init__(self, name: str, run_once: Callable[[], Awaitable[float]], wake: WakeSignal | None = None) -> None:
        self._name = name
        self._run_once = run_once
        self._wake = wake or WakeSignal()
        self._loop = Loop(name, self._round)

    async def start(self) -> None:
        """Begins to check."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops checking."""
        await self._loop.stop()

    async def _round(self) -> None:
        try:
            seconds = await self._run_once()
        except StaleTermError as over:
            log.warning("%s: %s", self._name, over)
            await asyncio.Event().wait()
        else:
            await self._wake.wait(seconds)
