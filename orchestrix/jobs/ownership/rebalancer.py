"""Job rebalancer: hands jobs off when this node owns far more of them than the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

from orchestrix.domain.balance import jobs_to_hand_off
from orchestrix.domain.handoff import REBALANCE
from orchestrix.jobs.ownership.handoff_publisher import JobHandoffPublisher
from orchestrix.jobs.ownership.handoff_subscriber import JobHandoffSubscriber
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")


class JobRebalancer:
    """Hands off the excess, where there was one twice in a row: what has just moved is counted late.

    Every node computes the same plan from the database, and does its own part of it. While it hands jobs off it takes
    none that others offer, and so none of its own offers.
    """

    def __init__(
        self,
        database: Database,
        handoff_subscriber: JobHandoffSubscriber,
        handoff_publisher: JobHandoffPublisher,
        node: str,
        *,
        interval_s: float,
        may_hand_off: Callable[[], bool] = lambda: True,
    ) -> None:
        self._database = database
        self._handoff_subscriber = handoff_subscriber
        self._handoff_publisher = handoff_publisher
        self._node = node
        self._interval_s = interval_s
        self._may_hand_off = may_hand_off
        self._before = 0
        self._wake = WakeSignal()
        self._loop = Loop("job rebalancer", self._round)

    async def start(self) -> None:
        """Begins to compare."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def run_once(self) -> int:
        """Compares once; how many jobs were taken by others."""
        async with self._database.read() as connection:
            loads = await jobs.balance(connection)
        surplus = jobs_to_hand_off(loads).get(self._node, 0) if self._node in loads and self._may_hand_off() else 0
        count, self._before = min(surplus, self._before), surplus
        return await self._hand_off(count) if count else 0

    async def _hand_off(self, count: int) -> int:
        log.info("rebalancing: handing %s to less loaded nodes", counted(count, "job"))
        self._before = 0
        await self._handoff_subscriber.decline()
        try:
            return await self._handoff_publisher.hand_off(REBALANCE, count)
        finally:
            await self._handoff_subscriber.accept()

    async def _round(self) -> None:
        await self._wake.wait(self._interval_s)
        await self.run_once()
