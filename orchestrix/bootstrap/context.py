"""Node context: what all assemblies of a node are given, and the signals that are made before the parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrix.broker.port import Broker
from orchestrix.config.settings import Settings
from orchestrix.jobs.executors.owner_notifier import CALLS_KIND
from orchestrix.jobs.job_coordinator import JobSignals
from orchestrix.lifecycle import WakeSignal
from orchestrix.outbox.relay import OutboxSignal
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.shards.forwarding import ForwardedPushes

API, ORCHESTRATOR, COORDINATOR = "api", "orchestrator", "coordinator"


@dataclass(frozen=True, slots=True)
class NodeSignals:
    """What wakes the parts of a node. Made before them all, so that a lower part can wake one that is made later."""

    outbox_ready: OutboxSignal = field(default_factory=OutboxSignal)
    jobs: JobSignals = field(default_factory=JobSignals)
    schedules_due: WakeSignal = field(default_factory=WakeSignal)
    """A schedule, or one of its jobs, has changed."""
    shard_pushes: ForwardedPushes = field(default_factory=ForwardedPushes)
    """Shard clients that are connected to this node, and whose shards another one has changed."""
    catalog_grew: WakeSignal = field(default_factory=WakeSignal)
    """Versions of sagas were read that only other nodes had."""

    def on_notification(self, kind: str) -> None:
        """A notification of that kind has come for this node."""
        if kind == CALLS_KIND:
            self.jobs.calls_due.set()
        else:
            self.node_notified()

    def node_notified(self) -> None:
        """This node was notified: a job is due, a schedule has changed, or it is to drain."""
        self.jobs.due.set()
        self.jobs.broadcasts.set()
        self.schedules_due.set()
        self.jobs.drain_requested.set()


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The settings, connections and signals of one node, whose name is `name`.

    `single_process`: the broker lives and dies with this process, so no other node sends again what it has lost.
    """

    name: str
    settings: Settings
    roles: frozenset[str]
    database: Database
    broker: Broker
    catalog: Catalog
    signals: NodeSignals
    single_process: bool = False
