"""Schedule models: schedules as they are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field

from orchestrix.api.answers import Answer, AnswerPage, Id, OptionalId, OptionalTime, Time
from orchestrix.api.jobs.models import RoutingView
from orchestrix.domain.schedules import FiringOutcome, Misfire, Overlap, Schedule, ScheduleState

JOB_FIELDS: Final = ("queue", "executor_group", "handler", "payload", "timeout_ms", "retries")


def _stored(value: object) -> object:
    """A time of the JSON that is kept of a misfire."""
    return datetime.fromisoformat(value).astimezone(UTC) if isinstance(value, str) else value


class JobTemplate(Answer):
    """The job that is started each time."""

    queue: str | None = Field(examples=["reports"], description="Null where it is for a group.")
    executor_group: str | None = Field(
        alias="group", examples=[None], description="The app whose executors do it. Null where it is for a queue."
    )
    routing: RoutingView | None = Field(
        examples=[None], description="How its executor is picked. Null where it is for a queue."
    )
    handler: str = Field(examples=["monthly"])
    payload: Any = Field(examples=[{}])
    timeout_ms: int | None = Field(examples=[600000])
    retries: int


class MisfireBody(Answer):
    """The last time that no node ran when it was due."""

    from_: Annotated[Time, BeforeValidator(_stored)] = Field(
        alias="from", description="The first due time that was missed."
    )
    to: Annotated[Time, BeforeValidator(_stored)] = Field(description="The last one.")
    at: Annotated[Time, BeforeValidator(_stored)] = Field(description="When that was noticed.")
    ran: int = Field(description="How many runs were made for them.")


class ScheduleBody(Answer):
    """One schedule."""

    id: Id
    name: str = Field(examples=["nightly-report"])
    state: ScheduleState = Field(examples=["ACTIVE"])
    cron: str | None = Field(examples=["30 2 * * MON-FRI"])
    interval_ms: int | None
    zone: str = Field(alias="timeZone", examples=["Europe/Berlin"])
    starts_at: OptionalTime
    ends_at: OptionalTime
    overlap: Overlap = Field(examples=["skip"])
    misfire: Misfire = Field(examples=["fire_once"])
    catch_up: int = Field(examples=[10])
    missed_after_ms: int = Field(examples=[60000])
    jitter_ms: int = Field(examples=[0])
    job: JobTemplate
    created_by: str = Field(examples=["ada"])
    created_at: Time
    updated_at: Time
    version: int = Field(description="Rises by one with every change that somebody makes; also the ETag.")
    paused_at: OptionalTime
    due_at: OptionalTime = Field(
        examples=["2026-02-03T01:30:00.000000Z"],
        description="The next due time; null while it is paused and when it has ended.",
    )
    next_at: OptionalTime = Field(examples=["2026-02-03T01:30:00.000000Z"], description="The same with its jitter.")
    trouble: str | None = Field(description="Why it could not be read, or its job not be made, when it was due.")
    last_due_at: OptionalTime = Field(examples=["2026-02-02T01:30:00.000000Z"])
    last_outcome: FiringOutcome | None = Field(examples=["started"], description="What became of the last due time.")
    last_job_id: OptionalId
    last_misfire: MisfireBody | None
    fired: int = Field(description="How many runs were made of due times.")
    skipped: int = Field(description="How many due times had none because of an overlap.")

    @property
    def location(self) -> str:
        """Where it is."""
        return f"/schedules/{self.id}"

    @classmethod
    def made(cls, schedule: Schedule, **more: Any) -> Self:
        """The schedule, with what `more` says of it."""
        job = {name: schedule.job.get(name) for name in JOB_FIELDS}
        return cls.of(schedule, job={**job, "routing": RoutingView.made(schedule.job)}, **more)


class DeletedBody(ScheduleBody):
    """The schedule as it was, and what has become of its runs."""

    runs_cancelled: int = Field(description="How many no worker had started: they are cancelled.")
    runs_ongoing: int = Field(description="How many go on to their end, with their retries.")


class SchedulePage(AnswerPage[ScheduleBody]):
    """Some schedules by name, and where the next ones begin."""


class ComingBody(Answer):
    """A due time in the future."""

    due_at: Time = Field(examples=["2026-02-03T01:30:00.000000Z"])
    begins_at: Time = Field(examples=["2026-02-03T01:30:00.000000Z"], description="The same with its jitter.")
    local: str = Field(
        examples=["2026-02-03T02:30:00+01:00"],
        description="What the clocks of its time zone show.",
        json_schema_extra={"format": "date-time"},
    )


class PreviewBody(Answer):
    """The next due times."""

    items: list[ComingBody]


class BackfilledBody(Answer):
    """What became of the due times of a range."""

    dry_run: bool
    dues: list[Time] = Field(
        alias="dueTimes", examples=[["2026-02-02T01:30:00.000000Z"]], description="Those that had no job."
    )
    present: int = Field(description="How many others there are, which had one.")
    jobs: list[Id] = Field(
        examples=[[]], description="The jobs that were made of them, in their order; none in a dry run."
    )
    note: str | None = Field(description="That the range begins before the schedule does; else null.")
