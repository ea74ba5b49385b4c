"""Cluster assembly: a node's membership in the cluster, and what it does there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix.bootstrap.context import COORDINATOR, NodeContext
from orchestrix.bootstrap.factories import Connect
from orchestrix.broker.topology import cluster_topology
from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.cluster.leader_monitor import LeaderMonitor
from orchestrix.cluster.member import ClusterMember, NodeWorkload
from orchestrix.cluster.membership import Identity
from orchestrix.cluster.rejoining_member import RejoiningMember
from orchestrix.config.settings import Settings
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import DrainSignal
from orchestrix.persistence.engine import Database
from orchestrix.version import VERSION, host_name

LINK_HEARTBEAT_S: Final = 5
"""Seconds: the broker takes the token from a leader that is frozen or cut off after two to three of them."""
STATEMENT_TIMEOUT_S: Final = 5.0
POOL_SIZE: Final = 4
"""Connections: for the lease, a heartbeat, a poll, and one to terminate blocking sessions."""


class NodeIds:
    """The ids under which a process is a member of the cluster: `first`, and another one after each declared death."""

    def __init__(self, first: str, make: Callable[[], str]) -> None:
        self._next, self._make = first, make
        self._current: str | None = None

    def next(self) -> str:
        """The id of a new membership, which is the current one from now on."""
        self._current, self._next = self._next, self._make()
        return self._current

    @property
    def current(self) -> str | None:
        """The id of the present membership; None before the first one."""
        return self._current

    def is_current(self, node_id: str) -> bool:
        """Whether this process is that member now."""
        return node_id == self._current


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What a member of the cluster does under one id: its workload, and its duties while it leads."""

    load: NodeWorkload
    leader_duties: Sequence[Duty]


MakeWork = Callable[[Connect, str, DrainSignal], NodeWork]
"""Makes the work of a member with this id, with connections of its own. The signal is set when it takes nothing new."""


@dataclass(frozen=True, slots=True)
class ClusterLinks:
    """The connections of a coordinator: `database` for its lease and heartbeats; `connect` makes links."""

    database: Database
    connect: Connect


@dataclass(frozen=True, slots=True)
class NodeCluster:
    """A node's parts for the cluster; `coordinator` only where the node is a member of it."""

    drain_requester: DrainRequester
    leader_monitor: LeaderMonitor
    coordinator: RejoiningMember | None

    def problem(self) -> str | None:
        """What is wrong with this node's membership, or that there is no leader."""
        own = None if self.coordinator is None else self.coordinator.problem()
        return own or self.leader_monitor.problem()


def membership_database(settings: Settings, database: Database, roles: frozenset[str]) -> Database:
    """The database by connections of their own: a lease must not wait for a free one behind the work.

    Writers of one SQLite file wait for each other anyway, and had better do so in this process.
    """
    if database.dialect.single_writer or settings.database_url is None or COORDINATOR not in roles:
        return database
    return Database(
        settings.database_url, pool_size=POOL_SIZE, name="orchestrix-cluster", statement_limit=STATEMENT_TIMEOUT_S
    )


def assemble_cluster(node: NodeContext, links: ClusterLinks | None, ids: NodeIds, work: MakeWork) -> NodeCluster:
    """The parts; nothing of them runs yet. A coordinator needs `links`."""
    monitor = LeaderMonitor(node.database, node.settings.cluster.lease)
    coordinator = None
    if COORDINATOR in node.roles:
        assert links is not None, "a coordinator has connections of its own"
        coordinator = RejoiningMember(lambda: _member(node, links, ids.next(), work))
    return NodeCluster(DrainRequester(node.database, node.broker), monitor, coordinator)


def _member(node: NodeContext, links: ClusterLinks, node_id: str, make: MakeWork) -> ClusterMember:
    draining = DrainSignal()
    work = make(links.connect, node_id, draining)
    return ClusterMember(
        Identity(node_id, node.settings.node_id, sorted(node.roles), host_name(), VERSION),
        links.database,
        links.connect(f"orchestrix cluster {node_id}", cluster_topology(node_id), heartbeat=LINK_HEARTBEAT_S),
        node.settings.cluster,
        single_node=node.single_process,
        workload=work.load,
        duties=work.leader_duties,
        draining=draining,
        on_notification=node.signals.on_notification,
        on_reports=node.signals.jobs.reported.add,
        on_pushes=node.signals.shard_pushes.add,
        on_dead=lambda dead: node.signals.jobs.orphaned.set(),
    )
