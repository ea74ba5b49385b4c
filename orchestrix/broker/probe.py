"""Does the broker take messages now?"""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix import clock
from orchestrix.lifecycle import Loop

from .port import Broker, LinkState, Outcome, Outgoing

UNROUTABLE_KEY: Final = "orchestrix.nobody"
"""No queue is called so: the broker sends back what is addressed to it, and counts it as returned."""
PROBE_TIMEOUT_S: Final = 5.0
"""Seconds that it has for that, over a link that may be slow."""
PROBE_INTERVAL_S: Final = 5.0
"""Seconds between two of them where nobody asks."""
BLOCKED_POLL_INTERVAL_S: Final = 0.1
"""Seconds between two looks whether it has said instead that it takes none."""


async def takes_messages(broker: Broker) -> bool:
    """Whether it takes one that goes to nobody.

    An alarm of the broker (memory, disk) holds up all that publish, but it tells only those that try: what is quiet
    finds out by this alone. Whoever counts time against somebody who would have to publish asks it first.
    """
    if broker.state is not LinkState.UP or broker.blocked is not None:
        return False
    probe = Outgoing("", UNROUTABLE_KEY, b"{}", clock.uuid7(), type="probe")
    sending = asyncio.create_task(broker.publish([probe], PROBE_TIMEOUT_S), name="probe of the broker")
    try:
        while not sending.done() and broker.blocked is None:
            await asyncio.wait([sending], timeout=BLOCKED_POLL_INTERVAL_S)
        return sending.done() and sending.result()[0].outcome in (Outcome.RETURNED, Outcome.CONFIRMED)
    finally:
        sending.cancel()


class BrokerProbe:
    """Asks now and then, for a process whose duties do not: so that it can tell that its broker takes no messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = Loop("probe of the broker", self._round)

    async def start(self) -> None:
        """Begins to ask."""
        await self._loop.start()

    async def stop(self) -> None:
        """Asks no more."""
        await self._loop.stop()

    async def _round(self) -> None:
        await takes_messages(self._broker)
        await asyncio.sleep(PROBE_INTERVAL_S)
