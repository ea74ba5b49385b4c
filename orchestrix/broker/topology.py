"""Topology: the names of exchanges and queues, and what each process declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from orchestrix.saga.catalog import Catalog

from .port import CONNECTION, Binding, Exchange, Queue, Topology

COMMANDS: Final = "orchestrator.commands"
EVENTS: Final = "orchestrator.events"
DEAD: Final = "orchestrator.dead"
UNROUTED: Final = "orchestrator.unrouted"
LEADER: Final = "orchestrix.coordinator.leader"
HEARTBEAT: Final = "orchestrix.coordinator.heartbeat"
JOB_CANCEL: Final = "orchestrix.job.cancel"
JOB_ASSIGNED: Final = "orchestrix.job.assigned"
JOB_HANDOFF: Final = "orchestrix.job.handoff"
WORKER_HEARTBEAT: Final = "orchestrix.worker.heartbeat"
SHARD_COORDINATOR: Final = "orchestrix.shard.coordinator"
"""Where members of services that share shards send what they say; any node answers."""
SHARD_MEMBER_PREFIX: Final = "orchestrix.shard.member."
"""The prefix of the queues in which members receive their answers: coordinators send answers nowhere else."""
_SHARD_MEMBER: Final = re.compile(rf"{re.escape(SHARD_MEMBER_PREFIX)}[A-Za-z0-9._:-]+")
_LONGEST_NAME: Final = 255
_MEMBER: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
DISPATCH_QUEUE_PREFIX: Final = "orchestrix.job.dispatch."
"""The prefix of the queues by which jobs reach workers."""
SINGLE: Final[Mapping[str, str | int | bool]] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
"""A queue with a single active consumer; the next one follows when that is gone. Never a classic one: those have been
seen to disappear with their consumer."""

_EXCHANGES: Final = (
    Exchange(UNROUTED, "fanout"),
    Exchange(COMMANDS, "topic"),
    Exchange(EVENTS, "topic", {"alternate-exchange": UNROUTED}),
    Exchange(DEAD, "direct", {"alternate-exchange": UNROUTED}),
)


def saga_topology(catalog: Catalog) -> Topology:
    """Everything that the sagas of `catalog` need: a command and an event queue a step, with their dead letters."""
    return Topology(
        exchanges=_EXCHANGES,
        queues=(Queue(UNROUTED, {"x-queue-type": "quorum"}),),
        bindings=(Binding(UNROUTED, UNROUTED, ""),),
    ) + sum((work_queue(COMMANDS, name) for name in catalog.commands), _many(EVENTS, catalog.event_queues))


def work_queue(exchange: str, name: str) -> Topology:
    """A queue bound by its own name, with its dead letters. The arguments never change."""
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": DEAD,
        "x-dead-letter-routing-key": name,
    }
    return Topology(
        queues=(Queue(name, arguments), Queue(dead_letters_of(name), {"x-queue-type": "quorum"})),
        bindings=(Binding(name, exchange, name), Binding(dead_letters_of(name), DEAD, name)),
    )


def dead_letters_of(queue: str) -> str:
    """The queue that keeps the dead letters of `queue`."""
    return f"{queue}.dead"


def incarnation_queue(incarnation: str) -> Queue:
    """The empty queue whose absence says that the broker has lost its data."""
    return Queue(f"orchestrix.incarnation.{incarnation}", {"x-queue-type": "quorum"})


def node_queue(node_id: str) -> str:
    """The queue that exists while the node is connected, and by which it is notified."""
    return f"orchestrix.node.{node_id}"


REPORTS_KIND: Final = "reports"
"""The kind of a notification of a node that names `jobs` of its own: executors have sent their first reports."""
SHARD_PUSHES_KIND: Final = "shard-pushes"
"""The kind of a notification of a node that names shard clients of its own, which are `to` be sent their shards."""


def heartbeat_queue(node_id: str) -> str:
    """The queue by which a node receives the others' heartbeats."""
    return f"{HEARTBEAT}.{node_id}{CONNECTION}"


def cluster_topology(node_id: str) -> Topology:
    """What a coordinator needs: the election queue, its own presence queue, and its heartbeat queue."""
    presence, listener = node_queue(node_id), heartbeat_queue(node_id)
    return Topology(
        exchanges=(Exchange(HEARTBEAT, "topic"),),
        queues=(Queue(LEADER, SINGLE), Queue(presence, exclusive=True), Queue(listener, exclusive=True)),
        bindings=(Binding(listener, HEARTBEAT, "#"),),
    )


def status_queue(job_id: str) -> str:
    """Where the worker reports the job's status."""
    return f"orchestrix.job.{job_id}.status"


def logs_queue(job_id: str) -> str:
    """Where the worker sends what the job logs."""
    return f"orchestrix.job.{job_id}.logs"


def is_channel(queue: str) -> bool:
    """Whether the queue is one of a job's own, by which its worker reports."""
    job_id = queue.removeprefix("orchestrix.job.").partition(".")[0]
    return queue in (status_queue(job_id), logs_queue(job_id)) and not queue.startswith(DISPATCH_QUEUE_PREFIX)


def job_channels(job_id: str) -> Topology:
    """The queues between the worker that runs the job and the node that owns it."""
    names = status_queue(job_id), logs_queue(job_id)
    return Topology(queues=tuple(Queue(name, SINGLE, unique=True) for name in names))


def dispatch_queue(queue: str) -> str:
    """Where the workers that serve `queue` get their jobs."""
    return DISPATCH_QUEUE_PREFIX + queue


def job_dispatch(queue: str) -> Topology:
    """The queue by which jobs reach the workers that serve `queue`; the default exchange leads to it."""
    return queue_of_work(dispatch_queue(queue))


def cancel_queue(worker_id: str) -> str:
    """Where a worker receives which jobs are to stop."""
    return f"{JOB_CANCEL}.{worker_id}{CONNECTION}"


def worker_cancel_queue(worker_id: str) -> Topology:
    """Where a worker receives which jobs are to stop, as long as it is connected."""
    listener = cancel_queue(worker_id)
    return Topology(
        exchanges=(Exchange(JOB_CANCEL, "topic"),),
        queues=(Queue(listener, exclusive=True),),
        bindings=(Binding(listener, JOB_CANCEL, "#"),),
    )


def worker_topology(queues: Iterable[str]) -> Topology:
    """What workers of jobs share: the queues that they serve, and where their heartbeats go."""
    return queues_of_work(WORKER_HEARTBEATS, *(dispatch_queue(queue) for queue in queues))


def queue_of_work(name: str) -> Topology:
    """A queue with its dead letters that is reached by its own name, through the default exchange."""
    whole = work_queue("", name)
    return Topology(queues=whole.queues, bindings=tuple(one for one in whole.bindings if one.exchange))


def handoff_ack(node_id: str) -> str:
    """Where a node that hands jobs off receives the acknowledgements."""
    return f"{JOB_HANDOFF}.ack.{node_id}"


def worker_heartbeat_queue(node_id: str) -> str:
    """Where a node receives the heartbeats of workers."""
    return f"{WORKER_HEARTBEAT}.{node_id}{CONNECTION}"


def shard_topology() -> Topology:
    """What the nodes share for shards."""
    return queues_of_work(Topology(), SHARD_COORDINATOR)


def member_queue(member: str) -> str:
    """Where a member of a service receives its answers: a name as in `is_member_queue`, new with each connection.

    Raises ValueError unless `member` is 1 to 200 ASCII letters, digits, `.`, `_` and `-`.
    """
    if not _MEMBER.fullmatch(member):
        raise ValueError(f"{member[:100]!r} is no id of a member: use up to 200 ASCII letters, digits, '.', '_', '-'")
    return f"{SHARD_MEMBER_PREFIX}{member}{CONNECTION}"


def member_topology(member: str) -> Topology:
    """The queue of a member's answers. It is exclusive: an answer is of use to that connection alone, and once
    the member is gone the broker returns what is sent to it.
    """
    return Topology(queues=(Queue(member_queue(member), exclusive=True),))


def is_member_queue(reply_to: str | None) -> bool:
    """Whether answers may be sent there: only to a queue of a member, whatever a message asks for."""
    return reply_to is not None and len(reply_to) <= _LONGEST_NAME and _SHARD_MEMBER.fullmatch(reply_to) is not None


WORKER_HEARTBEATS: Final = Topology(exchanges=(Exchange(WORKER_HEARTBEAT, "topic"),))
"""Where the heartbeats of workers go."""
STOPS: Final = Topology(exchanges=(Exchange(JOB_CANCEL, "topic"),))
"""Where workers receive that an attempt is to stop."""


def jobs_topology(node_id: str) -> Topology:
    """What the nodes share for jobs, and where this one receives acknowledgements and heartbeats."""
    acks, heartbeats = handoff_ack(node_id), worker_heartbeat_queue(node_id)
    return queues_of_work(
        Topology(
            exchanges=(*STOPS.exchanges, *WORKER_HEARTBEATS.exchanges),
            queues=(Queue(acks, exclusive=True), Queue(heartbeats, exclusive=True)),
            bindings=(Binding(heartbeats, WORKER_HEARTBEAT, "#"),),
        ),
        JOB_ASSIGNED,
        JOB_HANDOFF,
    )


def queues_of_work(topology: Topology, *names: str) -> Topology:
    """`topology` and queues as of `queue_of_work`, with the exchange that their dead letters go by."""
    dead = Topology(_EXCHANGES, (Queue(UNROUTED, {"x-queue-type": "quorum"}),), (Binding(UNROUTED, UNROUTED, ""),))
    return sum((queue_of_work(name) for name in names), dead + topology)


def once_each(parts: Iterable[Topology]) -> Topology:
    """All of the parts; what several of them name, once."""
    whole = sum(parts, Topology())
    return Topology(
        tuple({one.name: one for one in whole.exchanges}.values()),
        tuple({one.name: one for one in whole.queues}.values()),
        tuple(dict.fromkeys(whole.bindings)),
    )


def _many(exchange: str, names: Iterable[str]) -> Topology:
    return sum((work_queue(exchange, name) for name in names), Topology())


def to_json(topology: Topology) -> dict[str, Any]:
    """`topology` as plain JSON, for a row that must bring its own."""
    return asdict(topology)


def from_json(stored: Mapping[str, Any]) -> Topology:
    """The topology that `to_json` wrote; what a node of another version has added is ignored."""
    return Topology(
        tuple(Exchange(**_known(Exchange, one)) for one in stored.get("exchanges", ())),
        tuple(Queue(**_known(Queue, one)) for one in stored.get("queues", ())),
        tuple(Binding(**_known(Binding, one)) for one in stored.get("bindings", ())),
    )


def _known(kind: type[Exchange | Queue | Binding], stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: stored[name] for name in kind.__slots__ if name in stored}
