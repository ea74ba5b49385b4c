"""Job coordinator: everything that a node does with jobs, and the drain service that ends it without losing one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from orchestrix.broker.port import Broker, LinkState
from orchestrix.config.settings import ClusterSettings, JobsSettings
from orchestrix.domain.handoff import SHUTDOWN, HandoffLimits
from orchestrix.domain.leases import Fence
from orchestrix.domain.nodes import NodeState
from orchestrix.errors import RetryableError
from orchestrix.jobs.broadcasts.firing import BroadcastFiring
from orchestrix.jobs.broadcasts.reconciler import BroadcastReconciler
from orchestrix.jobs.cancellation import StopPublisher
from orchestrix.jobs.dispatch import JobDispatcher
from orchestrix.jobs.events import JobEventListener
from orchestrix.jobs.executors.caller import ExecutorCaller
from orchestrix.jobs.executors.own_reports import OwnReports, OwnReportStore
from orchestrix.jobs.executors.owner_notifier import OwnerNotifier
from orchestrix.jobs.executors.port import ExecutorCalls
from orchestrix.jobs.executors.reported_jobs import ReportedJobs, ReportedJobsReader
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
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.jobs")

QUEUE_CLEANER_DELAY_S: Final = 1.0
LOST_DISPATCH_DELAY_S: Final = 1.5
"""Seconds from the gain of leadership until the duties without hurry begin: queue cleaning, lost dispatches."""


@dataclass(frozen=True, slots=True)
class JobSignals:
    """What wakes a job coordinator: a job is due, a broadcast may have to be settled, a node has died, this node's row
    may say that it is to drain, there is an executor to call, or executors have reported.
    """

    due: WakeSignal = field(default_factory=WakeSignal)
    broadcasts: WakeSignal = field(default_factory=WakeSignal)
    orphaned: WakeSignal = field(default_factory=WakeSignal)
    drain_requested: WakeSignal = field(default_factory=WakeSignal)
    reported: ReportedJobs = field(default_factory=ReportedJobs)
    own_reports: OwnReports = field(default_factory=OwnReports)
    calls_due: WakeSignal = field(default_factory=WakeSignal)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDependencies:
    """What the job coordinator depends on.

    `control` is a connection with the topology of jobs; `open_link` makes further ones for the channels of jobs.
    `notify_leader` notifies whoever waits for a job that may begin or that has ended, besides the dispatcher of this
    node; `on_job_change` is notified of jobs that have changed here. Without `executors` none is called.
    """

    database: Database
    relay: OutboxRelay
    control: Broker
    open_link: Callable[[int], Broker]
    cluster: ClusterSettings
    jobs: JobsSettings
    signals: JobSignals = field(default_factory=JobSignals)
    notify_leader: Callable[[], None] = lambda: None
    on_job_change: Callable[[Iterable[str]], None] = lambda ids: None
    executors: ExecutorCalls | None = None


@dataclass(slots=True)
class JobCoordinator:
    """One node's part in jobs, under one id. `duties` are what it does besides while it leads.

    It ends with the hand-off of what it owns, unless it is `single_process` and no other node could take it, or has
    been declared dead. `draining` is set when it begins to hand off; once it is set, the node's row is not looked at
    any more.
    """

    node: str
    dependencies: JobDependencies
    single_process: bool = False
    draining: DrainSignal = field(default_factory=DrainSignal)
    stops: StopPublisher = field(init=False)
    events: JobEventListener = field(init=False)
    owned_jobs: OwnedJobs = field(init=False)
    handoff_subscriber: JobHandoffSubscriber = field(init=False)
    handoff_publisher: JobHandoffPublisher = field(init=False)
    rebalance: JobRebalancer = field(init=False)
    reconcile: OwnershipReconciler = field(init=False)
    worker_heartbeats: WorkerHeartbeatListener = field(init=False)
    _caller: ExecutorCaller | None = field(init=False)
    _services: Services = field(init=False)
    _handoff_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        dependencies, tuned = self.dependencies, self.dependencies.cluster
        database, control, node = dependencies.database, dependencies.control, self.node
        self.stops = StopPublisher(control)
        sent = dependencies.relay.notify
        limit = LogLimit(dependencies.jobs.log_lines, dependencies.jobs.log_bytes)
        publish_stops, notify_leader, on_change = self.stops.publish, self.notify_leader, dependencies.on_job_change
        self.events = JobEventListener(
            database, node, stop=publish_stops, notify_leader=notify_leader, on_change=on_change, sent=sent, limit=limit
        )
        self.owned_jobs = OwnedJobs(database, self.events, node, dependencies.open_link)
        reader = ReportedJobsReader(
            database,
            node,
            dependencies.signals.reported,
            reads=self.owned_jobs.reads,
            consume=partial(self.owned_jobs.consume, late=True),
        )
        own_reports = OwnReportStore(
            node,
            self.events,
            control,
            dependencies.signals.own_reports,
            reads=self.owned_jobs.reads,
            clear=self.owned_jobs.clear,
        )
        self.reconcile = OwnershipReconciler(
            database, self.owned_jobs, node, dependencies.control, interval_s=tuned.reconcile
        )
        caller = self._caller = self._executor_caller()
        on_taken = caller.taken if caller is not None else _nothing
        self.handoff_subscriber = JobHandoffSubscriber(database, control, self.owned_jobs, node, on_taken)
        acks = JobHandoffAckListener(control, node)
        limits = HandoffLimits(tuned.handoff_ack, tuned.handoff_retries, tuned.handoff_hard)
        self.handoff_publisher = JobHandoffPublisher(database, control, self.owned_jobs, acks, node, limits)
        self.rebalance = JobRebalancer(
            database, self.handoff_subscriber, self.handoff_publisher, node, interval_s=tuned.orphan_check
        )
        self.worker_heartbeats = WorkerHeartbeatListener(database, control, node)
        self_fencing = SelfFencing(
            database.ping, self.handoff_subscriber, self.owned_jobs, self.reconcile, limit=tuned.dead
        )
        self._services = Services(
            [
                control,
                self.events,
                self.owned_jobs,
                acks,
                self.worker_heartbeats,
                self.handoff_subscriber,
                self.reconcile,
                self_fencing,
                reader,
                own_reports,
                *([] if caller is None else [caller]),
                self.rebalance,
                PeriodicDuty("drain requests", self._check_drain_request, dependencies.signals.drain_requested),
            ]
        )

    def _firing(self, fence: Fence) -> BroadcastFiring | None:
        dependencies = self.dependencies
        if dependencies.executors is None:
            return None
        return BroadcastFiring(
            dependencies.database,
            fence,
            dependencies.executors.pick,
            open_limit=dependencies.jobs.max_live,
            sent=dependencies.relay.notify,
            on_change=dependencies.on_job_change,
        )

    def _executor_caller(self) -> ExecutorCaller | None:
        """What calls executors for the attempts that this node owns, if it has what it needs for that."""
        dependencies, control = self.dependencies, self.dependencies.control
        if dependencies.executors is None:
            return None
        return ExecutorCaller(
            dependencies.database,
            self.node,
            dependencies.executors,
            consume=partial(self.owned_jobs.consume, late=True),
            listens=lambda: control.state is LinkState.UP and control.blocked is None,
            notify_leader=self.notify_leader,
            on_change=dependencies.on_job_change,
            sent=dependencies.relay.notify,
            wake=dependencies.signals.calls_due,
            on_end=self.reconcile.wake,
        )

    @property
    def count(self) -> int:
        """How many owned jobs it consumes, or calls executors for."""
        called = set() if self._caller is None else self._caller.job_ids
        return len(called | self.owned_jobs.epochs.keys())

    def notify_leader(self) -> None:
        """A job is due, or may be now: the leader polls at once, on whichever node."""
        self.dependencies.signals.due.set()
        self.dependencies.signals.broadcasts.set()
        self.dependencies.notify_leader()

    async def start(self) -> None:
        """Begins to take jobs."""
        await self._services.start()

    async def stop(self) -> None:
        """Hands off what it owns, then ends."""
        if not self.single_process:
            await self.drain()
        await self._services.stop()

    async def abandon(self) -> None:
        """Ends at once: others own its jobs already."""
        await self._services.stop()

    async def _check_drain_request(self) -> float:
        """Drains if its row says so; seconds until the next check."""
        if not self.draining.begun:
            async with self.dependencies.database.read() as connection:
                node = await nodes.get(connection, self.node)
            if node is not None and node.state is NodeState.DRAINING:
                log.info(
                    "node %s: drain requested, handing off its jobs",
                    self.node,
                    extra={"event": log_events.NODE_DRAINING},
                )
                await self.drain()
        return self.dependencies.cluster.reconcile

    async def drain(self) -> None:
        """Takes no more jobs, and hands off its own; returns when others have them, or at the time-out."""
        self.draining.begin()
        async with self._handoff_lock:
            await self.rebalance.stop()
            await self.handoff_subscriber.stop()
            try:
                taken = await self.handoff_publisher.hand_off(SHUTDOWN)
            except RetryableError as error:
                log.warning("cannot hand off jobs: %s", error)
            else:
                log.log(logging.INFO if taken else logging.DEBUG, "handed off %s", counted(taken, "job"))

    def duties(self, fence: Fence) -> Service:
        """The leader's duties: dispatches what is due, and rescues jobs.

        What can wait begins later, one after the other: each needs a connection of its own, and this node may
        just be taking over jobs of the previous leader.
        """
        dependencies, signals = self.dependencies, self.dependencies.signals
        leader_context = LeaderContext(
            dependencies.database, fence, dependencies.relay, self.stops.publish, self.notify_leader
        )
        listening_s = max(dependencies.jobs.silent / 2, 1.5 * dependencies.cluster.heartbeat)
        rescuer = JobRescuer(
            leader_context, dependencies.control, silent=dependencies.jobs.silent, listening_s=listening_s
        )
        queue_cleaner = QueueCleaner(leader_context, dependencies.control)
        most, silent = dependencies.jobs.max_live, dependencies.jobs.silent
        lost = LostDispatchDetector(
            leader_context, dependencies.control, after=dependencies.jobs.silent, listening_s=listening_s
        )
        orphan_detector = OrphanJobDetector(
            leader_context, dependencies.control, interval_s=dependencies.cluster.orphan_check
        )
        reconciler = BroadcastReconciler(leader_context, dependencies.on_job_change)
        return Services(
            [
                JobDispatcher(
                    dependencies.database,
                    fence,
                    signals.due,
                    dependencies.relay,
                    open_limit=most,
                    silent=silent,
                    firing=self._firing(fence),
                    notify_owners=OwnerNotifier(dependencies.control),
                ),
                PeriodicDuty("job rescuer", rescuer.run_once),
                PeriodicDuty("broadcast reconciler", reconciler.run_once, signals.broadcasts),
                PeriodicDuty("orphan detector", orphan_detector.orphans, signals.orphaned),
                PeriodicDuty("ownerless job detector", orphan_detector.unowned),
                self.worker_heartbeats.duty(leader_context),
                _run_after("queue cleaner", queue_cleaner.run_once, QUEUE_CLEANER_DELAY_S),
                _run_after("lost dispatch detector", lost.run_once, LOST_DISPATCH_DELAY_S),
            ]
        )


def _nothing(job_ids: Collection[str]) -> None:
    """There is no listener."""


def _run_after(name: str, run_once: Callable[[], Awaitable[float]], seconds: float) -> DelayedService:
    return DelayedService(name, PeriodicDuty(name, run_once), seconds)
