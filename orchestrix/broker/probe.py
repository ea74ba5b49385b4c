"""Broker probe: finds out whether the broker takes messages now."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix import clock
from orchestrix.lifecycle import Loop

from .port import Broker, LinkState, Outcome, Outgoing

UNROUTABLE_KEY: Final = "orchestrix.nobody"
"""No queue has this name: the broker returns what is addressed to it."""
PROBE_TIMEOUT_S: Final = 5.0
"""Seconds that the broker has for that, over a link that may be slow."""
PROBE_INTERVAL_S: Final = 5.0
"""Seconds between two probes without a caller."""
BLOCKED_POLL_INTERVAL_S: Final = 0.1
"""Seconds between two checks for `blocked` while a probe waits for its answer."""


async def accepts_messages(broker: Broker) -> bool:
    """Whether the broker takes a message that is bound to no queue.

    An alarm of the broker (memory, disk) blocks all that publish, but it notifies only those that try: an idle
    connection learns of it by this alone. To be asked before a timeout counts against a process that has to publish.
    """
    if broker.state is not LinkState.UP or broker.blocked is not None:
        return False
    probe = Outgoing("", UNROUTABLE_KEY, b"{}", clock.uuid7(), type="probe")
    sending = asyncio.create_task(broker.publish([probe], PROBE_TIMEOUT_S), name="broker probe")
    try:
        while not sending.done() and broker.blocked is None:
            await asyncio.wait([sending], timeout=BLOCKED_POLL_INTERVAL_S)
        return sending.done() and sending.result()[0].outcome in (Outcome.RETURNED, Outcome.CONFIRMED)
    finally:
        sending.cancel()


class BrokerProbe:
    """Probes regularly, for a process that does not publish: so that its health says when the broker is blocked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = Loop("broker probe", self._round)

    async def start(self) -> None:
        """Begins to probe."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops probing."""
        await self._loop.stop()

    async def _round(self) -> None:
        await accepts_messages(self._broker)
        await asyncio.sleep(PROBE_INTERVAL_S)
