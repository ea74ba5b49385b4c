"""Job coordinator: everything that a node does with jobs, and the drain service that ends it without losing one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrix.broker.port import Broker
from orchestrix.config.settings import ClusterSettings, JobsSettings
from orchestrix.domain.handoff import SHUTDOWN, HandoffLimits
from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import NodeState
from orchestrix.errors import RetryableError
from orchestrix.jobs.cancellation import StopPublisher
from orchestrix.jobs.dispatch import JobDispatcher
from orchestrix.jobs.events import JobEventListener
from orchestrix.jobs.log_lines import LogLimit
from orchestrix.jobs.ownership.handoff_publisher import JobHandoffAckListener, JobHandoffPublisher
from orchestrix.jobs.ownership.handoff_subscriber import JobHandoffSubscriber
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.jobs.ownership.rebalancer import JobRebalancer
from orchestrix.jobs.ownership.reconciler import OwnershipReconciler
from orchestrix.jobs.ownership.self_fencing import SelfFencing
from orchestrix.jobs.rescue.job_rescuer import JobRescuer
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.jobs.rescue.lost_dispatches import LostDispatchDetector
from orchestrix.jobs.rescue.orphan_detector import OrphanJobDetector
from orchestrix.jobs.rescue.queue_cleaner import QueueCleaner
from orchestrix.jobs.worker_heartbeats import WorkerHeartbeatListener
from orchestrix.leader_duties import PeriodicDuty
from orchestrix.lifecycle import DelayedService, DrainSignal, Service, Services, WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")

QUEUE_CLEANER_DELAY_S: Final = 1.0
LOST_DISPATCH_DELAY_S: Final = 1.5
"""Seconds from the gain of leadership until the duties that nobody waits for begin: queue cleaning, lost dispatches."""


@dataclass(frozen=True, slots=True)
class JobSignals:
    """What wakes a job coordinator: a job is due, a node has died, or this node's row may say that it is to drain."""

    due: WakeSignal = field(default_factory=WakeSignal)
    orphaned: WakeSignal = field(default_factory=WakeSignal)
    drain_requested: WakeSignal = field(default_factory=WakeSignal)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDependencies:
    """What the job coordinator depends on.

    `control` is a connection with the topology of jobs; `open_link` makes further ones for the channels of jobs. `poke`
    notifies whoever waits for a job that may begin or that has ended, besides the dispatcher of this node; `news` is
    notified of jobs that have changed here.
    """

    database: Database
    relay: OutboxRelay
    control: Broker
    open_link: Callable[[int], Broker]
    cluster: ClusterSettings
    jobs: JobsSettings
    signals: JobSignals = field(default_factory=JobSignals)
    poke: Callable[[], None] = lambda: None
    news: Callable[[Iterable[str]], None] = lambda ids: None


@dataclass(slots=True)
class JobCoordinator:
    """One node's part in jobs, under one id. `duties` are what it does besides while it leads.

    It ends by handing over what it owns, unless it is `alone` and nobody could take it, or has been declared dead.
    `draining` is set when it begins to hand over; once it is set, the node's row is not looked at any more.
    """

    node: str
    around: JobDependencies
    alone: bool = False
    draining: DrainSignal = field(default_factory=DrainSignal)
    stops: StopPublisher = field(init=False)
    events: JobEventListener = field(init=False)
    holdings: OwnedJobs = field(init=False)
    taker: JobHandoffSubscriber = field(init=False)
    giver: JobHandoffPublisher = field(init=False)
    rebalance: JobRebalancer = field(init=False)
    reconcile: OwnershipReconciler = field(init=False)
    beats: WorkerHeartbeatListener = field(init=False)
    _services: Services = field(init=False)
    _giving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        around, tuned = self.around, self.around.cluster
        database, control, node = around.database, around.control, self.node
        self.stops = StopPublisher(control)
        sent = around.relay.poke
        cap = LogLimit(around.jobs.log_lines, around.jobs.log_bytes)
        tell, due, news = self.stops.tell, self.poke, around.news
        self.events = JobEventListener(database, node, stop=tell, due=due, news=news, sent=sent, cap=cap)
        self.holdings = OwnedJobs(database, self.events, node, around.open_link)
        self.taker = JobHandoffSubscriber(database, control, self.holdings, node)
        acks = JobHandoffAckListener(control, node)
        limits = HandoffLimits(tuned.handoff_ack, tuned.handoff_retries, tuned.handoff_hard)
        self.giver = JobHandoffPublisher(database, control, self.holdings, acks, node, limits)
        self.rebalance = JobRebalancer(database, self.taker, self.giver, node, every=tuned.orphan_check)
        self.reconcile = OwnershipReconciler(database, self.holdings, node, around.control, every=tuned.reconcile)
        self.beats = WorkerHeartbeatListener(database, control, node)
        footing = SelfFencing(database.ping, self.taker, self.holdings, self.reconcile, limit=tuned.dead)
        self._services = Services(
            [
                control,
                self.events,
                self.holdings,
                acks,
                self.beats,
                self.taker,
                self.reconcile,
                footing,
                self.rebalance,
                PeriodicDuty("drain requests", self._obey, around.signals.drain_requested),
            ]
        )

    @property
    def count(self) -> int:
        """How many owned jobs it consumes."""
        return self.holdings.count

    def poke(self) -> None:
        """A job is due, or may be now: the leader polls at once, on whichever node."""
        self.around.signals.due.set()
        self.around.poke()

    async def start(self) -> None:
        """Begins to take jobs."""
        await self._services.start()

    async def stop(self) -> None:
        """Hands over what it owns, then ends."""
        if not self.alone:
            await self.drain()
        await self._services.stop()

    async def abandon(self) -> None:
        """Ends at once: others own its jobs already."""
        await self._services.stop()

    async def _obey(self) -> float:
        """Drains if its row says so; seconds until the next check."""
        if not self.draining.begun:
            async with self.around.database.read() as connection:
                node = await nodes.get(connection, self.node)
            if node is not None and node.state is NodeState.DRAINING:
                log.info("node %s: drain requested, handing over its jobs", self.node)
                await self.drain()
        return self.around.cluster.reconcile

    async def drain(self) -> None:
        """Takes no more jobs, and hands over its own; returns when others have them, or at the time-out."""
        self.draining.begin()
        async with self._giving:
            await self.rebalance.stop()
            await self.taker.stop()
            try:
                taken = await self.giver.give(SHUTDOWN)
            except RetryableError as away:
                log.warning("cannot hand over jobs: %s", away)
            else:
                log.log(logging.INFO if taken else logging.DEBUG, "handed over %s", counted(taken, "job"))

    def duties(self, fence: Fence) -> Service:
        """The leader's duties: dispatches what is due, and rescues jobs.

        What nobody waits for begins later, one after the other: each needs a connection of its own, and this node may
        just be taking over jobs of the previous leader.
        """
        around, signals = self.around, self.around.signals
        office = LeaderContext(around.database, fence, around.relay, self.stops.tell, self.poke)
        heard = max(around.jobs.silent / 2, 1.5 * around.cluster.heartbeat)
        watchman = JobRescuer(office, around.control, silent=around.jobs.silent, heard=heard)
        broom = QueueCleaner(office, around.control)
        most, silent = around.jobs.max_live, around.jobs.silent
        lost = LostDispatchDetector(office, around.control, after=around.jobs.silent, heard=heard)
        orphanage = OrphanJobDetector(office, around.control, every=around.cluster.orphan_check)
        return Services(
            [
                JobDispatcher(around.database, fence, signals.due, around.relay, most_open=most, silent=silent),
                PeriodicDuty("job rescuer", watchman.look),
                PeriodicDuty("orphan detector", orphanage.orphans, signals.orphaned),
                PeriodicDuty("ownerless job detector", orphanage.unowned),
                self.beats.duty(office),
                _later("queue cleaner", broom.look, QUEUE_CLEANER_DELAY_S),
                _later("lost dispatch detector", lost.look, LOST_DISPATCH_DELAY_S),
            ]
        )


def _later(name: str, look: Callable[[], Awaitable[float]], seconds: float) -> DelayedService:
    return DelayedService(name, PeriodicDuty(name, look), seconds)
