"""Cancel listener: receives the messages that tell a worker which jobs to stop."""

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
    """Reads the cancel messages of `consumer` and passes them to `hear`. A lost one is repeated after a later
    heartbeat."""

    def __init__(self, consumer: Consumer, hear: Callable[[JobCancel], None]) -> None:
        self._consumer, self._hear = consumer, hear

    async def round(self) -> None:
        """Receives one batch."""
        deliveries = await self._consumer.receive(PREFETCH)
        if not deliveries:
            await asyncio.sleep(RECEIVE_PAUSE_S)
            return
        for delivery in deliveries:
            try:
                self._hear(read_cancel(delivery.body))
            except UnreadableMessage as unreadable:
                LOGGER.warning("unreadable cancel request of a job: %s", unreadable)
        await self._consumer.acknowledge(deliveries)
