"""Job models: jobs as they are submitted, and as they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, WithJsonSchema

from orchestrix.api.answers import Answer, AnswerPage, Id, OptionalId, OptionalTime, Time
from orchestrix.api.jobs.targets import DEADLINE, QUEUE_OR_GROUP, Group, RoutingBody
from orchestrix.api.query import Flag, InstanceId, NameText, Paging, Text
from orchestrix.api.traces.links import LINKS_ABOUT, TRACE_ID, Links, LinkTemplates, is_absent, trace_id_of
from orchestrix.api.values import INTEGRAL, NAME_ABOUT, Name, QueueName, Span, asked
from orchestrix.domain.jobs import PENDING, RETRIES_LIMIT, JobAttempt, JobRow
from orchestrix.saga.job_targets import TARGET_COLUMNS, BroadcastEnd, JobTarget, Strategy

HISTORY_ID: Final = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d12"
State = Literal["PENDING", "DISPATCHED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"]


Retries = Annotated[int, Field(ge=0, le=RETRIES_LIMIT), INTEGRAL]
NotYet = Annotated[str | None, WithJsonSchema({"type": "null"})]


class NewJob(BaseModel):
    """A job to be done."""

    model_config = asked(
        {"required": ["handler"], **QUEUE_OR_GROUP, **DEADLINE},
        queue="reports",
        handler="monthly",
        payload={"month": 3},
        timeout="10m",
        retries=2,
    )

    queue: QueueName | None = Field(None, description="Whose workers do it. Either this or `group`.")
    handler: Name = Field(description=f"Which of their functions. {NAME_ABOUT}")
    payload: dict[str, Any] = Field(default_factory=dict, description="What the function gets: an object.")
    timeout: Span | None = Field(
        None,
        description="The time that each attempt has to be started, and then again to be done. Without it any time, and "
        "one hour where the job is for a group.",
    )
    retries: Retries = Field(0, description="How many more attempts may follow one that fails.")
    createdBy: Name | None = Field(None, description="Who asks for it; whoever the token belongs to by default.")
    group: Group | None = Field(None, description="The app whose executors do it. Either this or `queue`.")
    routing: RoutingBody | None = Field(None, description="How one of the group's executors is picked.")
    deadline: Span | None = Field(
        None,
        description="The time that a broadcast has in all, from when its shards are made; then those that have not "
        "ended are cancelled. Without it any time.",
    )


class JobQuery(Paging):
    """Which jobs."""

    state: tuple[State, ...] = Field((), description="Only these states. May be repeated.")
    queue: Text | None = Field(None, description="Only those for the workers of this queue.")
    group: NameText | None = Field(None, description="Only those for the executors of this app.")
    parent_id: Text | None = Field(
        None,
        description="Only the shards of this broadcast. Without it, a list shows broadcasts and none of their shards.",
    )
    handler: Text | None = Field(None, description="Only those of this handler.")
    created_by: NameText | None = Field(None, description="Only what this person asked for.")
    schedule_id: Text | None = Field(None, description="Only the runs of this schedule.")
    saga_id: InstanceId | None = Field(
        None, description="Only the jobs that are, or were, steps of this instance of a saga."
    )
    saga: Text | None = Field(
        None, description="Only steps of this saga; beside a `sagaId`, the saga of that instance: `app` if left out."
    )


class LogQuery(Paging):
    """Which lines, and whether as a stream."""

    follow: Flag = Field(False, description="As server-sent events, until the job has ended.")


def links_of(job: JobRow, templates: LinkTemplates) -> Links | None:
    """Where to look further."""
    return templates.of(job.correlation_id, trace_id_of(job.traceparent))


class RoutingView(Answer):
    """How the executor of a job is picked."""

    strategy: Strategy = Field(examples=["CONSISTENT_HASH"])
    key: str | None = Field(examples=["customer-17"], description="What is kept together; null: the job alone.")
    address: str | None = Field(examples=[None], description="The executor that was asked for.")
    end: BroadcastEnd | None = Field(examples=[None], description="When a broadcast has succeeded.")

    @classmethod
    def made(cls, columns: Mapping[str, Any]) -> RoutingView | None:
        """That of a job with these columns, if it is for a group."""
        routing = JobTarget.of(columns).routing
        return None if routing is None else cls.of(routing)


class ShardCounts(Answer):
    """How many shards a broadcast has."""

    total: int = Field(examples=[3])
    left: int = Field(examples=[1], description="How many have not ended.")
    failed: int = Field(examples=[0], description="How many have ended without success.")

    @classmethod
    def made(cls, job: JobRow) -> ShardCounts | None:
        """Those of the job, if it is a broadcast that was fired."""
        if not job.has_children:
            return None
        return cls(total=job.children_total or 0, left=job.children_left or 0, failed=job.children_failed or 0)


class JobSummary(Answer):
    """One job by itself."""

    id: Id
    queue: str | None = Field(examples=["reports"], description="Null where it is for a group.")
    executor_group: str | None = Field(
        alias="group", examples=[None], description="The app whose executors do it. Null where it is for a queue."
    )
    routing: RoutingView | None = Field(
        examples=[None], description="How its executor is picked. Null where it is for a queue."
    )
    address: str | None = Field(examples=[None], description="The executor that its present or last attempt is for.")
    called_at: OptionalTime = Field(examples=[None], description="When that executor was given the attempt.")
    parent_id: OptionalId = Field(examples=[None], description="The broadcast that it is a shard of.")
    shard_index: int | None = Field(examples=[None], description="Of a shard of a broadcast: its index.")
    shard_total: int | None = Field(examples=[None], description="Of a shard of a broadcast: how many there are.")
    children: ShardCounts | None = Field(
        examples=[None], description="Of a broadcast: its shards. Null before they are made."
    )
    handler: str = Field(examples=["monthly"])
    state: State = Field(examples=["RUNNING"])
    ownership: str | None = Field(examples=["OWNED"], description="How it stands with the node that listens to it.")
    owner: str | None = Field(examples=["node-1-5f3a9c55"])
    owner_epoch: int
    history_id: OptionalId = Field(examples=[HISTORY_ID], description="Its present or last attempt.")
    attempt: int
    retries: int
    timeout_ms: int | None = Field(examples=[600000])
    deadline_ms: int | None = Field(examples=[None], description="The time that a broadcast has in all.")
    progress: Any = Field(examples=[{"percent": 40}])
    result: Any
    error: Any
    cancel_reason: str | None = Field(description="Why it is to end; null while nobody wants that.")
    worker_id: str | None = Field(examples=["worker-1-7b1f0c9f"])
    worker_beat_at: OptionalTime = Field(
        examples=["2026-01-31T12:00:10.000000Z"], description="When the last heartbeat of its worker arrived."
    )
    created_by: str = Field(examples=["ada"])
    correlation_id: str = Field(examples=["0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d13"])
    trace_id: str | None = Field(examples=[TRACE_ID], description="The trace of what asked for it; null without one.")
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
    def made(cls, job: JobRow, *, done: bool = False, **more: Any) -> Self:
        """The job, and whether its log is `done`. What a lost attempt had done is no progress of the next one."""
        progress = None if job.state == PENDING else job.progress
        more = {
            "progress": progress,
            "trace_id": trace_id_of(job.traceparent),
            "routing": RoutingView.made({name: getattr(job, name) for name in TARGET_COLUMNS}),
            "children": ShardCounts.made(job),
            **more,
        }
        return cls.of(job, logs_complete=done, log_cut=bool(job.log_cut), **more)


class JobItem(JobSummary):
    """One job, as lists show it."""

    waits_for: str | None = Field(description="Why it does not go on though it should, and what helps; else null.")


class AttemptBody(Answer):
    """One try of a job."""

    history_id: Id = Field(examples=[HISTORY_ID])
    attempt: int
    state: str = Field(examples=["RUNNING"])
    worker_id: str | None = Field(examples=["worker-1-7b1f0c9f"])
    address: str | None = Field(examples=[None], description="The executor that it was given to.")
    called_at: OptionalTime = Field(examples=[None], description="When that executor was given it.")
    error: Any
    dispatched_at: Time
    started_at: OptionalTime
    finished_at: OptionalTime


class JobBody(JobSummary):
    """One job with its payload, what it waits for and its attempts."""

    payload: Any = Field(examples=[{"month": 3}])
    waits_for: str | None = Field(description="Why it does not go on though it should, and what helps; else null.")
    attempts: list[AttemptBody]
    links: Links | None = Field(None, exclude_if=is_absent, description=LINKS_ABOUT)

    @property
    def location(self) -> str:
        """Where it is."""
        return f"/jobs/{self.id}"

    @classmethod
    def whole(
        cls,
        job: JobRow,
        links: LinkTemplates,
        tried: Sequence[JobAttempt] = (),
        waits: str | None = None,
        *,
        done: bool = False,
    ) -> Self:
        """The job with its attempts, and where to look further."""
        attempts = [AttemptBody.of(one) for one in tried]
        return cls.made(job, done=done, waits_for=waits, attempts=attempts, links=links_of(job, links))


class JobWhyBody(Answer):
    """Why a job is where it is."""

    id: Id
    state: State = Field(examples=["DISPATCHED"])
    blocker: str = Field(examples=["no_worker"], description="What it is, for programs.")
    sentence: str = Field(
        examples=["The job is DISPATCHED: no worker serves queue reports."], description="The same for people."
    )
    next_action: str = Field(
        examples=["Start one with `orchestrix worker --job-queue reports`."], description="What helps."
    )
    since: OptionalTime = Field(description="Since when it is there.")
    next_at: OptionalTime = Field(description="When the leader acts by itself: the next attempt, or its timeout.")
    trace_id: str | None = Field(examples=[TRACE_ID], description="The trace of what asked for it; null without one.")
    links: Links | None = Field(None, exclude_if=is_absent, description=LINKS_ABOUT)


class JobPage(AnswerPage[JobItem]):
    """Some jobs, the newest first, and where the next ones begin."""


class LogBody(Answer):
    """One line of a job's log."""

    history_id: Id = Field(examples=[HISTORY_ID])
    attempt: int
    seq: int = Field(examples=[2], description="Counts the lines and statuses of its attempt together.")
    level: str = Field(examples=["info"])
    message: str = Field(examples=["page 1 of 7"])
    worker_id: str | None
    at: Time


class LogPage(AnswerPage[LogBody]):
    """Some lines, the oldest first, and where the next ones begin."""


class LogEnd(Answer):
    """The end of a job's log."""

    state: State | None = Field(
        examples=["SUCCEEDED"], description="That of the job; null where it is not there any more."
    )
    logs_complete: bool
    log_cut: bool
