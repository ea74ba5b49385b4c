"""Contracts of the cluster: the leader's token, and the signs of life of nodes and workers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrix.domain.contracts.fields import ContractModel, Count, Text, Time, Uuid


class LeaderTokenMessage(ContractModel):
    """The one message in the leader's queue: whoever holds the present one leads."""

    term: Count
    nodeId: str


class NodeHeartbeatMessage(ContractModel):
    """A node lives."""

    nodeId: Text
    jobCount: Count = Field(0, description="How many jobs it owns.")
    timestamp: Time
    state: Literal["ALIVE", "DRAINING", "DEAD", "LEFT"] = "ALIVE"


class NodeNotificationMessage(ContractModel):
    """A node is to look at something in the database, or is only asked whether its queue exists (`ping`)."""

    kind: Text
    jobs: list[Uuid] | None = Field(None, description="With `reports`: the jobs that executors have reported.")
    to: list[str] | None = Field(
        None, description="With `shard-pushes`: the clients to which it is to send their shards."
    )


class AttemptInProgress(ContractModel):
    """An attempt that a worker runs."""

    jobId: Uuid
    historyId: Uuid


class WorkerHeartbeatMessage(ContractModel):
    """A worker lives, serves these queues and runs these attempts."""

    workerId: Annotated[str, Field(min_length=1, max_length=100)]
    queues: list[str] = Field(description="The queues of jobs that it serves.")
    jobs: list[AttemptInProgress]
    state: Literal["ALIVE", "DRAINING", "LEFT"]
    timestamp: Time
    lostPlaces: Count = Field(0, description="Slots that functions without an end have taken.")
    host: str | None = None
    version: str | None = None
    commandQueues: list[str] | None = None
    commands: Count | None = Field(None, description="How many commands it has in progress.")
    handlers: list[str] | None = Field(None, description="The jobs that it has functions for.")
