"""Membership: the cluster's heartbeat service, which keeps the node's own row.

It also learns from the row whether the node was declared dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState
from orchestrix.cluster.heartbeats import heartbeat_message
from orchestrix.domain.nodes import FEATURE_LEVEL, NodeState
from orchestrix.errors import RetryableError
from orchestrix.lifecycle import DrainSignal, Loop
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database, Transaction

log = logging.getLogger("orchestrix.cluster")

HEARTBEAT_SPEEDUP_WITHOUT_LINK: Final = 10
"""A node without link sends heartbeats so many times more often: by its queue it seems to be gone."""
ANNOUNCE_TIMEOUT_S: Final = 2.0
LEAVE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a node: one run of one process, on its `host`, of this `version`."""

    id: str
    name: str
    roles: Sequence[str]
    host: str | None = None
    version: str | None = None


class Membership:
    """Keeps the node's own row, and publishes it to the others.

    `load` says how many jobs it has; from `draining` on its heartbeats say that it takes nothing new. `heartbeat` and
    `dead` are in seconds.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        identity: Identity,
        *,
        heartbeat: float,
        dead: float,
        draining: DrainSignal,
        load: Callable[[], int] = lambda: 0,
    ) -> None:
        self._database, self._broker, self._identity, self._load = database, broker, identity, load
        self._heartbeat, self._dead = heartbeat, dead
        self._draining, self._wake = draining, draining.wake
        self._has_left = False
        self._heartbeat_at: float | None = None
        self.joined = asyncio.Event()
        self.found_dead = asyncio.Event()
        """Set when the node has learnt that it was declared dead."""
        self._loop = Loop("membership", self._round)
        broker.on_down(lambda generation, why: self._wake.set())

    async def start(self) -> None:
        """Joins in the background, and sends heartbeats."""
        await self._loop.start()

    async def stop(self) -> None:
        """Sends no more heartbeats. The row stays as it is: see `leave`."""
        await self._loop.stop()

    @property
    def _state(self) -> NodeState:
        if self._has_left:
            return NodeState.LEFT
        return NodeState.DRAINING if self._draining.begun else NodeState.ALIVE

    async def leave(self) -> None:
        """Sends no more heartbeats, and marks the node as LEFT, unless the database is unavailable."""
        await self._loop.stop()
        self._has_left = True
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                if self.joined.is_set() and not self.found_dead.is_set():
                    await self._database.run(lambda tx: nodes.leave(tx, self._identity.id))
                await self._announce()
        except (RetryableError, TimeoutError) as error:
            why = str(error) or f"no answer within {LEAVE_TIMEOUT_S:g} s"
            log.warning("node %s could not mark itself LEFT: %s", self._identity.id, why)

    def problem(self) -> str | None:
        """The health probe."""
        if self._heartbeat_at is None:
            return "the node has not joined the cluster yet"
        silent = clock.monotonic() - self._heartbeat_at
        return f"heartbeats have not been stored for {silent:.0f} s" if silent >= self._dead else None

    async def _round(self) -> None:
        if self.found_dead.is_set():
            await self._wake.wait(None)
            return
        if not await self._database.run(self._write):
            log.warning("node %s was declared dead by the leader", self._identity.id)
            self.found_dead.set()
            return
        self._heartbeat_at = clock.monotonic()
        self.joined.set()
        await self._announce()
        linked = self._broker.state is LinkState.UP
        interval_s = self._heartbeat if linked else self._heartbeat / HEARTBEAT_SPEEDUP_WITHOUT_LINK
        await self._wake.wait(max(0.0, self._heartbeat_at + interval_s - clock.monotonic()))

    async def _write(self, tx: Transaction) -> bool:
        """True if the node lives, by its row."""
        who = self._identity
        if not self.joined.is_set() and await self._is_new(tx):
            return True
        return await nodes.record_heartbeat(tx, who.id, self._state, self._load())

    async def _is_new(self, tx: Transaction) -> bool:
        who = self._identity
        return await nodes.join(tx, who.id, who.name, who.roles, who.host, who.version, FEATURE_LEVEL)

    async def _announce(self) -> None:
        """A broker that takes no messages must not hold up the next heartbeat."""
        if self._broker.blocked is not None:
            return
        heartbeat = heartbeat_message(self._identity.id, self._load(), self._state, self._database.now())
        await self._broker.publish([heartbeat], ANNOUNCE_TIMEOUT_S)
