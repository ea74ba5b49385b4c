"""How does a delivery become an attempt?"""

from __future__ import annotations

import asyncio
from typing import Final

from app import crash
from app.broker.dead_letter import bury
from app.broker.port import Broker, Consumer, Delivery
from sagas.engine.messages import Unreadable
from workers.sdk.context import LOGGER
from workers.sdk.failures import given_up

from .dispatch import read
from .floor import Floor, JobCounts

BATCH: Final = 500
LOOK: Final = 0.1


class Intake:
    """Reads each dispatch: the floor takes it, it goes to the dead letters, or back to other workers."""

    def __init__(self, broker: Broker, consumer: Consumer, floor: Floor, counts: JobCounts) -> None:
        self._broker, self._consumer, self._floor, self._counts = broker, consumer, floor, counts
        self._burials: set[asyncio.Task[None]] = set()

    async def round(self) -> None:
        """Takes one batch."""
        deliveries = await self._consumer.receive(BATCH)
        if not deliveries:  # the consumer is closed: nothing will come before this loop is stopped
            await asyncio.sleep(LOOK)
            return
        crash.point("worker.jobs.after_receive")
        surplus = [one for one in deliveries if not await self._taken(one)]
        await self._floor.follow()  # first, else what is given back comes again at once
        await self._consumer.give_back(surplus)

    def stop(self) -> None:
        """Buries nothing more: the broker gives out again what is left."""
        for task in self._burials:
            task.cancel()

    async def _taken(self, delivery: Delivery) -> bool:
        """Whatever goes wrong with one of a batch, it goes back, and the others are taken."""
        task = asyncio.current_task()
        try:
            return await self._take(delivery)
        except BaseException as error:
            if given_up(error, task):
                raise
            LOGGER.exception("the worker itself failed at what came from %s", delivery.queue)
            await asyncio.sleep(LOOK)  # it may come again at once
            return False

    async def _take(self, delivery: Delivery) -> bool:
        try:
            order = read(delivery.body)
        except Unreadable as unreadable:
            self._counts.dead += 1
            task = asyncio.create_task(self._bury(delivery, str(unreadable)), name="burial")
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)
            return True
        return await self._floor.admit(order, delivery)

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        await bury(self._broker, self._consumer, [(delivery, reason)])
        await self._consumer.acknowledge([delivery])
