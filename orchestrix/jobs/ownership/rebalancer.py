"""Job rebalancer: hands jobs over when this node owns far more of them than the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

from orchestrix.domain.balance import handed_over
from orchestrix.domain.handoff import REBALANCE
from orchestrix.jobs.ownership.handoff_publisher import JobHandoffPublisher
from orchestrix.jobs.ownership.handoff_subscriber import JobHandoffSubscriber
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")


class JobRebalancer:
    """Hands over the excess, where there was one twice in a row: what has just moved is counted late.

    Every node computes the same plan from the database, and does its own part of it. While it hands jobs over it takes
    none that others offer, and so none of its own offers.
    """

    def __init__(
        self,
        database: Database,
        taker: JobHandoffSubscriber,
        giver: JobHandoffPublisher,
        node: str,
        *,
        every: float,
        may_give: Callable[[], bool] = lambda: True,
    ) -> None:
        self._database = database
        self._taker = taker
        self._giver = giver
        self._node = node
        self._every = every
        self._may_give = may_give
        self._before = 0
        self._wake = WakeSignal()
        self._loop = Loop("job rebalancer", self._round)

    async def start(self) -> None:
        """Begins to compare."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def look(self) -> int:
        """Compares once; how many jobs were taken by others."""
        async with self._database.read() as connection:
            loads = await jobs.balance(connection)
        surplus = handed_over(loads).get(self._node, 0) if self._node in loads and self._may_give() else 0
        count, self._before = min(surplus, self._before), surplus
        return await self._give(count) if count else 0

    async def _give(self, count: int) -> int:
        log.info("rebalancing: handing %s to less loaded nodes", counted(count, "job"))
        self._before = 0
        await self._taker.decline()
        try:
            return await self._giver.give(REBALANCE, count)
        finally:
            await self._taker.accept()

    async def _round(self) -> None:
        await self._wake.wait(self._every)
        await self.look()
