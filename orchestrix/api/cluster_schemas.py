"""Cluster schemas: the cluster in the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrix.domain.leases import ElectionReason, LeaderMode
from orchestrix.domain.nodes import NodeState

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


class _Shown(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LeaseBody(_Shown):
    """Until when the leader leads, unless it renews."""

    until: datetime
    gainedAt: datetime
    resignedAt: datetime | None


class NodeBody(_Shown):
    """One node: one life of one process."""

    id: str
    name: str
    state: NodeState
    isLeader: bool
    roles: list[str]
    jobCount: int = Field(description="Its load: how many jobs it owns.")
    startedAt: datetime
    beatAt: datetime = Field(description="When it was last heard of.")
    endedAt: datetime | None


class WorkerBody(_Shown):
    """One worker that runs jobs."""

    id: str
    state: Literal["ALIVE", "DRAINING", "SILENT"] = Field(
        description="`DRAINING`: it ends, takes nothing new, and lets its jobs go on for a while. `SILENT`: not heard"
        " since `beatAt`, for half of the time after which its jobs are lost (`jobs.silent`), or longer."
    )
    queues: list[str] = Field(description="Those that it takes jobs from; none any more while it ends.")
    jobs: int = Field(description="How many it has by its own last word; 0 once they are lost.")
    lostPlaces: int = Field(
        description="Places taken by functions that go on though their attempts have ended: restart the worker."
    )
    startedAt: datetime
    beatAt: datetime = Field(description="When it was last heard of.")


class HandoverBody(_Shown):
    """The beginning of a term."""

    term: int
    from_: str | None = Field(alias="from", description="Who led before.")
    to: str
    mode: LeaderMode
    reason: ElectionReason
    beganAt: datetime = Field(
        description="When the former leader was gone, as far as anybody knows; not before the new one was there."
    )
    gainedAt: datetime
    endedAt: datetime | None = Field(description="When the new leader first wrote; null if it never did.")
    tookMs: int | None = Field(
        description="From `beganAt` to `endedAt`, in milliseconds; without the time in which nothing ran."
    )


class ClusterBody(_Shown):
    """The cluster, as the database has it: the same on every node."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": CLUSTER})

    leader: str | None = Field(description="The node that leads; null while nobody does.")
    term: int = Field(description="Rises with each leader; 0 before the first.")
    mode: Literal["broker", "alone"] | None = Field(description="`alone`: the leader has no broker.")
    lease: LeaseBody | None
    nodes: list[NodeBody] = Field(description="Those that live, in the order of their start; then those that ended.")
    workers: list[WorkerBody] = Field(
        description="Those that were heard of last come first. One that has left is not shown, a silent one for 10 min."
    )
    handovers: list[HandoverBody] = Field(description="The last ones, the newest first.")


SHOWN: Final = (ClusterBody,)
