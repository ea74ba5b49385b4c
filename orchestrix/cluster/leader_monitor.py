"""Leader monitor: for how long there has been no leader, as any node sees it in the database."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orchestrix import clock
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database

log = logging.getLogger("orchestrix.cluster")

POLL_INTERVAL_S: Final = 5.0
LEADERLESS_LEASES_LIMIT: Final = 2
"""After so many leases without a leader something is wrong: one is the longest that a successor waits."""


class LeaderMonitor:
    """Polls the lease; `lease_s` is how long one lasts. A failed poll, as in an outage, counts as no vacancy."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database, self._lease_s = database, lease_s
        self._since: float | None = None
        self._logged = False
        self._loop = Loop("leader monitor", self._round)

    async def start(self) -> None:
        """Begins to poll."""
        await self._loop.start()

    async def stop(self) -> None:
        """Polls no more."""
        await self._loop.stop()

    def problem(self) -> str | None:
        """The health probe: why it is wrong that there is no leader; None while there is one, or was until recently."""
        silent = 0.0 if self._since is None else clock.monotonic() - self._since
        if silent < LEADERLESS_LEASES_LIMIT * self._lease_s:
            return None
        return (
            f"the cluster has had no leader for {silent:.0f} s: no job is dispatched and no schedule fires. Start a"
            " node with the role coordinator, or see the logs of those that run"
        )

    async def _round(self) -> None:
        try:
            async with self._database.read() as connection:
                lease = await leases.read(connection, self._lease_s)
        except (RetryableError, SchemaMismatch):
            self._since = None
        else:
            vacant = lease is None or lease.lapsed
            self._since = (self._since if self._since is not None else clock.monotonic()) if vacant else None
        self._log_change()
        await asyncio.sleep(min(POLL_INTERVAL_S, self._lease_s / 2))

    def _log_change(self) -> None:
        problem = self.problem()
        if problem is not None and not self._logged:
            log.error("%s", problem)
        elif problem is None and self._logged:
            log.warning("the cluster has a leader again, or the database cannot be queried")
        self._logged = problem is not None
