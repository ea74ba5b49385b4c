"""Node jobs assembly: the parts that a node needs for jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from orchestrix.bootstrap.factories import Connect
from orchestrix.broker.port import Broker
from orchestrix.broker.topology import jobs_topology
from orchestrix.config.settings import Settings
from orchestrix.jobs.cancellation import JobCanceller, StopPublisher
from orchestrix.jobs.change_notifier import JobChangeNotifier
from orchestrix.jobs.coordinator import JobCoordinator, JobDependencies
from orchestrix.jobs.dispatch import Relay
from orchestrix.jobs.leader_notifier import LeaderNotifier
from orchestrix.jobs.rescue.dead_dispatches import DeadDispatchHandler
from orchestrix.jobs.step_jobs import StepJobs
from orchestrix.jobs.submission import JobSubmitter
from orchestrix.persistence.engine import Database
from orchestrix.schedules.service import ScheduleService

LINK_HEARTBEAT_S: Final = 3
"""Seconds: for two to three of them the broker keeps the queues of jobs for a connection that is broken on our side
alone, and gives the messages of workers to nobody else."""


@dataclass(slots=True, kw_only=True)
class NodeJobs:
    """A node's services for jobs, whatever its roles; `coordinator` makes the job coordinator of one that owns jobs.

    `connect` makes a connection to the broker, under a name and with a topology of its own.
    """

    settings: Settings
    database: Database
    relay: Relay
    broker: Broker
    connect: Connect
    alone: bool = False
    watch: JobChangeNotifier = field(default_factory=JobChangeNotifier)
    poke: LeaderNotifier = field(init=False)
    submitter: JobSubmitter = field(init=False)
    canceller: JobCanceller = field(init=False)
    timetable: ScheduleService = field(init=False)
    steps: StepJobs = field(init=False)
    undelivered: DeadDispatchHandler = field(init=False)
    present: JobCoordinator | None = None
    """The running job coordinator, if there is one."""

    def __post_init__(self) -> None:
        self.poke = LeaderNotifier(self.database, self.broker, self._is_here, self.due)
        self.submitter = JobSubmitter(self.database, self.poke)
        stops = StopPublisher(self.broker)
        sent = self.relay.poke
        self.canceller = JobCanceller(self.database, stops.tell, self.watch.tell, sent, self.poke)
        self.steps = StepJobs(self.poke, stop=stops.tell, sent=sent, news=self.watch.tell)
        self.undelivered = DeadDispatchHandler(self.database, due=self.poke, sent=sent, news=self.watch.tell)
        self.timetable = ScheduleService(self.database, self.poke, stops.tell)

    def due(self) -> None:
        """A job is due, a schedule has changed, or this node is to drain: those concerned poll at once."""
        if self.present is not None:
            self.present.due.set()
            self.present.scheduled.set()
            self.present.ordered.set()

    def _is_here(self, node: str) -> bool:
        return self.present is not None and self.present.node == node

    @property
    def count(self) -> int:
        """How many owned jobs this node consumes."""
        return self.present.count if self.present is not None else 0

    def coordinator(self, node: str) -> JobCoordinator:
        """The job coordinator of the node with this id; nothing of it runs yet."""
        self.present = JobCoordinator(node, self._surroundings(node), alone=self.alone)
        return self.present

    def _surroundings(self, node: str) -> JobDependencies:
        return JobDependencies(
            database=self.database,
            relay=self.relay,
            control=self.connect(f"orchestrix jobs of {node}", jobs_topology(node), heartbeat=LINK_HEARTBEAT_S),
            open_link=lambda number: self.connect(
                f"orchestrix jobs {number} of {node}", None, heartbeat=LINK_HEARTBEAT_S
            ),
            cluster=self.settings.cluster,
            jobs=self.settings.jobs,
            poke=self.poke,
            news=self.watch.tell,
        )
