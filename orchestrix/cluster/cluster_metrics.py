"""Cluster metrics: the leader's counts of what is in the database, for whoever scrapes it.

One node alone shows them, so that their sum over all nodes is right. They are counted now and then, not at a scrape.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from orchestrix import clock
from orchestrix.domain.leases import Fence
from orchestrix.leader_duties import PeriodicDuty
from orchestrix.persistence.cluster import cluster_counts
from orchestrix.persistence.cluster.cluster_counts import ServiceShards
from orchestrix.persistence.engine import Connection, Database
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.steps import COMPENSATING, TERMINAL
from orchestrix.telemetry.metrics import catalogue as metrics
from orchestrix.telemetry.metrics.instruments import gauge

COUNT_INTERVAL_S: Final = 15.0
"""Seconds between two counts: as often as Prometheus usually scrapes."""
REST_FACTOR: Final = 20
"""After a count that took long there is so many times that long until the next: so they are hardly a load."""
OVERDUE_AFTER: Final = timedelta(seconds=30)
"""What was due so long ago is late: a node polls every 5 s at least."""
SILENT_HEARTBEATS: Final = 1.5
"""An executor that has missed so many heartbeats is silent, long before it is removed."""

_active, _stuck, _late = gauge(metrics.SAGA_ACTIVE), gauge(metrics.SAGA_STUCK), gauge(metrics.SAGA_TIMERS_LATE)
_pending, _age, _dead = gauge(metrics.OUTBOX_PENDING), gauge(metrics.OUTBOX_AGE), gauge(metrics.DEAD_LETTERS)
_nodes, _executors = gauge(metrics.NODES), gauge(metrics.EXECUTORS)
_assigned, _unowned = gauge(metrics.SHARDS_ASSIGNED), gauge(metrics.SHARDS_UNOWNED)
_generation, _generations = gauge(metrics.SHARD_GENERATION), gauge(metrics.SHARD_GENERATIONS)
GAUGES: Final = (
    *(_active, _stuck, _late, _pending, _age, _dead, _nodes, _executors),
    *(_assigned, _unowned, _generation, _generations),
)
"""All that the leader alone shows."""


class ClusterMetrics:
    """A leader's duty: counts what is in the database, and shows it until the end of its leadership, or an outage.

    `heartbeat_s` are the seconds between two heartbeats of an executor.
    """

    def __init__(self, _fence: Fence, database: Database, catalog: Catalog, heartbeat_s: float) -> None:
        self._database, self._catalog = database, catalog
        self._silent = timedelta(seconds=SILENT_HEARTBEATS * heartbeat_s)
        self._duty = PeriodicDuty("cluster metrics", self.count)

    async def start(self) -> None:
        """Begins to count."""
        await self._duty.start()

    async def stop(self) -> None:
        """Shows nothing any more."""
        await self._duty.stop()
        _forget()

    async def count(self) -> float:
        """Counts once; seconds until the next time. Raises `RetryableError`.

        Where that fails, nothing is shown: old counts would look like new ones.
        """
        begun = clock.monotonic()
        try:
            async with self._database.read() as connection:
                await self._count(connection)
        except Exception:
            _forget()
            raise
        return max(COUNT_INTERVAL_S, REST_FACTOR * (clock.monotonic() - begun))

    async def _count(self, connection: Connection) -> None:
        """Reads all, then shows all at once: a scrape sees one count, not parts of two."""
        sagas = {saga.name for saga in self._catalog}
        states = {saga: {*self._catalog.states(saga), COMPENSATING} - TERMINAL for saga in sagas}
        active = await cluster_counts.active_sagas(connection, states)
        stuck = await cluster_counts.stuck_sagas(connection, sagas, OVERDUE_AFTER)
        late = await cluster_counts.late_timers(connection, OVERDUE_AFTER)
        outbox = await cluster_counts.outbox_counts(connection)
        dead_letters = await cluster_counts.open_dead_letters(connection)
        nodes = await cluster_counts.nodes_by_state(connection)
        executors = await cluster_counts.executors(connection, self._silent)
        shards = await cluster_counts.shards(connection)
        _active.keep({(state,): count for state, count in active.items()})
        _stuck.keep({(saga,): stuck[saga] for saga in sagas | stuck.keys()})
        _late.keep({(): late})
        _pending.keep({(): outbox.pending})
        _age.keep({(): outbox.oldest_s})
        _dead.keep({(): dead_letters})
        _nodes.keep({(state.lower(),): count for state, count in nodes.items()})
        _executors.keep(executors)
        _show_shards(shards)


def _show_shards(services: list[ServiceShards]) -> None:
    statistics = (
        ((one.service, name), count)
        for one in services
        for name, count in ((metrics.MINIMUM, one.fewest), (metrics.MAXIMUM, one.most), (metrics.SUM, one.assigned))
    )
    _assigned.keep(dict(statistics))
    _unowned.keep({(one.service,): max(0, one.shards - one.assigned) for one in services})
    _generation.keep({(one.service,): one.number for one in services})
    _generations.keep(
        {
            (one.service, state): int(state in one.live)
            for one in services
            for state in (metrics.PENDING, metrics.ACTIVE)
        }
    )


def _forget() -> None:
    for one in GAUGES:
        one.keep({})
