"""Node: the composition root, which makes the parts of a node bottom-up, and the order in which they start and stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrix.bootstrap.cluster import (
    ClusterLinks,
    NodeCluster,
    NodeIds,
    NodeWork,
    assemble_cluster,
    membership_database,
)
from orchestrix.bootstrap.context import API, ORCHESTRATOR, NodeContext, NodeSignals
from orchestrix.bootstrap.dead_letters import NodeDeadLetters, assemble_dead_letters
from orchestrix.bootstrap.engine import NodeEngine, assemble_engine, follow_catalog
from orchestrix.bootstrap.executor_calls import NodeExecutors, assemble_executor_calls
from orchestrix.bootstrap.factories import (
    Connect,
    load_catalog,
    open_broker,
    open_database,
    resources_of,
    unique_name,
)
from orchestrix.bootstrap.health_checks import DatabaseWatch, watched
from orchestrix.bootstrap.jobs import (
    JobNotifiers,
    NodeJobs,
    assemble_jobs,
    handle_dead_dispatches,
    job_coordinator,
    make_notifiers,
)
from orchestrix.bootstrap.node_metrics import NodeMetrics
from orchestrix.bootstrap.registry import assemble_registry, registry_duty, registry_works
from orchestrix.bootstrap.shards import NodeShards, assemble_shards
from orchestrix.broker.port import Broker
from orchestrix.broker.probe import BrokerProbe
from orchestrix.broker.topology import STOPS, saga_topology
from orchestrix.cluster.cluster_metrics import ClusterMetrics
from orchestrix.config.settings import Settings
from orchestrix.dead_letters import redrive
from orchestrix.engine.job_steps import JobGateway, JobSteps
from orchestrix.engine.maintenance.clock_regression import ClockRegressionDetector
from orchestrix.engine.maintenance.pruner import Pruner
from orchestrix.jobs.job_coordinator import JobCoordinator
from orchestrix.leader_duties import Duty
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, DrainSignal, Health, Service, Services
from orchestrix.outbox.relay import OutboxRelay, RefusedRowRule
from orchestrix.persistence.engine import Database
from orchestrix.registry.services import ExecutorRegistry
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.schedules.scheduler import Scheduler
from orchestrix.schedules.service import ScheduleService


@dataclass(frozen=True, slots=True)
class ServiceAdapter:
    """A part whose start and stop have other names."""

    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]

    async def start(self) -> None:
        await self.begin()

    async def stop(self) -> None:
        await self.end()


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Node:
    """One process's part of the system. `links` start at once; `works` when the schema is known to fit, and after
    them `membership`, which is that of the cluster and ends first.
    """

    context: NodeContext
    health: Health
    database_watch: DatabaseWatch
    resources: Sequence[Resource]
    relay: OutboxRelay
    dead_letters: NodeDeadLetters
    jobs: NodeJobs
    schedules: ScheduleService
    registry: ExecutorRegistry
    engine: NodeEngine
    cluster: NodeCluster
    shards: NodeShards | None
    links: Services
    works: Services
    membership: Services

    @property
    def current_id(self) -> str:
        """Its present id in the cluster: not its name, where it was declared dead and has joined again."""
        coordinator = self.cluster.coordinator
        return self.context.name if coordinator is None else coordinator.node_id

    @property
    def leave_limit_s(self) -> float:
        """Seconds in which it leaves the cluster, whatever happens: each part of that has its own limit."""
        return self.context.settings.cluster.handoff_hard + 5 * CLOSE_TIMEOUT_S

    async def start(self) -> None:
        """Connects in the background; an absent database or broker is no error."""
        await self.links.start()

    async def begin(self) -> None:
        """Waits for the database, then starts to work. Raises `SchemaMismatch`."""
        await self.database_watch.wait_for_schema()
        await self.engine.definitions.agree()
        await self.works.start()
        await self.membership.start()
        self.health.started = True

    async def settled(self) -> None:
        """Waits until the broker is up and, where that is a duty, has been sent again what it may have lost."""
        await self.context.broker.wait_connected()
        if ORCHESTRATOR in self.context.roles:
            await self.engine.reset_detector.agreed.wait()
        if self.cluster.coordinator is not None:
            await self.cluster.coordinator.joined()
        if self.shards is not None:
            await self.shards.broker.wait_connected()

    async def resign(self) -> None:
        """Lets another node lead, so that the cluster does not wait for the end of this one.

        The node of a `single_process` counts as stopping from now on. It keeps its jobs: no other node could take them.
        """
        coordinator = self.cluster.coordinator
        if coordinator is None:
            return
        if self.context.single_process:
            coordinator.begin_drain()
        await coordinator.resign()

    async def retire(self) -> None:
        """Hands its jobs off and leaves the cluster; it answers requests all the while."""
        await self.membership.stop()

    async def stop(self) -> None:
        """Finishes what is in progress and disconnects."""
        self.health.stopping = True
        await self.membership.stop()
        await self.works.stop()
        await self.links.stop()


def open_node(
    settings: Settings, roles: frozenset[str], broker_url: str | Callable[[], str], *, single_process: bool = False
) -> Node:
    """A node over the database of `settings` and the broker at `broker_url`; nothing is connected yet.

    Raises `ConfigError` and `DefinitionError`.
    """
    name = unique_name(settings)
    catalog = load_catalog(settings)
    database = open_database(settings)
    return build_node(
        settings,
        database=database,
        broker=open_broker(broker_url, f"orchestrix node {name}", lambda: saga_topology(catalog) + STOPS),
        roles=roles,
        catalog=catalog,
        name=name,
        single_process=single_process,
        links=ClusterLinks(membership_database(settings, database, roles), partial(open_broker, broker_url)),
    )


def build_node(
    settings: Settings,
    *,
    database: Database,
    broker: Broker,
    roles: frozenset[str],
    catalog: Catalog,
    name: str,
    single_process: bool = False,
    links: ClusterLinks | None = None,
    database_watch: DatabaseWatch | None = None,
    signals: NodeSignals | None = None,
    step_jobs: JobGateway | None = None,
) -> Node:
    """A node over this database and this broker; nothing of it runs yet. Raises `ConfigError` and `DefinitionError`.

    `links` are the connections of a coordinator. `single_process` as in `NodeContext`. `database_watch`, `signals` and
    the jobs of steps may be the caller's own.
    """
    node = NodeContext(name, settings, roles, database, broker, catalog, signals or NodeSignals(), single_process)
    health = Health(frozenset({"Database"}) if API in roles else None)
    ids = NodeIds(name, partial(unique_name, settings))
    notifiers = make_notifiers(node, ids.is_current)
    dead_dispatches = handle_dead_dispatches(node, notifiers)
    relay = _relay(node, [dead_dispatches.refused, redrive.refused])
    dead_letters = assemble_dead_letters(node, dead_dispatches)
    jobs = assemble_jobs(node, notifiers, ids.is_current)
    schedules = ScheduleService(database, notifiers.leader, jobs.stops.publish)
    registry = assemble_registry(node, lambda: ids.current)
    engine = assemble_engine(node, relay, JobSteps(catalog, step_jobs or jobs.steps), partial(_phase, node, health))
    executors = assemble_executor_calls(node, registry, lambda: ids.current)
    cluster = assemble_cluster(node, links, ids, partial(_work, node, relay, notifiers, executors))
    shards = assemble_shards(node, links.connect if links is not None else None, lambda: ids.current)
    watch = database_watch or DatabaseWatch(database, name)
    _report(health, node, watch, dead_letters, engine, cluster, shards)
    return Node(
        node,
        health,
        watch,
        resources_of(settings),
        relay,
        dead_letters,
        jobs,
        schedules,
        registry,
        engine,
        cluster,
        shards,
        links=_links(node, watch, links, executors),
        works=Services(_works(node, relay, dead_letters, jobs, registry, engine, cluster, executors, shards)),
        membership=Services([] if cluster.coordinator is None else [cluster.coordinator]),
    )


def _relay(node: NodeContext, refused: Sequence[RefusedRowRule]) -> OutboxRelay:
    tuned = node.settings.orchestrator
    return OutboxRelay(
        node.database,
        node.broker,
        partial(saga_topology, node.catalog),
        node=node.name,
        lease=tuned.claim,
        batch=tuned.batch,
        ready=node.signals.outbox_ready,
        refused=refused,
    )


def _phase(node: NodeContext, health: Health) -> str | None:
    """The phase of this node for explanations, if it starts or stops: others' workers do not stop with it."""
    phase = health.phase
    return phase if node.single_process or phase == "starting" else None


def _work(
    node: NodeContext,
    relay: OutboxRelay,
    notifiers: JobNotifiers,
    executors: NodeExecutors | None,
    connect: Connect,
    node_id: str,
    draining: DrainSignal,
) -> NodeWork:
    """What a member of the cluster does."""
    calls = executors.calls if executors is not None else None
    jobs = job_coordinator(node, node_id, relay, notifiers, connect, draining, calls)
    return NodeWork(jobs, _leader_duties(node, jobs))


def _leader_duties(node: NodeContext, jobs: JobCoordinator) -> list[Duty]:
    """What the leader does besides watching the nodes. Shards need no leader: any node answers their members."""
    signals = node.signals
    schedules = partial(
        Scheduler,
        node.database,
        wake=signals.schedules_due,
        notify_leader=signals.jobs.due.set,
        stop=jobs.stops.publish,
    )
    metrics = partial(
        ClusterMetrics, database=node.database, catalog=node.catalog, heartbeat_s=node.settings.registry.beat
    )
    return [jobs.duties, schedules, registry_duty(node), metrics]


def _report(
    health: Health,
    node: NodeContext,
    database_watch: DatabaseWatch,
    dead_letters: NodeDeadLetters,
    engine: NodeEngine,
    cluster: NodeCluster,
    shards: NodeShards | None,
) -> None:
    """Puts the parts on the health page."""
    watched(health, database_watch, node.broker)
    health.watch("Definitions", engine.definitions.problem, critical=False)
    health.watch("Coordinator", cluster.problem)
    if ORCHESTRATOR in node.roles:
        health.watch("Topology", engine.reset_detector.problem)
    if shards is not None:
        health.watch("Shards", shards.problem)
    if dead_letters.collectors is not None:
        health.watch("Dead letters", dead_letters.collectors.problem, critical=False)


def _links(
    node: NodeContext, database_watch: DatabaseWatch, links: ClusterLinks | None, executors: NodeExecutors | None
) -> Services:
    """The connections. The databases are closed last."""
    databases = [node.database, *([links.database] if links is not None else [])]
    closing = [ServiceAdapter(_nothing, one.close) for one in dict.fromkeys(databases)]
    calling: list[Service] = []
    if executors is not None:
        calling = [executors.refresher, ServiceAdapter(_nothing, executors.client.close)]
    return Services([*closing, database_watch, node.broker, *calling])


def _works(
    node: NodeContext,
    relay: OutboxRelay,
    dead_letters: NodeDeadLetters,
    jobs: NodeJobs,
    registry: ExecutorRegistry,
    engine: NodeEngine,
    cluster: NodeCluster,
    executors: NodeExecutors | None,
    shards: NodeShards | None,
) -> list[Service]:
    """What a node of these roles runs, in the order of the start."""
    clock_watch = ClockRegressionDetector(node.database, node.settings.orchestrator.claim)
    works: list[Service] = [NodeMetrics(node.roles, cluster.coordinator)]
    works += [engine.definitions, clock_watch, relay, engine.changes, jobs.notifiers.leader]
    works.append(cluster.leader_monitor)
    works += _orchestration(node, engine, dead_letters) if ORCHESTRATOR in node.roles else [BrokerProbe(node.broker)]
    if API in node.roles:
        works += [ServiceAdapter(engine.starter.run, engine.starter.stop), Pruner(node.database)]
    probing = [] if executors is None else [executors.prober]
    return [*works, *registry_works(node, registry), *probing, *([] if shards is None else shards.works)]


def _orchestration(node: NodeContext, engine: NodeEngine, dead_letters: NodeDeadLetters) -> list[Service]:
    moving, collectors = engine.orchestration, dead_letters.collectors
    assert moving is not None, "an orchestrator moves sagas"
    assert collectors is not None, "an orchestrator collects dead letters"
    follow = [moving.listener.catalog_changed, collectors.sagas.catalog_changed, moving.held_events.notify]
    return [
        engine.reset_detector,
        moving.progress,
        moving.listener,
        moving.starts,
        moving.held_events,
        moving.timers,
        collectors.sagas,
        collectors.jobs,
        follow_catalog(node.signals.catalog_grew, follow),
    ]
