"""What is a node made of, and in which order do its parts start?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from orchestrix.bootstrap.coordinator import Cluster, make_coordinator, membership_database
from orchestrix.bootstrap.jobs import Jobs
from orchestrix.bootstrap.parts import (
    Connect,
    DatabaseWatch,
    load_catalog,
    open_broker,
    open_database,
    resources_of,
    unique_name,
    watched,
)
from orchestrix.broker.port import Broker, WantedTopology
from orchestrix.broker.probe import Probing
from orchestrix.broker.topology import STOPS, saga_topology
from orchestrix.cluster.coordinator import Coordinator
from orchestrix.cluster.drains import Drainer
from orchestrix.cluster.vacancy import Vacancy
from orchestrix.config import Settings
from orchestrix.lifecycle import CLOSE, Health, Service, Services
from orchestrix.orchestration.begins import BeginListener, QueueProgress
from orchestrix.orchestration.clock_watch import ClockWatch
from orchestrix.orchestration.control import Control
from orchestrix.orchestration.dead_letters import DeadLetters
from orchestrix.orchestration.events import EventListener
from orchestrix.orchestration.held import HeldEvents
from orchestrix.orchestration.housekeeping import Housekeeping
from orchestrix.orchestration.incarnation import PATIENCE, Incarnation
from orchestrix.orchestration.job_letters import JobLetters
from orchestrix.orchestration.job_steps import JobSteps
from orchestrix.orchestration.mover import DeadLetterMover
from orchestrix.orchestration.quota import Quota
from orchestrix.orchestration.redispatch import Redispatch
from orchestrix.orchestration.relay import OutboxRelay
from orchestrix.orchestration.starts import Starter
from orchestrix.orchestration.stuck import Stuck
from orchestrix.orchestration.surroundings import Surroundings
from orchestrix.orchestration.wakeups import Wakeups
from orchestrix.orchestration.watch import Watch
from orchestrix.orchestration.why import Explainer
from orchestrix.persistence.engine import Database
from orchestrix.persistence.versions import Definitions
from orchestrix.resource import Resource
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance


@dataclass(frozen=True, slots=True)
class Call:
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
class Alarm:
    """Tells whoever watches wake-ups what has just been committed."""

    listeners: list[Callable[[Iterable[Instance]], None]] = field(default_factory=list)
    learned: list[Callable[[], None]] = field(default_factory=list)
    """Who is told when the catalog has grown."""

    def ring(self, moved: Iterable[Instance]) -> None:
        """`moved` may have to be woken soon."""
        for one in self.listeners:
            one(list(moved))


@dataclass(slots=True)
class Node:
    """One process's part of the system. `links` start at once; `duties` when the schema is known to fit, and behind
    them `post`, which is the place in the cluster and ends first."""

    name: str
    settings: Settings
    database: Database
    broker: Broker
    catalog: Catalog
    health: Health
    relay: OutboxRelay
    watch: Watch
    starter: Starter
    database_watch: DatabaseWatch
    roles: frozenset[str]
    resources: Sequence[Resource] = ()
    alone: bool = False
    """Whether the broker lives and dies with this process, so that nobody else tells it what it has forgotten."""
    connect: Connect | None = None
    """Makes further connections to the broker, which a coordinator needs."""
    coordinator: Coordinator | None = field(init=False, default=None)
    jobs: Jobs = field(init=False)
    links: Services = field(init=False)
    duties: Services = field(init=False)
    post: Services = field(init=False)
    incarnation: Incarnation = field(init=False)
    definitions: Definitions = field(init=False)
    control: Control = field(init=False)
    explainer: Explainer = field(init=False)
    stuck: Stuck = field(init=False)
    surroundings: Surroundings = field(init=False)
    redispatch: Redispatch = field(init=False)
    letters: DeadLetters = field(init=False)
    drainer: Drainer = field(init=False)
    vacancy: Vacancy = field(init=False)
    clock_watch: ClockWatch = field(init=False)
    alarm: Alarm = field(default_factory=Alarm)
    job_steps: JobSteps | None = None
    """What ties the jobs of steps to their sagas; the starter has it too."""

    def __post_init__(self) -> None:
        membership = membership_database(self.settings, self.database, self.roles)
        closing = [Call(_nothing, one.close) for one in dict.fromkeys((self.database, membership))]
        self.links = Services([*closing, self.database_watch, self.broker])
        self.jobs = Jobs(
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
        patience = 0.0 if self.alone else PATIENCE
        self.incarnation = Incarnation(
            self.database, self.broker, self.relay, self.catalog, patience=patience, jobs=steps
        )
        self.definitions = Definitions(self.database, self.catalog, self._learned)
        self.health.watch("Definitions", self.definitions.trouble, vital=False)
        reader = self.definitions
        self.control = Control(self.database, self.relay, self.watch, self.catalog, self.alarm.ring, steps, reader)
        silent = self.settings.jobs.silent
        self.explainer = Explainer(self.database, self.broker, self.catalog, silent, self._phase, reader)
        self.surroundings = Surroundings(self.broker)
        self.stuck = Stuck(self.database, self.broker, self.settings.jobs.silent)
        self.redispatch = Redispatch(self.database, self.relay, self.catalog, steps)
        self.letters = DeadLetters(self.database, self.catalog, self.relay.poke)
        self.drainer = Drainer(self.database, self.broker)
        self.clock_watch = ClockWatch(self.database, self.settings.orchestrator.claim)
        self.vacancy = Vacancy(self.database, self.settings.cluster.lease)
        if "coordinator" in self.roles and self.connect is not None:
            around = Cluster(self.settings, sorted(self.roles), membership, self.connect, self.jobs)
            self.coordinator = make_coordinator(self.name, around)
        self.health.watch("Coordinator", self._coordination)
        if "api" in self.roles:
            self.health.needs = frozenset({"Database"})
        self.duties = Services(self._duties())
        self.post = Services([] if self.coordinator is None else [self.coordinator])

    @property
    def known_as(self) -> str:
        """What the others call it now: not `name`, where it was declared dead and has joined anew."""
        return self.name if self.coordinator is None else self.coordinator.node_id

    @property
    def within(self) -> float:
        """Seconds in which it leaves the cluster, whatever happens: each part of that has its own limit."""
        return self.settings.cluster.handoff_hard + 5 * CLOSE

    async def start(self) -> None:
        """Connects in the background; an absent database or broker is no error."""
        await self.links.start()

    async def begin(self) -> None:
        """Waits for the database, then takes up the duties. Raises `SchemaMismatch`."""
        await self.database_watch.wait_for_schema()
        await self.definitions.agree()
        await self.duties.start()
        await self.post.start()
        self.health.started = True

    async def settled(self) -> None:
        """Waits until the broker is there and, where that is a duty, has been sent what it may have forgotten."""
        await self.broker.wait_up()
        if "orchestrator" in self.roles:
            await self.incarnation.agreed.wait()
        if self.coordinator is not None:
            await self.coordinator.joined()

    async def resign(self) -> None:
        """Lets another node lead, so that the cluster does not wait for the end of this one.

        One that is alone is seen to be ending from now on. It keeps its jobs, which nobody else could take.
        """
        if self.alone and self.jobs.present is not None and self.coordinator is not None:
            self.jobs.present.draining = True
            self.coordinator.drain()
        if self.coordinator is not None:
            await self.coordinator.resign()

    async def retire(self) -> None:
        """Hands its jobs over and leaves the cluster; whoever asks it is answered all the while."""
        await self.post.stop()

    async def stop(self) -> None:
        """Finishes what is in hand and disconnects."""
        self.health.draining = True
        await self.post.stop()
        await self.duties.stop()
        await self.links.stop()

    def _coordination(self) -> str | None:
        """What is wrong with this node's place in the cluster, or that there is no leader."""
        own = None if self.coordinator is None else self.coordinator.trouble()
        return own or self.vacancy.trouble()

    def _learned(self) -> None:
        for tell in self.alarm.learned:
            tell()

    def _phase(self) -> str | None:
        """What this node's own beginning or end has to do with what a saga waits for: others' workers do not end."""
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
            duties += [Probing(self.broker)]
        if "api" in self.roles:
            duties += [Call(self.starter.run, self.starter.stop), Housekeeping(self.database)]
        return duties

    def _orchestration(self) -> list[Service]:
        tuned = self.settings.orchestrator
        self.health.watch("Topology", self.incarnation.trouble)
        progress = QueueProgress(self.database)
        wakeups = Wakeups(
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
        begins = BeginListener(
            self.database, self.broker, self.catalog, progress, batch=tuned.batch, reader=self.definitions
        )
        quota = Quota(tuned.dead_letters_per_minute)
        move = partial(DeadLetterMover, self.database, self.broker, self.catalog, self.relay.poke, quota=quota)
        mover, orders = move(), self.jobs.undelivered
        letters = JobLetters(self.broker, orders, lambda queues: move(queues=queues, orders=orders))
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
    watch = Watch(database)
    alarm, steps = Alarm(), JobSteps(catalog)
    starter = Starter(database, catalog, relay, watch, node=name, batch=tuned.batch, alarm=alarm.ring, jobs=steps)
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
