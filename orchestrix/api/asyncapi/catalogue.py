"""Message catalogue: every message and channel, who sends it, and the model of its body.

The models are where they are used: those of shards in `domain.shards.messages`, those of executors' registrations and
reports in the API, all others in `domain.contracts`. Commands and events of sagas are added by name for each saga.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pydantic import BaseModel

from orchestrix.api.jobs.reports import LogReport, StatusReport
from orchestrix.api.registry.models import ExecutorBody, HeartbeatBody
from orchestrix.broker import topology
from orchestrix.broker.port import Outgoing
from orchestrix.domain.contracts import cluster, jobs, registry, sagas
from orchestrix.domain.shards import messages as shards
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import STEP_FAILED, STEP_STARTED, Compensation, Order, order_of


class Party(Enum):
    """Who sends or receives a message."""

    NODE = "node"
    WORKER = "worker"
    EXECUTOR = "executor"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class MessageContract:
    """A message: its name, which is the property `type` over AMQP, the model of its body, and what it says."""

    name: str
    model: type[BaseModel]
    summary: str


@dataclass(frozen=True, slots=True)
class ChannelContract:
    """A channel: a queue, a topic (`exchange` with any routing key) or a path of HTTP, and what goes over it.

    A queue is reached by its name, through `exchange`: "" is the default exchange. `exclusive` queues live as long as
    the connection of whoever reads them.
    """

    name: str
    address: str
    summary: str
    messages: Sequence[MessageContract]
    sender: Party
    receiver: Party
    exchange: str = ""
    topic: bool = False
    exclusive: bool = False
    single: bool = False
    method: str | None = None


def _one(name: str, model: type[BaseModel], summary: str = "") -> MessageContract:
    return MessageContract(name, model, summary or (model.__doc__ or name).partition("\n")[0])


NODE, WORKER, EXECUTOR, MEMBER = Party.NODE, Party.WORKER, Party.EXECUTOR, Party.MEMBER
STEP_FAILED_MESSAGE: Final = _one(STEP_FAILED, sagas.StepFailedEvent)
STEP_STARTED_MESSAGE: Final = _one(STEP_STARTED, sagas.StepStartedEvent)
_SHARDS: Final = {name: _one(f"shard.{name}", model) for name, model in shards.MODELS.items()}
_NOTIFICATION: Final = cluster.NodeNotificationMessage
_REPORTS: Final = "/jobs/{jobId}/attempts/{historyId}"

_SAGA_CHANNELS: Final = (
    ChannelContract(
        STEP_FAILED, STEP_FAILED, "Failures of any step of any saga.", [STEP_FAILED_MESSAGE], WORKER, NODE,
        topology.EVENTS,
    ),
    ChannelContract(
        STEP_STARTED, STEP_STARTED, "Begins of late or long steps of any saga.", [STEP_STARTED_MESSAGE], WORKER, NODE,
        topology.EVENTS,
    ),
)  # fmt: skip
_JOB_CHANNELS: Final = (
    ChannelContract(
        "job.dispatch", topology.dispatch_queue("{queue}"), "Attempts of jobs, for the workers of a queue.",
        [_one("job.dispatch", jobs.JobDispatchMessage)], NODE, WORKER,
    ),
    ChannelContract(
        "job.status", topology.status_queue("{jobId}"), "Statuses of a job, for the node that owns it.",
        [_one("job.status", jobs.JobStatusMessage)], WORKER, NODE, single=True,
    ),
    ChannelContract(
        "job.logs", topology.logs_queue("{jobId}"), "Lines of a job's log, for the node that owns it.",
        [_one("job.log", jobs.JobLogMessage)], WORKER, NODE, single=True,
    ),
    ChannelContract(
        "job.assigned", topology.JOB_ASSIGNED, "Jobs without an owner.",
        [_one("job.assigned", jobs.JobAssignedMessage)], NODE, NODE,
    ),
    ChannelContract(
        "job.cancel", "{queue}", "Attempts that are to stop, for all workers.",
        [_one("job.cancel", jobs.JobCancelMessage)], NODE, WORKER, topology.JOB_CANCEL, topic=True,
    ),
    ChannelContract(
        "job.handoff", topology.JOB_HANDOFF, "Jobs that another node is to take.",
        [_one("job.handoff", jobs.JobHandoffMessage)], NODE, NODE,
    ),
    ChannelContract(
        "job.handoff.ack", topology.handoff_ack("{nodeId}"), "Jobs that another node has taken.",
        [_one("job.handoff.ack", jobs.JobHandoffAckMessage)], NODE, NODE, exclusive=True,
    ),
)  # fmt: skip
_CLUSTER_CHANNELS: Final = (
    ChannelContract(
        "leader", topology.LEADER, "Holds one token; the node that it names leads.",
        [_one("leader.token", cluster.LeaderTokenMessage)], NODE, NODE, single=True,
    ),
    ChannelContract(
        "node.heartbeat", "{nodeId}", "Signs of life of nodes.",
        [_one("node.heartbeat", cluster.NodeHeartbeatMessage)], NODE, NODE, topology.HEARTBEAT, topic=True,
    ),
    ChannelContract(
        "node", topology.node_queue("{nodeId}"), "Exists while the node is connected, and by it the node is notified.",
        [_one("node.poke", _NOTIFICATION), _one("node.ping", _NOTIFICATION, "Does this node's queue exist?")],
        NODE, NODE, exclusive=True,
    ),
    ChannelContract(
        "worker.heartbeat", "{workerId}", "Signs of life of workers.",
        [_one("worker.heartbeat", cluster.WorkerHeartbeatMessage)], WORKER, NODE, topology.WORKER_HEARTBEAT, topic=True,
    ),
)  # fmt: skip
_SHARD_CHANNELS: Final = (
    ChannelContract(
        "shard.coordinator", topology.SHARD_COORDINATOR,
        "What members of services say that share shards. The answer goes to the property `reply_to`.",
        [_SHARDS[shards.REGISTER], _SHARDS[shards.HEARTBEAT], _SHARDS[shards.LEAVE]], MEMBER, NODE,
    ),
    ChannelContract(
        "shard.member", f"{topology.SHARD_MEMBER_PREFIX}{{member}}", "Answers to a member: its shards.",
        [_SHARDS[shards.ASSIGNMENT]], NODE, MEMBER, exclusive=True,
    ),
)  # fmt: skip
_REGISTRY_CHANNELS: Final = (
    ChannelContract(
        "registry", "/api/registry", "Heartbeats of executors; the first one registers.",
        [_one("registry.heartbeat", HeartbeatBody, "An executor is here.")], EXECUTOR, NODE, method="POST",
    ),
    ChannelContract(
        "registry.remove", "/api/registryRemove", "Goodbyes of executors.",
        [_one("registry.goodbye", ExecutorBody, "An executor is not here any more.")], EXECUTOR, NODE, method="POST",
    ),
    ChannelContract(
        "executor.run", "/run", "Attempts that an executor is to run; signed.",
        [_one("executor.run", registry.RunCallMessage)], NODE, EXECUTOR, method="POST",
    ),
    ChannelContract(
        "executor.cancel", "/cancel", "Attempts that an executor is to stop; signed.",
        [_one("executor.cancel", registry.CancelCallMessage)], NODE, EXECUTOR, method="POST",
    ),
    ChannelContract(
        "executor.status", f"{_REPORTS}/status", "Statuses of an attempt of an executor.",
        [_one("executor.status", StatusReport)], EXECUTOR, NODE, method="POST",
    ),
    ChannelContract(
        "executor.logs", f"{_REPORTS}/logs", "Lines of an attempt's log, up to 500.",
        [_one("executor.logs", LogReport)], EXECUTOR, NODE, method="POST",
    ),
)  # fmt: skip
CHANNELS: Final = (*_SAGA_CHANNELS, *_JOB_CHANNELS, *_CLUSTER_CHANNELS, *_SHARD_CHANNELS, *_REGISTRY_CHANNELS)
"""Those that are there whatever sagas there are."""
MESSAGES: Final[Mapping[str, MessageContract]] = {one.name: one for each in CHANNELS for one in each.messages}


def saga_channels(catalog: Catalog) -> list[ChannelContract]:
    """The commands and events of these sagas, by their names."""
    found = [
        channel
        for saga in catalog
        for step in saga.steps
        for undoes in (False, True)
        if not undoes or isinstance(step.undo, Compensation)
        for channel in _of(order_of(step, undoes), f"{'undo' if undoes else 'do'} {step.name} of saga {saga.name}")
    ]
    return sorted(found, key=lambda one: one.name)


def _of(order: Order, doing: str) -> Iterator[ChannelContract]:
    """The channels of a step or of its undo; a job has no command."""
    if order.job is None:
        sent = _one(order.command, sagas.CommandMessage, f"{doing.capitalize()}.")
        yield ChannelContract(sent.name, sent.name, sent.summary, [sent], NODE, WORKER, topology.COMMANDS)
    done = _one(order.event, sagas.SuccessEvent, f"Success: {doing}.")
    yield ChannelContract(done.name, done.name, done.summary, [done], WORKER, NODE, topology.EVENTS)


def contract_of(message: Outgoing) -> MessageContract | None:
    """The contract of the message; None for a probe, which is never received, and for a dead letter, whose body is as
    it came.
    """
    if message.exchange == topology.COMMANDS:
        return MessageContract(message.routing_key, sagas.CommandMessage, "")
    if message.exchange == topology.EVENTS:
        return MESSAGES.get(message.routing_key) or MessageContract(message.routing_key, sagas.SuccessEvent, "")
    if message.exchange == topology.DEAD:
        return None
    return MESSAGES.get(message.type or "") or _SHARDS.get(message.type or "")
