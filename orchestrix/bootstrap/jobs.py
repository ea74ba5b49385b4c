"""Node jobs assembly: the parts that a node needs for jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrix.bootstrap.context import NodeContext
from orchestrix.bootstrap.factories import Connect
from orchestrix.broker.topology import jobs_topology
from orchestrix.jobs.cancellation import JobCanceller, StopPublisher
from orchestrix.jobs.change_notifier import JobChangeNotifier
from orchestrix.jobs.executors.port import ExecutorCalls
from orchestrix.jobs.executors.reported_jobs import ReportNotifier
from orchestrix.jobs.executors.reports import ExecutorReports
from orchestrix.jobs.job_coordinator import JobCoordinator, JobDependencies
from orchestrix.jobs.leader_notifier import LeaderNotifier
from orchestrix.jobs.rescue.dead_dispatches import DeadDispatchHandler
from orchestrix.jobs.retry import JobRetrier
from orchestrix.jobs.step_jobs import StepJobs
from orchestrix.jobs.submission import JobSubmitter
from orchestrix.lifecycle import DrainSignal
from orchestrix.outbox.relay import OutboxRelay

LINK_HEARTBEAT_S: Final = 3
"""Seconds: for two to three of them the broker keeps the queues of jobs for a connection that is broken on our side
alone, and gives the messages of workers to no other node."""


@dataclass(frozen=True, slots=True)
class JobNotifiers:
    """Who is notified of jobs: the leader that one is due, and those who follow one that it has changed."""

    leader: LeaderNotifier
    changes: JobChangeNotifier


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """A node's services for jobs, whatever its roles. `stops` notifies workers that an attempt is over."""

    notifiers: JobNotifiers
    stops: StopPublisher
    submitter: JobSubmitter
    canceller: JobCanceller
    retrier: JobRetrier
    steps: StepJobs
    reports: ExecutorReports


def make_notifiers(node: NodeContext, is_here: Callable[[str], bool]) -> JobNotifiers:
    """`is_here`: whether that is the id of this node, which then needs no message."""
    here = node.signals.node_notified
    return JobNotifiers(LeaderNotifier(node.database, node.broker, is_here, here), JobChangeNotifier())


def handle_dead_dispatches(node: NodeContext, notifiers: JobNotifiers) -> DeadDispatchHandler:
    """The rules for job dispatches that are dead letters, or that the broker refuses."""
    sent, on_change = node.signals.outbox_ready.set, notifiers.changes.notify
    return DeadDispatchHandler(node.database, notify_leader=notifiers.leader, sent=sent, on_change=on_change)


def assemble_jobs(node: NodeContext, notifiers: JobNotifiers, is_here: Callable[[str], bool]) -> NodeJobs:
    """The services; nothing of them runs yet. `is_here` as in `make_notifiers`."""
    notify_owner = ReportNotifier(node.broker, is_here, node.signals.jobs.reported.add)
    stops, due, on_change, sent = (
        StopPublisher(node.broker),
        notifiers.leader,
        notifiers.changes.notify,
        node.signals.outbox_ready.set,
    )
    return NodeJobs(
        notifiers,
        stops,
        JobSubmitter(node.database, due),
        JobCanceller(node.database, stops.publish, on_change, sent, due),
        JobRetrier(node.database, on_change, due),
        StepJobs(due, stop=stops.publish, sent=sent, on_change=on_change),
        ExecutorReports(node.database, node.broker, notify_owner, node.signals.jobs.own_reports),
    )


def job_coordinator(
    node: NodeContext,
    node_id: str,
    relay: OutboxRelay,
    notifiers: JobNotifiers,
    connect: Connect,
    drain: DrainSignal,
    executors: ExecutorCalls | None,
) -> JobCoordinator:
    """The job coordinator of a node that owns jobs under this id; nothing of it runs yet."""

    def job_due() -> None:
        node.signals.schedules_due.set()
        notifiers.leader()

    dependencies = JobDependencies(
        database=node.database,
        relay=relay,
        control=connect(f"orchestrix jobs of {node_id}", jobs_topology(node_id), heartbeat=LINK_HEARTBEAT_S),
        open_link=lambda number: connect(f"orchestrix jobs {number} of {node_id}", None, heartbeat=LINK_HEARTBEAT_S),
        cluster=node.settings.cluster,
        jobs=node.settings.jobs,
        signals=node.signals.jobs,
        notify_leader=job_due,
        on_job_change=notifiers.changes.notify,
        executors=executors,
    )
    return JobCoordinator(node_id, dependencies, single_process=node.single_process, draining=drain)
