"""Clock regression detector: notices a database clock that was set back, and repairs what would wait for the old
time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orchestrix import clock
from orchestrix.domain.stored_times import CLOCK_TOLERANCE_S
from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop
from orchestrix.persistence import clock_rollback
from orchestrix.persistence.engine import Database
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix")

CHECK_INTERVAL_S: Final = 15.0
QUIET_PASSES_LIMIT: Final = 2
"""After so many passes in a row that had nothing to repair, nothing is left that was written before."""


class ClockRegressionDetector:
    """Checks before anything else is begun, and periodically; `claim_s` is for how long this node claims messages."""

    def __init__(self, database: Database, claim_s: float) -> None:
        self._database, self._claim_s = database, claim_s
        self._logged = False
        self._quiet = 0
        self._seen: tuple[float, float] | None = None
        """When the last check was (monotonic), and by how much stored times were ahead then."""
        self._loop = Loop("clock check", self._round)

    async def start(self) -> None:
        """Checks, and begins to check periodically."""
        try:
            await self.run_once()
        except RetryableError as error:
            log.debug("cannot check the clock: %s", error)
        await self._loop.start()

    async def stop(self) -> None:
        """Checks no more."""
        await self._loop.stop()

    async def run_once(self) -> None:
        """Ends early what waits for longer than it can. Raises `RetryableError`."""
        async with self._database.read() as connection:
            ahead = await clock_rollback.ahead_s(connection)
        again = self._has_regressed(ahead)
        if ahead == 0.0 or again:
            self._logged, self._quiet = False, 0
        if ahead == 0.0 or self._quiet == QUIET_PASSES_LIMIT:
            return
        repaired = await clock_rollback.repair(self._database, self._claim_s)
        if not self._logged:
            rows = counted(repaired, "row")
            log.warning(
                "the clock was set back: stored times are %.0f s ahead; %s now count from now",
                ahead,
                rows,
                extra={"event": log_events.CLOCK_SET_BACK},
            )
        self._logged = True
        self._quiet = 0 if repaired else self._quiet + 1

    def _has_regressed(self, ahead: float) -> bool:
        """Whether stored times are further ahead than they were: as time passes, that shrinks."""
        before, self._seen = self._seen, (clock.monotonic(), ahead)
        return before is not None and ahead > before[1] - (self._seen[0] - before[0]) + CLOCK_TOLERANCE_S

    async def _round(self) -> None:
        await asyncio.sleep(clock.uniform(CHECK_INTERVAL_S / 2, CHECK_INTERVAL_S))
        await self.run_once()
