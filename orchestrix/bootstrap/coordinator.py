"""Coordinator assembly: a node's membership in the cluster, and what it does there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix.bootstrap.factories import Connect, unique_name
from orchestrix.bootstrap.jobs import NodeJobs
from orchestrix.broker.topology import cluster_topology
from orchestrix.cluster.coordinator import Coordinator
from orchestrix.cluster.member import ClusterMember
from orchestrix.cluster.membership import Identity
from orchestrix.config.settings import Settings
from orchestrix.persistence.engine import Database

LINK_HEARTBEAT_S: Final = 5
"""Seconds: the broker takes the token from a leader that is frozen or cut off after two to three of them."""
STATEMENT_TIMEOUT_S: Final = 5.0
POOL_SIZE: Final = 4
"""Connections: for the lease, a heartbeat, a poll, and one to terminate blocking sessions."""


@dataclass(frozen=True, slots=True)
class ClusterDependencies:
    """What a coordinator depends on. `connect` makes its links to the broker."""

    settings: Settings
    roles: Sequence[str]
    database: Database
    connect: Connect
    jobs: NodeJobs


def membership_database(settings: Settings, database: Database, roles: frozenset[str]) -> Database:
    """The database by connections of their own: a lease must not wait for a free one behind the work.

    Writers of one SQLite file wait for each other anyway, and had better do so in this process.
    """
    if database.dialect.one_writer or settings.database_url is None or "coordinator" not in roles:
        return database
    return Database(
        settings.database_url, pool_size=POOL_SIZE, name="orchestrix-cluster", statement_limit=STATEMENT_TIMEOUT_S
    )


def make_coordinator(node_id: str, around: ClusterDependencies) -> Coordinator:
    """A coordinator that begins under `node_id`; nothing of it runs yet."""
    ids = _ids(node_id, around.settings)
    return Coordinator(lambda: _life(next(ids), around))


def _ids(first: str, settings: Settings) -> Iterator[str]:
    yield first
    while True:
        yield unique_name(settings)


def _life(node_id: str, around: ClusterDependencies) -> ClusterMember:
    jobs = around.jobs
    work = jobs.coordinator(node_id)
    life = ClusterMember(
        Identity(node_id, around.settings.node_id, around.roles),
        around.database,
        around.connect(f"orchestrix cluster {node_id}", cluster_topology(node_id), heartbeat=LINK_HEARTBEAT_S),
        around.settings.cluster,
        sole=jobs.alone,
        work=work,
        poked=lambda kind: jobs.due(),
        on_dead=lambda dead: work.orphaned.set(),
    )
    work.on_drain.append(life.membership.drain)
    return life
