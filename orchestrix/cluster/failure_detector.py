"""Failure detector: the cluster's health monitor, by which the leader declares nodes dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker
from orchestrix.cluster.heartbeats import HeartbeatListener
from orchestrix.cluster.presence import missing
from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import MissingNodes, NodeRow, is_silent
from orchestrix.domain.stored_times import CLOCK_TOLERANCE_S
from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import LiveNodes
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.telemetry import log_events
from orchestrix.telemetry.metrics.catalogue import NODES_DIED
from orchestrix.telemetry.metrics.instruments import counter

log = logging.getLogger("orchestrix.cluster")
_died = counter(NODES_DIED).at()

LINK_SETTLED_HEARTBEATS: Final = 2
"""Heartbeats for which the leader's own link must be up before a missing queue counts."""
CHECKS_BETWEEN_PINGS: Final = 2
"""Checks between two pings that count."""
NODE_RETENTION_S: Final = 24 * 3600.0
"""Seconds for which the rows of dead and left nodes are kept."""
PRUNE_INTERVAL_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class FailureTimeouts:
    """How long a node is waited for, in seconds; see `ClusterSettings`."""

    heartbeat: float
    dead: float
    presence: float


class FailureDetector:
    """A leader's duty: declares nodes dead, and notifies `on_dead`, which must not block.

    It does not trust its own listening: silence does not count while it could not listen, because it did not lead, had
    no database or stalled.
    """

    def __init__(
        self,
        fence: Fence,
        database: Database,
        broker: Broker,
        heartbeats: HeartbeatListener,
        timeouts: FailureTimeouts,
        on_dead: Callable[[str], None],
    ) -> None:
        self._fence, self._database, self._broker, self._heartbeats = fence, database, broker, heartbeats
        self._timeouts, self._on_dead = timeouts, on_dead
        self._since: datetime | None = None
        self._last: tuple[float, datetime] | None = None
        """When the last check was over (monotonic), and the database's time then."""
        self._missing_nodes = MissingNodes(timeouts.presence)
        self._generation = -1
        self._present: set[str] = set()
        self._loop = Loop("failure detector", self._round)

    async def start(self) -> None:
        """Begins to check."""
        await self._loop.start()

    async def stop(self) -> None:
        """Checks no more."""
        await self._loop.stop()

    async def _round(self) -> None:
        living, since = await self._read_nodes()
        others = [node for node in living.nodes if node.id != self._fence.holder]
        for node in others:
            if is_silent(node, now=living.now, since=since, limit=self._timeouts.dead):
                await self._declare_dead(node, f"last heartbeat {node.beat_at:%H:%M:%S} UTC")
        gone = self._missing_nodes.observe(clock.monotonic(), await self._missing(others))
        for node in others:
            if node.id == gone:
                await self._declare_dead(node, "its presence queue is gone and no heartbeat arrived")
        await asyncio.sleep(self._timeouts.presence / CHECKS_BETWEEN_PINGS)

    async def _read_nodes(self) -> tuple[LiveNodes, datetime]:
        """The nodes, and since when this leader listens to them. An outage of its own, or a stall, begins that
        again.
        """
        asked = clock.monotonic()
        try:
            async with self._database.read() as connection:
                living = await nodes.living(connection)
        except RetryableError:
            self._since = None
            raise
        set_back, answered = self._set_back(asked, living.now), clock.monotonic()
        self._last = answered, living.now
        if self._since is None or set_back or answered - asked > self._timeouts.dead / 3:
            self._since = living.now
        return living, self._since

    def _set_back(self, asked: float, now: datetime) -> bool:
        """Whether the database's clock was set back since the last check: then no heartbeat counts until the nodes
        have had their time to write another one."""
        if self._last is None:
            return False
        answered, before = self._last
        passed = (now - before) / timedelta(seconds=1)
        return passed < 0.0 or passed < asked - answered - CLOCK_TOLERANCE_S / 2

    async def _missing(self, others: Sequence[NodeRow]) -> Mapping[str, datetime]:
        """The last heartbeats of the nodes whose queues this link has seen, and which do not exist any more."""
        if self._broker.generation != self._generation:
            self._generation = self._broker.generation
            self._present.clear()
        if not others or self._heartbeats.listening_for_s < LINK_SETTLED_HEARTBEATS * self._timeouts.heartbeat:
            return {}
        absent = await missing(self._broker, [node.id for node in others])
        if absent is None:
            return {}
        self._present |= {node.id for node in others if node.id in self._heartbeats.latest or node.id not in absent}
        return {node.id: node.beat_at for node in others if node.id in absent & self._present}

    async def _declare_dead(self, node: NodeRow, reason: str) -> None:
        if await self._database.run(lambda tx: self._declare(tx, node)):
            crash.point("nodes.death.after_commit")
            extra = {"event": log_events.NODE_DEAD, "node": node.id, "reason": reason}
            log.warning("node %s is considered dead: %s", node.id, reason, extra=extra)
            _died.add()
            self._on_dead(node.id)

    async def _declare(self, tx: Transaction, node: NodeRow) -> bool:
        declared = await nodes.declare_dead(tx, self._fence, node.id, node.beat_at)
        crash.point("nodes.death.before_commit")
        return declared


class NodePruner:
    """A leader's duty: removes the rows of nodes and workers that are long gone."""

    def __init__(self, fence: Fence, database: Database) -> None:
        self._fence, self._database = fence, database
        self._loop = Loop("node pruner", self._round)

    async def start(self) -> None:
        """Begins."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        await self._database.run(lambda tx: nodes.prune(tx, self._fence, NODE_RETENTION_S))
        await asyncio.sleep(clock.uniform(PRUNE_INTERVAL_S / 2, PRUNE_INTERVAL_S))
