"""Rejoining member: keeps a process a member of the cluster, under a new id after each declared death."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from orchestrix.cluster.member import ClusterMember
from orchestrix.domain.leases import Fence
from orchestrix.lifecycle import backoff, ended

log = logging.getLogger("orchestrix.cluster")


class RejoiningMember:
    """Runs one `ClusterMember` after the other. `make` makes one; it is called again, for a new id, after a death."""

    def __init__(self, make: Callable[[], ClusterMember]) -> None:
        self._make = make
        self._member = make()
        self._task: asyncio.Task[None] | None = None
        self._resigned = False

    @property
    def node_id(self) -> str:
        """The id under which the process is a member now."""
        return self._member.identity.id

    @property
    def member(self) -> ClusterMember:
        """The process as a member of the cluster, under its present id."""
        return self._member

    @property
    def fence(self) -> Fence | None:
        """The fence of its writes as the leader; None while it does not lead, as far as it knows."""
        return self._member.leadership.fence

    async def start(self) -> None:
        """Joins in the background."""
        await self._member.start()
        self._task = asyncio.create_task(self._live(), name="coordinator")

    async def stop(self) -> None:
        """Leaves the cluster in good order; see `ClusterMember.stop`."""
        try:
            if self._task is not None:
                await ended(self._task)
        finally:
            await self._member.stop()

    async def resign(self) -> None:
        """Gives up leadership, and does not take it again: another node has it before this one has ended.

        Nor does the process join again from now on, even if it is declared dead: it is about to end.
        """
        self._resigned = True
        await self._member.leadership.stop()

    async def joined(self) -> None:
        """Waits until the node is a member."""
        await self._member.membership.joined.wait()

    def begin_drain(self) -> None:
        """Marks this node as taking nothing new; it keeps what it has until it stops."""
        self._member.begin_drain()

    def problem(self) -> str | None:
        """The health probe."""
        return self._member.problem()

    async def _live(self) -> None:
        while True:
            await self._member.membership.found_dead.wait()
            await self._member.abandon()
            if self._resigned:
                return
            failures = 0
            self._member = self._make()
            log.warning("rejoining the cluster as node %s", self.node_id)
            while not await self._begun():
                failures += 1
                await asyncio.sleep(backoff(failures))

    async def _begun(self) -> bool:
        try:
            await self._member.start()
        except Exception:
            log.exception("rejoining the cluster failed; retrying")
            return False
        return True
