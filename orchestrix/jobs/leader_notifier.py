"""Leader notifier: wakes the leader, on whichever node, when a job is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState, Outgoing
from orchestrix.broker.topology import node_queue
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database
from orchestrix.saga.messages import dump

JOBS_KIND: Final = "jobs"
"""The kind of a notification that is about jobs."""
NOTIFY_INTERVAL_S: Final = 0.02
"""Seconds between two notifications: one is enough for all that has come since."""


class LeaderNotifier:
    """Notifies the leader named by the database: by `here` if `is_leader_here` knows that node, else by the node's
    queue.

    A lost notification costs little, for the leader polls by itself every few seconds.
    """

    def __init__(
        self, database: Database, broker: Broker, is_leader_here: Callable[[str], bool], here: Callable[[], None]
    ) -> None:
        self._database = database
        self._broker = broker
        self._is_leader_here = is_leader_here
        self._here = here
        self._requested = WakeSignal()
        self._loop = Loop("leader notifier", self._round)

    def __call__(self) -> None:
        """There is something for the leader to do."""
        self._requested.set()

    async def start(self) -> None:
        """Begins to notify."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        await self._requested.wait(None)
        async with self._database.read() as connection:
            lease = await leases.read(connection)
        if lease is not None and self._is_leader_here(lease.holder):
            self._here()
        elif lease is not None and self._broker.state is LinkState.UP:
            notify = Outgoing("", node_queue(lease.holder), dump({"kind": JOBS_KIND}), clock.uuid7(), type="node.poke")
            await self._broker.publish([notify], timeout=1.0)
        await asyncio.sleep(NOTIFY_INTERVAL_S)
