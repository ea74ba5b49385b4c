"""Contracts of jobs: dispatch, reports, cancel, and how nodes give jobs to each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrix.domain.contracts.fields import ContractModel, Count, Number, Text, Time, Uuid
from orchestrix.domain.contracts.sagas import StepErrorBody

WorkerId = Annotated[str, Field(min_length=1, max_length=200)]


class JobQueues(ContractModel):
    """Where a worker reports the attempt: through the default exchange."""

    status: Text
    logs: Text


class JobDispatchMessage(ContractModel):
    """An attempt of a job that a worker of the queue is to run."""

    jobId: Uuid
    historyId: Uuid = Field(description="The attempt.")
    handler: Text = Field(description="The name of the job.")
    payload: Any
    attempt: Number
    timeoutMs: Number | None = Field(description="Milliseconds for the attempt; null: no limit.")
    correlationId: Text
    channels: JobQueues


class _OfAttempt(ContractModel):
    jobId: Uuid
    historyId: Uuid
    workerId: WorkerId
    seq: Number = Field(description="One count over the statuses and lines of an attempt, from 1.")


class JobStatusMessage(_OfAttempt):
    """The status of an attempt: RUNNING also for its progress, then once how it has ended."""

    status: Literal["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
    progress: Any = None
    result: Any = None
    error: StepErrorBody | None = None
    lastLogSeq: Count | None = Field(None, description="With the last status: the `seq` of the last line, or 0.")


class JobLogMessage(_OfAttempt):
    """A line of the log of an attempt."""

    level: str = "info"
    message: str
    at: Time | None = None


class JobAssignedMessage(ContractModel):
    """A job that needs an owner: whichever node takes it."""

    jobId: Uuid
    historyId: Uuid


class JobCancelMessage(ContractModel):
    """An attempt is to stop. The database says the same to whoever has not received this."""

    jobId: Uuid
    historyId: Uuid | None = None
    reason: str


class JobHandoffMessage(ContractModel):
    """A job whose owner cannot, or does not want to, keep it."""

    jobId: Uuid
    reason: Literal["Shutdown", "NodeCrash", "Rebalance"]
    fromNode: Text | None
    ownerEpoch: Count


class JobHandoffAckMessage(ContractModel):
    """The job has a new owner."""

    jobId: Uuid
    newOwner: Text
    ownerEpoch: Count
