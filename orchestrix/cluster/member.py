"""Cluster member: a node's membership under one id, from its first heartbeat to its leaving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from orchestrix.broker.port import Broker
from orchestrix.cluster.failure_detector import FailureDetector, FailureTimeouts, NodePruner
from orchestrix.cluster.heartbeats import HeartbeatListener
from orchestrix.cluster.leadership import Leadership
from orchestrix.cluster.lease_store import DatabaseLeaseStore
from orchestrix.cluster.membership import Identity, Membership
from orchestrix.cluster.presence import NodePresence
from orchestrix.config.settings import ClusterSettings
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, DelayedService, DrainSignal, Services, stop_stage
from orchestrix.persistence.engine import Database

PRUNE_DELAY_S: Final = 2.0
"""Seconds after its gain of leadership in which a leader has more urgent duties."""


class NodeWorkload(Protocol):
    """What a node does in a cluster besides being a member."""

    @property
    def count(self) -> int:
        """How many jobs it has."""

    async def start(self) -> None:
        """Begins."""

    async def stop(self) -> None:
        """Hands off what it has, then ends."""

    async def abandon(self) -> None:
        """Ends at once: others have it already."""


class ClusterMember:
    """A node under one id. `link` is its own connection to the broker, with the topology of that id.

    `duties` are what it does besides its own while it leads. `draining` says, for all to see, that it takes nothing
    new. `on_notification` is called with the kind of each notification, `on_reports` with the ids of jobs of its own
    that executors have reported, `on_pushes` with the addresses of shard clients of its own; `on_dead` with the id of
    each node that this one, as the leader, has declared dead. None must block. `single_node` says that the broker lives
    and dies with this process.
    """

    def __init__(
        self,
        identity: Identity,
        database: Database,
        link: Broker,
        settings: ClusterSettings,
        *,
        single_node: bool = False,
        workload: NodeWorkload | None = None,
        duties: Sequence[Duty] = (),
        draining: DrainSignal | None = None,
        on_notification: Callable[[str], None] = lambda kind: None,
        on_reports: Callable[[Collection[str]], None] = lambda job_ids: None,
        on_pushes: Callable[[Collection[str]], None] = lambda addresses: None,
        on_dead: Callable[[str], None] = lambda node_id: None,
    ) -> None:
        self.identity = identity
        self.work = workload
        self._link, self._draining = link, draining or DrainSignal()
        self._handoff_timeout_s = settings.handoff_hard + CLOSE_TIMEOUT_S
        heartbeats = HeartbeatListener(link, identity.id)
        patience = FailureTimeouts(settings.heartbeat, settings.dead, settings.presence)
        own: Sequence[Duty] = (
            lambda fence: FailureDetector(fence, database, link, heartbeats, patience, on_dead),
            lambda fence: DelayedService("node pruner", NodePruner(fence, database), PRUNE_DELAY_S),
        )
        self.membership = Membership(
            database,
            link,
            identity,
            heartbeat=settings.heartbeat,
            dead=settings.dead,
            draining=self._draining,
            load=lambda: workload.count if workload is not None else 0,
        )
        self.leadership = Leadership(
            DatabaseLeaseStore(database, identity.id, settings.lease),
            link,
            identity.id,
            [*own, *duties],
            lease=settings.lease,
            renew=settings.renew,
            single_node=single_node,
        )
        presence = NodePresence(link, identity.id, on_notification, on_reports, on_pushes)
        self._parts = Services([link, heartbeats, presence, self.membership])

    def problem(self) -> str | None:
        """The health probe."""
        return self.membership.problem() or self._link.mismatch

    def begin_drain(self) -> None:
        """Marks the node as taking nothing new; it keeps what it has until it stops."""
        self._draining.begin()

    async def start(self) -> None:
        """Joins, works, and waits for leadership; database and broker may be down."""
        await self._parts.start()
        if self.work is not None:
            await self.work.start()
        await self.leadership.start()

    async def stop(self) -> None:
        """Resigns, hands off what it has, and leaves; each within its time, so that a part that hangs or fails does
        not keep the others from learning that the node is gone.
        """
        await stop_stage("resigning as leader", self.leadership.stop(), CLOSE_TIMEOUT_S)
        self.begin_drain()
        if self.work is not None:
            await stop_stage("handing the jobs off", self.work.stop(), self._handoff_timeout_s)
        await stop_stage("leaving the cluster", self.membership.leave(), CLOSE_TIMEOUT_S)
        await stop_stage("closing the cluster connections", self._parts.stop(), CLOSE_TIMEOUT_S)

    async def abandon(self) -> None:
        """Ends at once, for the node was declared dead: what does not end is abandoned, and bears a dead node's id."""
        await stop_stage("resigning as leader", self.leadership.stop(), CLOSE_TIMEOUT_S)
        if self.work is not None:
            await stop_stage("releasing the jobs", self.work.abandon(), CLOSE_TIMEOUT_S)
        await stop_stage("closing the cluster connections", self._parts.stop(), CLOSE_TIMEOUT_S)
