"""Cluster models: nodes, workers, the leader's lease and the last changes of the leader."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal, Self

from pydantic import Field

from orchestrix.api.answers import Answer, OptionalTime, Time, example
from orchestrix.domain.leases import ElectionReason, LeaderMode
from orchestrix.domain.nodes import NodeRow, NodeState
from orchestrix.persistence.cluster.leases import Handover
from orchestrix.persistence.cluster.nodes import WorkerRow

_NODE: Final[dict[str, Any]] = {
    "id": "node-1-5f3a9c55",
    "name": "node-1",
    "state": "ALIVE",
    "isLeader": True,
    "roles": ["api", "coordinator", "orchestrator"],
    "jobCount": 12,
    "startedAt": "2026-01-31T12:00:00.000000Z",
    "beatAt": "2026-01-31T12:30:10.000000Z",
    "endedAt": None,
}
_WORKER: Final[dict[str, Any]] = {
    "id": "worker-1-7b1f0c9f",
    "state": "ALIVE",
    "queues": ["reports"],
    "jobs": 3,
    "lostPlaces": 0,
    "startedAt": "2026-01-31T12:00:00.000000Z",
    "beatAt": "2026-01-31T12:30:10.000000Z",
}
_HANDOVER: Final[dict[str, Any]] = {
    "term": 7,
    "from": "node-2-c0ffee00",
    "to": "node-1-5f3a9c55",
    "mode": "broker",
    "reason": "lost",
    "beganAt": "2026-01-31T12:29:59.980000Z",
    "gainedAt": "2026-01-31T12:30:00.000000Z",
    "endedAt": "2026-01-31T12:30:00.004000Z",
    "tookMs": 24,
}
CLUSTER: Final[dict[str, Any]] = {
    "leader": _NODE["id"],
    "term": 7,
    "mode": "broker",
    "lease": {"until": "2026-01-31T12:30:40.000000Z", "gainedAt": _HANDOVER["gainedAt"], "resignedAt": None},
    "nodes": [_NODE],
    "workers": [_WORKER],
    "handovers": [_HANDOVER],
}


class LeaseBody(Answer):
    """Until when the leader leads, unless it renews."""

    lease_until: Time = Field(alias="until")
    gained_at: Time
    resigned_at: OptionalTime


class NodeBody(Answer):
    """One node: one life of one process."""

    model_config = example(**_NODE)

    id: str
    name: str
    state: NodeState
    is_leader: bool
    roles: list[str]
    job_count: int = Field(description="Its load: how many jobs it owns.")
    started_at: Time
    beat_at: Time = Field(description="When its last heartbeat arrived.")
    ended_at: OptionalTime

    @classmethod
    def made(cls, node: NodeRow, leader: str | None) -> Self:
        """The node, while `leader` leads."""
        return cls.of(node, is_leader=node.id == leader)


class WorkerBody(Answer):
    """One worker that runs jobs."""

    model_config = example(**_WORKER)

    id: str
    state: Literal["ALIVE", "DRAINING", "SILENT"] = Field(
        description="`DRAINING`: it stops, takes nothing new, and lets its jobs go on for a while. `SILENT`: no "
        "heartbeat since `beatAt`, for half of the time after which its jobs are lost (`jobs.silent`), or longer."
    )
    queues: list[str] = Field(description="Those that it takes jobs from; none any more while it stops.")
    jobs: int = Field(description="How many it has, by its own last heartbeat; 0 once they are lost.")
    lost_places: int = Field(
        description="Places taken by functions that go on though their attempts have ended: restart the worker."
    )
    started_at: Time
    beat_at: Time = Field(description="When its last heartbeat arrived.")

    @classmethod
    def made(cls, worker: WorkerRow, ago: timedelta, limit: timedelta) -> Self:
        """One whose last heartbeat was so long `ago`: it has no jobs any more from the `limit` on, and is silent from
        half of it on, as for those who ask what a job waits for. One that stops says that it has no queue.
        """
        state = "SILENT" if ago >= limit / 2 else "ALIVE" if worker.queues else "DRAINING"
        return cls.of(worker, state=state, jobs=0 if ago >= limit else worker.jobs)


class HandoverBody(Answer):
    """The beginning of a term."""

    term: int
    from_holder: str | None = Field(alias="from", description="Who led before.")
    to_holder: str = Field(alias="to")
    mode: LeaderMode
    reason: ElectionReason
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

    model_config = example(**CLUSTER)

    leader: str | None = Field(description="The node that leads; null while none does.")
    term: int = Field(description="Rises with each leader; 0 before the first.")
    mode: LeaderMode | None = Field(description="`alone`: the leader has no broker.")
    lease: LeaseBody | None
    nodes: list[NodeBody] = Field(description="Those that live, in the order of their start; then those that ended.")
    workers: list[WorkerBody] = Field(
        description="The latest heartbeat first. One that has left is not shown, a silent one for 10 min."
    )
    handovers: list[HandoverBody] = Field(description="The last ones, the newest first.")
