"""Job models: jobs as they are submitted, and as they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, model_validator

from orchestrix.api.answers import Answer, Id, OptionalId, OptionalTime, Page, Time, example
from orchestrix.api.query import Flag, InstanceId, NameText, Paging, Text
from orchestrix.api.values import NAME_ABOUT, Name, QueueName, Span, asked
from orchestrix.domain.jobs import PENDING, RETRIES_LIMIT, JobAttempt, JobRow

JOB: Final[dict[str, Any]] = {
    "id": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "queue": "reports",
    "handler": "monthly",
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
}
LOG: Final[dict[str, Any]] = {
    "historyId": JOB["historyId"],
    "attempt": 1,
    "seq": 2,
    "level": "info",
    "message": "page 1 of 7",
    "workerId": JOB["workerId"],
    "at": "2026-01-31T12:00:01.000000Z",
}
ATTEMPT: Final[dict[str, Any]] = {
    "historyId": JOB["historyId"],
    "attempt": 1,
    "state": "RUNNING",
    "workerId": JOB["workerId"],
    "error": None,
    "dispatchedAt": JOB["dispatchedAt"],
    "startedAt": JOB["startedAt"],
    "finishedAt": None,
}
State = Literal["PENDING", "DISPATCHED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"]


class NewJob(BaseModel):
    """A job to be done."""

    model_config = asked(queue="reports", handler="monthly", payload={"month": 3}, timeout="10m", retries=2)

    queue: QueueName | None = Field(None, description="Whose workers do it.")
    handler: Name = Field(description=f"Which of their functions. {NAME_ABOUT}")
    payload: dict[str, Any] = Field(default_factory=dict, description="What the function gets: an object.")
    timeout: Span | None = Field(
        None,
        description="The time that each attempt has to be started, and then again to be done; without it, any time.",
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


class JobQuery(Paging):
    """Which jobs."""

    state: tuple[State, ...] = Field((), description="Only these states. May be repeated.")
    queue: Text | None = Field(None, description="Only those for the workers of this queue.")
    created_by: NameText | None = Field(None, description="Only what this person asked for.")
    schedule_id: Text | None = Field(None, description="Only the runs of this schedule.")
    saga_id: InstanceId | None = Field(
        None, description="Only the jobs that are, or were, steps of this instance of a saga."
    )
    saga: Text | None = Field(None, description="The name of that saga: `app` if it is left out. Needs a `sagaId`.")


class LogQuery(Paging):
    """Which lines, and whether as a stream."""

    follow: Flag = Field(False, description="As server-sent events, until the job has ended.")


class JobSummary(Answer):
    """One job by itself."""

    model_config = example(**JOB)

    id: Id
    queue: str
    handler: str
    state: State
    ownership: str | None = Field(description="How it stands with the node that listens to it.")
    owner: str | None
    owner_epoch: int
    history_id: OptionalId = Field(description="Its present or last attempt.")
    attempt: int
    retries: int
    timeout_ms: int | None
    progress: Any
    result: Any
    error: Any
    cancel_reason: str | None = Field(description="Why it is to end; null while nobody wants that.")
    worker_id: str | None
    worker_beat_at: OptionalTime = Field(description="When the last heartbeat of its worker arrived.")
    created_by: str
    correlation_id: str
    created_at: Time
    updated_at: Time
    version: int = Field(description="Rises by one with every change; also the ETag.")
    wake_at: OptionalTime = Field(description="When it is due, or times out.")
    dispatched_at: OptionalTime
    started_at: OptionalTime
    finished_at: OptionalTime
    schedule_id: OptionalId
    due_at: OptionalTime
    saga: str | None = Field(description="The saga that it is a step of.")
    instance_id: int | None = Field(alias="sagaId")
    step: str | None
    logs_complete: bool = Field(
        description="Whether it has ended and its whole log can be read, or the rest of it has been given up."
    )
    log_cut: bool = Field(description="Whether its log was longer than what is kept: its last line says so.")

    @classmethod
    def made(cls, job: JobRow, *, done: bool = False, **more: Any) -> Any:
        """The job, and whether its log is `done`. What a lost attempt had done is no progress of the next one."""
        progress = None if job.state == PENDING else job.progress
        return cls.of(job, progress=progress, logs_complete=done, log_cut=bool(job.log_cut), **more)


class JobItem(JobSummary):
    """One job, as lists show it."""

    model_config = example(**JOB, waitsFor=None)

    waits_for: str | None = Field(description="Why it does not go on though it should, and what helps; else null.")


class AttemptBody(Answer):
    """One try of a job."""

    model_config = example(**ATTEMPT)

    history_id: Id
    attempt: int
    state: str
    worker_id: str | None
    error: Any
    dispatched_at: Time
    started_at: OptionalTime
    finished_at: OptionalTime


class JobBody(JobSummary):
    """One job with its payload, what it waits for and its attempts."""

    model_config = example(**JOB, payload={"month": 3}, waitsFor=None, attempts=[ATTEMPT])

    payload: Any
    waits_for: str | None = Field(description="Why it does not go on though it should, and what helps; else null.")
    attempts: list[AttemptBody]

    @classmethod
    def whole(
        cls, job: JobRow, tried: Sequence[JobAttempt] = (), waits: str | None = None, *, done: bool = False
    ) -> JobBody:
        """The job with its attempts."""
        attempts = [AttemptBody.of(one) for one in tried]
        made: JobBody = cls.made(job, done=done, waits_for=waits, attempts=attempts)
        return made


class JobPage(Page[JobItem]):
    """Some jobs, the newest first, and where the next ones begin."""


class LogBody(Answer):
    """One line of a job's log."""

    model_config = example(**LOG)

    history_id: Id
    attempt: int
    seq: int = Field(description="Counts the lines and statuses of its attempt together.")
    level: str
    message: str
    worker_id: str | None
    at: Time


class LogPage(Page[LogBody]):
    """Some lines, the oldest first, and where the next ones begin."""


class LogEnd(Answer):
    """The end of a job's log."""

    model_config = example(state="SUCCEEDED", logsComplete=True, logCut=False)

    state: State | None = Field(description="That of the job; null where it is not there any more.")
    logs_complete: bool
    log_cut: bool
