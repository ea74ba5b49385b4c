"""Cluster models: nodes, workers, the leader's lease and the last changes of the leader."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field

from orchestrix.api.answers import Answer, OptionalTime, Time
from orchestrix.api.query import Query, Text
from orchestrix.domain.leases import ElectionReason, LeaderMode
from orchestrix.domain.nodes import NodeRow, NodeState
from orchestrix.persistence.cluster.leases import Handover
from orchestrix.persistence.cluster.nodes import WorkerRow


class LeaseBody(Answer):
    """Until when the leader leads, unless it renews."""

    lease_until: Time = Field(alias="until")
    gained_at: Time
    resigned_at: OptionalTime


class NodeBody(Answer):
    """One node: one run of one process."""

    id: str = Field(examples=["node-1-5f3a9c55"])
    name: str = Field(examples=["node-1"])
    state: NodeState = Field(examples=["ALIVE"])
    is_leader: bool = Field(examples=[True])
    roles: list[str] = Field(examples=[["api", "coordinator", "orchestrator"]])
    job_count: int = Field(description="Its load: how many jobs it owns.")
    started_at: Time
    beat_at: Time = Field(description="When its last heartbeat arrived.")
    ended_at: OptionalTime
    host: str | None = Field(examples=["app-1"], description="Null for a node of a release that does not tell it.")
    version: str | None = Field(examples=["0.1.0"], description="Its release.")

    @classmethod
    def made(cls, node: NodeRow, leader: str | None) -> Self:
        """The node, while `leader` leads."""
        return cls.of(node, is_leader=node.id == leader)


class WorkerQuery(Query):
    """Which workers."""

    queue: Text | None = Field(None, description="Only those that serve this queue, of commands or of jobs.")
    kind: Literal["commands", "jobs"] | None = Field(None, description="Only those that serve queues of this kind.")


class WorkerBody(Answer):
    """One worker process. What a worker of a former release, or of another language, does not report is null."""

    id: str = Field(examples=["worker-1-7b1f0c9f"])
    state: Literal["ALIVE", "DRAINING", "SILENT"] = Field(
        examples=["ALIVE"],
        description="`DRAINING`: it stops, takes nothing new, and lets its work go on for a while. `SILENT`: no "
        "heartbeat since `beatAt`, for half of the time after which its jobs are lost (`jobs.silent`), or longer.",
    )
    queues: list[str] = Field(
        examples=[["reports"]], description="Those that it takes jobs from; none any more while it stops."
    )
    command_queues: list[str] | None = Field(
        examples=[["cmd.registerApp"]],
        description="Those that it takes commands from; none any more while it stops.",
    )
    handlers: list[str] | None = Field(examples=[["monthly"]], description="The jobs that it has functions for.")
    jobs: int = Field(description="How many it has, by its own last heartbeat; 0 once they are lost.")
    commands: int | None = Field(description="How many it has, by its own last heartbeat; 0 once it is lost.")
    lost_places: int = Field(
        description="Places taken by functions that go on though their attempts have ended: restart the worker."
    )
    host: str | None = Field(examples=["app-2"])
    version: str | None = Field(examples=["0.1.0"], description="Its release.")
    started_at: Time
    beat_at: Time = Field(description="When its last heartbeat arrived.")

    @classmethod
    def made(cls, worker: WorkerRow, ago: timedelta, limit: timedelta) -> Self:
        """One whose last heartbeat was so long `ago`: it has no work any more from the `limit` on, and is silent from
        half of it on, as for those who ask what a job waits for. One that stops says that it has no queue.
        """
        facts, serves = worker.facts, worker.queues or worker.command_queues
        lost = ago >= limit
        return cls.of(
            worker,
            state="SILENT" if ago >= limit / 2 else "ALIVE" if serves else "DRAINING",
            jobs=0 if lost else worker.jobs,
            commands=0 if lost and facts.commands is not None else facts.commands,
            command_queues=facts.command_queues,
            handlers=facts.handlers,
            host=facts.host,
            version=facts.version,
        )


class WorkerList(Answer):
    """The workers, the latest heartbeat first."""

    items: list[WorkerBody]


class HandoverBody(Answer):
    """The beginning of a term."""

    term: int
    from_holder: str | None = Field(alias="from", description="Who led before.")
    to_holder: str = Field(alias="to", examples=["node-1-5f3a9c55"])
    mode: LeaderMode = Field(examples=["broker"])
    reason: ElectionReason = Field(examples=["lost"])
    began_at: Time = Field(
        description="When the former leader was gone, as far as is known; not before the new one was there."
    )
    gained_at: Time
    ended_at: OptionalTime = Field(description="When the new leader first wrote; null if it never did.")
    took_ms: int | None = Field(
        description="From `beganAt` to `endedAt`, in milliseconds; without the time in which no node ran."
    )

    @classmethod
    def made(cls, handover: Handover) -> Self:
        """The handover, and how long it took."""
        ended = handover.ended_at
        took = None if ended is None else round((ended - handover.began_at) / timedelta(milliseconds=1))
        return cls.of(handover, took_ms=took)


class ClusterBody(Answer):
    """The cluster, as the database has it: the same on every node."""

    leader: str | None = Field(examples=["node-1-5f3a9c55"], description="The node that leads; null while none does.")
    term: int = Field(description="Rises with each leader; 0 before the first.")
    mode: LeaderMode | None = Field(description="`alone`: the leader has no broker.")
    lease: LeaseBody | None
    nodes: list[NodeBody] = Field(description="Those that live, in the order of their start; then those that ended.")
    workers: list[WorkerBody] = Field(
        description="The latest heartbeat first. One that has left is not shown, a silent one for 10 min."
    )
    handovers: list[HandoverBody] = Field(description="The last ones, the newest first.")
