"""Node assembly: the parts of a node, and the order in which they start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrix.bootstrap.coordinator import ClusterDependencies, make_coordinator, membership_database
from orchestrix.bootstrap.factories import (
    Connect,
    DatabaseWatch,
    load_catalog,
    open_broker,
    open_database,
    resources_of,
    unique_name,
    watched,
)
from orchestrix.bootstrap.jobs import NodeJobs
from orchestrix.broker.port import Broker, WantedTopology
from orchestrix.broker.probe import BrokerProbe
from orchestrix.broker.topology import STOPS, saga_topology
from orchestrix.cluster.coordinator import Coordinator
from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.cluster.leader_monitor import LeaderMonitor
from orchestrix.config.settings import Settings
from orchestrix.dead_letters.collector import DeadLetterCollector
from orchestrix.dead_letters.job_dead_letters import JobDeadLetters
from orchestrix.dead_letters.quota import DeadLetterQuota
from orchestrix.dead_letters.service import DeadLetterService
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.control import SagaControl
from orchestrix.engine.event_listener import EventListener
from orchestrix.engine.explain.stuck import StuckSagas
from orchestrix.engine.explain.why import SagaExplainer
from orchestrix.engine.held_events import HeldEvents
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.maintenance.broker_reset import TAKEOVER_TIMEOUT_S, BrokerResetDetector
from orchestrix.engine.maintenance.clock_regression import ClockRegressionDetector
from orchestrix.engine.maintenance.pruner import Pruner
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.engine.starter import SagaStarter
from orchestrix.engine.step_starts import QueueProgress, StepStartListener
from orchestrix.engine.timers import SagaTimers
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, Health, Service, Services
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.definition_store import DefinitionStore
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance


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


@dataclass(slots=True)
class CommitListeners:
    """Notifies those that watch wake-ups of what has just been committed."""

    listeners: list[Callable[[Iterable[Instance]], None]] = field(default_factory=list)
    learned: list[Callable[[], None]] = field(default_factory=list)
    """Callbacks for when the catalog has grown."""

    def ring(self, moved: Iterable[Instance]) -> None:
        """`moved` may have to be woken soon."""
        for one in self.listeners:
            one(list(moved))


@dataclass(slots=True)
class Node:
    """One process's part of the system. `links` start at once; `duties` when the schema is known to fit, and after
    them `post`, which is the membership in the cluster and ends first."""

    name: str
    settings: Settings
    database: Database
    broker: Broker
    catalog: Catalog
    health: Health
    relay: OutboxRelay
    watch: SagaChangeNotifier
    starter: SagaStarter
    database_watch: DatabaseWatch
    roles: frozenset[str]
    resources: Sequence[Resource] = ()
    alone: bool = False
    """Whether the broker lives and dies with this process, so that nobody else sends it again what it has lost."""
    connect: Connect | None = None
    """Makes further connections to the broker, which a coordinator needs."""
    coordinator: Coordinator | None = field(init=False, default=None)
    jobs: NodeJobs = field(init=False)
    links: Services = field(init=False)
    duties: Services = field(init=False)
    post: Services = field(init=False)
    incarnation: BrokerResetDetector = field(init=False)
    definitions: DefinitionStore = field(init=False)
    control: SagaControl = field(init=False)
    explainer: SagaExplainer = field(init=False)
    stuck: StuckSagas = field(init=False)
    surroundings: BrokerStatus = field(init=False)
    redispatch: RedispatchService = field(init=False)
    letters: DeadLetterService = field(init=False)
    drainer: DrainRequester = field(init=False)
    vacancy: LeaderMonitor = field(init=False)
    clock_watch: ClockRegressionDetector = field(init=False)
    alarm: CommitListeners = field(default_factory=CommitListeners)
    job_steps: JobSteps | None = None
    """Ties the jobs of steps to their sagas; the starter has it too."""

    def __post_init__(self) -> None:
        membership = membership_database(self.settings, self.database, self.roles)
        closing = [ServiceAdapter(_nothing, one.close) for one in dict.fromkeys((self.database, membership))]
        self.links = Services([*closing, self.database_watch, self.broker])
        self.jobs = NodeJobs(
            settings=self.settings,
            database=self.database,
            relay=self.relay,
            broker=self.broker,
            connect=self.connect or self._own_link,
            alone=self.alone,
        )
        self.job_steps = steps = self.job_steps or JobSteps(self.catalog)
        steps.desk = self.jobs.steps
        self.relay.orders = self.jobs.undelivered
        patience = 0.0 if self.alone else TAKEOVER_TIMEOUT_S
        self.incarnation = BrokerResetDetector(
            self.database, self.broker, self.relay, self.catalog, patience=patience, jobs=steps
        )
        self.definitions = DefinitionStore(self.database, self.catalog, self._learned)
        self.health.watch("Definitions", self.definitions.trouble, vital=False)
        reader = self.definitions
        self.control = SagaControl(self.database, self.relay, self.watch, self.catalog, self.alarm.ring, steps, reader)
        silent = self.settings.jobs.silent
        self.explainer = SagaExplainer(self.database, self.broker, self.catalog, silent, self._phase, reader)
        self.surroundings = BrokerStatus(self.broker)
        self.stuck = StuckSagas(self.database, self.broker, self.settings.jobs.silent)
        self.redispatch = RedispatchService(self.database, self.relay, self.catalog, steps)
        self.letters = DeadLetterService(self.database, self.catalog, self.relay.poke)
        self.drainer = DrainRequester(self.database, self.broker)
        self.clock_watch = ClockRegressionDetector(self.database, self.settings.orchestrator.claim)
        self.vacancy = LeaderMonitor(self.database, self.settings.cluster.lease)
        if "coordinator" in self.roles and self.connect is not None:
            around = ClusterDependencies(self.settings, sorted(self.roles), membership, self.connect, self.jobs)
            self.coordinator = make_coordinator(self.name, around)
        self.health.watch("Coordinator", self._coordination)
        if "api" in self.roles:
            self.health.needs = frozenset({"Database"})
        self.duties = Services(self._duties())
        self.post = Services([] if self.coordinator is None else [self.coordinator])

    @property
    def known_as(self) -> str:
        """Its present id in the cluster: not `name`, where it was declared dead and has joined anew."""
        return self.name if self.coordinator is None else self.coordinator.node_id

    @property
    def within(self) -> float:
        """Seconds in which it leaves the cluster, whatever happens: each part of that has its own limit."""
        return self.settings.cluster.handoff_hard + 5 * CLOSE_TIMEOUT_S

    async def start(self) -> None:
        """Connects in the background; an absent database or broker is no error."""
        await self.links.start()

    async def begin(self) -> None:
        """Waits for the database, then starts the duties. Raises `SchemaMismatch`."""
        await self.database_watch.wait_for_schema()
        await self.definitions.agree()
        await self.duties.start()
        await self.post.start()
        self.health.started = True

    async def settled(self) -> None:
        """Waits until the broker is up and, where that is a duty, has been sent again what it may have lost."""
        await self.broker.wait_up()
        if "orchestrator" in self.roles:
            await self.incarnation.agreed.wait()
        if self.coordinator is not None:
            await self.coordinator.joined()

    async def resign(self) -> None:
        """Lets another node lead, so that the cluster does not wait for the end of this one.

        A node that is `alone` counts as stopping from now on. It keeps its jobs, which nobody else could take.
        """
        if self.alone and self.jobs.present is not None and self.coordinator is not None:
            self.jobs.present.draining = True
            self.coordinator.drain()
        if self.coordinator is not None:
            await self.coordinator.resign()

    async def retire(self) -> None:
        """Hands its jobs over and leaves the cluster; it answers requests all the while."""
        await self.post.stop()

    async def stop(self) -> None:
        """Finishes what is in progress and disconnects."""
        self.health.draining = True
        await self.post.stop()
        await self.duties.stop()
        await self.links.stop()

    def _coordination(self) -> str | None:
        """What is wrong with this node's membership in the cluster, or that there is no leader."""
        own = None if self.coordinator is None else self.coordinator.trouble()
        return own or self.vacancy.trouble()

    def _learned(self) -> None:
        for tell in self.alarm.learned:
            tell()

    def _phase(self) -> str | None:
        """The phase of this node for explanations, if it starts or stops: others' workers do not stop with it."""
        phase = self.health.phase
        return phase if self.alone or phase == "starting" else None

    def _own_link(self, name: str, topology: WantedTopology | None = None, *, heartbeat: int = 0) -> Broker:
        return self.broker

    def _duties(self) -> list[Service]:
        duties: list[Service] = [
            self.definitions,
            self.clock_watch,
            self.relay,
            self.watch,
            self.jobs.poke,
            self.vacancy,
        ]
        if "orchestrator" in self.roles:
            duties += self._orchestration()
        else:
            duties += [BrokerProbe(self.broker)]
        if "api" in self.roles:
            duties += [ServiceAdapter(self.starter.run, self.starter.stop), Pruner(self.database)]
        return duties

    def _orchestration(self) -> list[Service]:
        tuned = self.settings.orchestrator
        self.health.watch("Topology", self.incarnation.trouble)
        progress = QueueProgress(self.database)
        wakeups = SagaTimers(
            self.database,
            self.broker,
            self.relay,
            self.watch,
            self.catalog,
            batch=tuned.batch,
            timeouts=tuned.timeouts_per_second,
            jobs=self.job_steps,
            progress=progress,
            reader=self.definitions,
        )
        self.alarm.listeners.append(wakeups.expect)
        held = HeldEvents(
            self.database,
            self.relay,
            self.watch,
            self.catalog,
            self.definitions,
            jobs=self.job_steps or JobSteps(self.catalog),
            alarm=self.alarm.ring,
        )
        listener = EventListener(
            self.database,
            self.broker,
            self.relay,
            self.watch,
            self.catalog,
            node=self.name,
            batch=tuned.batch,
            alarm=self.alarm.ring,
            deaf=wakeups.deaf,
            jobs=self.job_steps,
            progress=progress,
            reader=self.definitions,
            held=held.poke,
        )
        begins = StepStartListener(
            self.database, self.broker, self.catalog, progress, batch=tuned.batch, reader=self.definitions
        )
        quota = DeadLetterQuota(tuned.dead_letters_per_minute)
        move = partial(DeadLetterCollector, self.database, self.broker, self.catalog, self.relay.poke, quota=quota)
        mover, orders = move(), self.jobs.undelivered
        letters = JobDeadLetters(self.broker, orders, lambda queues: move(queues=queues, orders=orders))
        self.health.watch("Dead letters", lambda: mover.trouble() or letters.trouble(), vital=False)
        self.alarm.learned += [listener.learned, mover.learned, held.poke]
        return [self.incarnation, progress, listener, begins, held, wakeups, mover, letters]


def build_node(
    settings: Settings, roles: frozenset[str], broker_url: str | Callable[[], str], *, alone: bool = False
) -> Node:
    """A node with these roles; nothing is connected yet. Raises `ConfigError` and `DefinitionError`."""
    name = unique_name(settings)
    catalog = load_catalog(settings)
    database = open_database(settings)
    broker = open_broker(broker_url, f"orchestrix node {name}", lambda: saga_topology(catalog) + STOPS)
    health, database_watch = Health(), DatabaseWatch(database, name)
    watched(health, database_watch, broker)
    tuned = settings.orchestrator
    topology = partial(saga_topology, catalog)
    relay = OutboxRelay(database, broker, topology, node=name, lease=tuned.claim, batch=tuned.batch)
    watch = SagaChangeNotifier(database)
    alarm, steps = CommitListeners(), JobSteps(catalog)
    starter = SagaStarter(database, catalog, relay, watch, node=name, batch=tuned.batch, alarm=alarm.ring, jobs=steps)
    return Node(
        name=name,
        settings=settings,
        database=database,
        broker=broker,
        catalog=catalog,
        health=health,
        relay=relay,
        watch=watch,
        starter=starter,
        alarm=alarm,
        job_steps=steps,
        database_watch=database_watch,
        roles=roles,
        resources=resources_of(settings),
        alone=alone,
        connect=partial(open_broker, broker_url),
    )
