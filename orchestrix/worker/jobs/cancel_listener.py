"""How does a worker hear which jobs are to stop?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orchestrix.broker.port import Consumer
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.worker.context import LOGGER
from orchestrix.worker.jobs.dispatch import JobCancel, read_cancel

PREFETCH: Final = 100
RECEIVE_PAUSE_S: Final = 0.1


class CancelListener:
    """Reads the words of `consumer` and hands them to `hear`. What is missed here comes again with a later beat."""

    def __init__(self, consumer: Consumer, hear: Callable[[JobCancel], None]) -> None:
        self._consumer, self._hear = consumer, hear

    async def round(self) -> None:
        """Takes one batch."""
        deliveries = await self._consumer.receive(PREFETCH)
        if not deliveries:
            await asyncio.sleep(RECEIVE_PAUSE_S)
            return
        for delivery in deliveries:
            try:
                self._hear(read_cancel(delivery.body))
            except UnreadableMessage as unreadable:
                LOGGER.warning("a word to stop a job cannot be read: %s", unreadable)
        await self._consumer.acknowledge(deliveries)
