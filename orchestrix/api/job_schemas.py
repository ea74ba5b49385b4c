"""Job schemas: jobs in the OpenAPI document, as they are requested and as they are shown."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestrix.api.action_requests import Span
from orchestrix.api.names import ABOUT, Name
from orchestrix.domain.jobs import RETRIES_LIMIT

_QUEUE: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
JOB: Final[dict[str, Any]] = {
    "id": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "queue": "reports",
    "handler": "monthly",
    "payload": {"month": 3},
    "state": "RUNNING",
    "ownership": "OWNED",
    "owner": "node-1-5f3a9c55",
    "ownerEpoch": 1,
    "historyId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d12",
    "attempt": 1,
    "retries": 2,
    "timeoutMs": 600000,
    "progress": {"percent": 40},
    "result": None,
    "error": None,
    "cancelReason": None,
    "workerId": "worker-1-7b1f0c9f",
    "workerBeatAt": "2026-01-31T12:00:10.000000Z",
    "createdBy": "ada",
    "correlationId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d13",
    "createdAt": "2026-01-31T12:00:00.000000Z",
    "updatedAt": "2026-01-31T12:00:10.000000Z",
    "version": 4,
    "wakeAt": "2026-01-31T12:10:00.250000Z",
    "dispatchedAt": "2026-01-31T12:00:00.100000Z",
    "startedAt": "2026-01-31T12:00:00.250000Z",
    "finishedAt": None,
    "scheduleId": None,
    "dueAt": None,
    "saga": None,
    "sagaId": None,
    "step": None,
    "logsComplete": False,
    "logCut": False,
    "waitsFor": None,
}
LOG: Final = {
    "historyId": JOB["historyId"],
    "attempt": 1,
    "seq": 2,
    "level": "info",
    "message": "page 1 of 7",
    "workerId": JOB["workerId"],
    "at": "2026-01-31T12:00:01.000000Z",
}
ATTEMPT: Final = {
    "historyId": JOB["historyId"],
    "attempt": 1,
    "state": "RUNNING",
    "workerId": JOB["workerId"],
    "error": None,
    "dispatchedAt": JOB["dispatchedAt"],
    "startedAt": JOB["startedAt"],
    "finishedAt": None,
}


def _shown(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


def queue_name(text: str) -> str:
    """`text` if a queue of workers can be called so. Raises `ValueError` that says what is allowed."""
    if not re.fullmatch(_QUEUE.strip("^$"), text, re.ASCII):
        raise ValueError("must have 1 to 100 letters, digits, dots, - or _, the first one a letter or a digit")
    return text


QueueName = Annotated[str, AfterValidator(queue_name), Field(json_schema_extra={"pattern": _QUEUE})]


class NewJob(BaseModel):
    """A job to be done."""

    model_config = _shown(
        {"queue": "reports", "handler": "monthly", "payload": {"month": 3}, "timeout": "10m", "retries": 2}
    )

    queue: QueueName | None = Field(None, description="Whose workers do it.")
    handler: Name = Field(description=f"Which of their functions. {ABOUT}")
    payload: dict[str, Any] = Field(default_factory=dict, description="What the function gets: an object.")
    timeout: Span | None = Field(
        None, description="The time that each attempt has to be begun, and then again to be done; without it, any time."
    )
    retries: int = Field(0, ge=0, le=RETRIES_LIMIT, description="How many more attempts may follow one that fails.")
    createdBy: Name | None = Field(None, description="Who asks for it; whoever the token belongs to by default.")
    group: str | None = Field(None, description="A group of executors; not yet.")
    routing: str | None = Field(None, description="How one of the group is chosen; not yet.")

    @model_validator(mode="after")
    def _of_a_queue(self) -> NewJob:
        if self.group is not None or self.routing is not None:
            raise ValueError("must have no group and no routing, which are not served yet: name the queue of a worker")
        if self.queue is None:
            raise ValueError("must name a queue")
        return self


class JobSummary(BaseModel):
    """One job by itself."""

    model_config = _shown({name: value for name, value in JOB.items() if name not in ("payload", "waitsFor")})

    id: UUID
    queue: str
    handler: str
    state: str
    ownership: str | None = Field(description="How it stands with the node that listens to it.")
    owner: str | None
    ownerEpoch: int
    historyId: UUID | None = Field(description="Its present or last attempt.")
    attempt: int
    retries: int
    timeoutMs: int | None
    progress: Any
    result: Any
    error: Any
    cancelReason: str | None = Field(description="Why it is to end; null while nobody wants that.")
    workerId: str | None
    workerBeatAt: datetime | None = Field(description="When its worker was heard of last.")
    createdBy: str
    correlationId: str
    createdAt: datetime
    updatedAt: datetime
    version: int = Field(description="Rises by one with every change; also the ETag.")
    wakeAt: datetime | None = Field(description="When it is due, or its time is over.")
    dispatchedAt: datetime | None
    startedAt: datetime | None
    finishedAt: datetime | None
    scheduleId: UUID | None
    dueAt: datetime | None
    saga: str | None = Field(description="The saga that it is a step of.")
    sagaId: int | None
    step: str | None
    logsComplete: bool = Field(
        description="Whether it has ended and its whole log can be read, or the rest of it has been given up."
    )
    logCut: bool = Field(description="Whether its log was longer than what is kept: its last line says so.")


class JobItem(JobSummary):
    """One job, as lists show it."""

    model_config = _shown({name: value for name, value in JOB.items() if name != "payload"})

    waitsFor: str | None = Field(description="Why it does not go on though it should, and what helps; else null.")


class AttemptBody(BaseModel):
    """One try of a job."""

    model_config = _shown(ATTEMPT)

    historyId: UUID
    attempt: int
    state: str
    workerId: str | None
    error: Any
    dispatchedAt: datetime
    startedAt: datetime | None
    finishedAt: datetime | None


class JobBody(JobItem):
    """The same with what its function gets, and its attempts."""

    model_config = _shown({**JOB, "attempts": [ATTEMPT]})

    payload: Any
    attempts: list[AttemptBody]


class JobPage(BaseModel):
    """Some jobs, the newest first, and where the next ones begin."""

    model_config = ConfigDict(extra="forbid")

    items: list[JobItem]
    nextCursor: str | None


class LogBody(BaseModel):
    """One line of a job's log."""

    model_config = _shown(LOG)

    historyId: UUID
    attempt: int
    seq: int = Field(description="Counts the lines and statuses of its attempt together.")
    level: str
    message: str
    workerId: str | None
    at: datetime


class LogPage(BaseModel):
    """Some lines, the oldest first, and where the next ones begin."""

    model_config = ConfigDict(extra="forbid")

    items: list[LogBody]
    nextCursor: str | None


SHOWN: Final[tuple[type[BaseModel], ...]] = (JobBody, JobPage, JobSummary, LogPage)
ASKED: Final[tuple[type[BaseModel], ...]] = (NewJob,)
