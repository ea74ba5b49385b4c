"""Schedule models: schedules as they are shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field

from orchestrix.api.answers import Answer, Id, OptionalId, OptionalTime, Page, Time, example
from orchestrix.domain.schedules import FiringOutcome, Misfire, Overlap, Schedule, ScheduleState

SCHEDULE: Final[dict[str, Any]] = {
    "id": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d21",
    "name": "nightly-report",
    "state": "ACTIVE",
    "cron": "30 2 * * MON-FRI",
    "intervalMs": None,
    "timeZone": "Europe/Berlin",
    "startsAt": None,
    "endsAt": None,
    "overlap": "skip",
    "misfire": "fire_once",
    "catchUp": 10,
    "missedAfterMs": 60000,
    "jitterMs": 0,
    "job": {"queue": "reports", "handler": "monthly", "payload": {}, "timeoutMs": 600000, "retries": 2},
    "createdBy": "ada",
    "createdAt": "2026-01-31T12:00:00.000000Z",
    "updatedAt": "2026-01-31T12:00:00.000000Z",
    "version": 1,
    "pausedAt": None,
    "dueAt": "2026-02-03T01:30:00.000000Z",
    "nextAt": "2026-02-03T01:30:00.000000Z",
    "trouble": None,
    "lastDueAt": "2026-02-02T01:30:00.000000Z",
    "lastOutcome": "started",
    "lastJobId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "lastMisfire": None,
    "fired": 1,
    "skipped": 0,
}
COMING: Final[dict[str, Any]] = {
    "dueAt": SCHEDULE["dueAt"],
    "beginsAt": SCHEDULE["nextAt"],
    "local": "2026-02-03T02:30:00+01:00",
}
JOB_FIELDS: Final = ("queue", "handler", "payload", "timeout_ms", "retries")


def _stored(value: object) -> object:
    """A time of the JSON that is kept of a misfire."""
    return datetime.fromisoformat(value).astimezone(UTC) if isinstance(value, str) else value


class JobTemplate(Answer):
    """The job that is started each time."""

    queue: str
    handler: str
    payload: Any
    timeout_ms: int | None
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

    model_config = example(**SCHEDULE)

    id: Id
    name: str
    state: ScheduleState
    cron: str | None
    interval_ms: int | None
    zone: str = Field(alias="timeZone")
    starts_at: OptionalTime
    ends_at: OptionalTime
    overlap: Overlap
    misfire: Misfire
    catch_up: int
    missed_after_ms: int
    jitter_ms: int
    job: JobTemplate
    created_by: str
    created_at: Time
    updated_at: Time
    version: int = Field(description="Rises by one with every change that somebody makes; also the ETag.")
    paused_at: OptionalTime
    due_at: OptionalTime = Field(description="The next due time; null while it is paused and when it has ended.")
    next_at: OptionalTime = Field(description="The same with its jitter.")
    trouble: str | None = Field(description="Why it could not be read when it was due.")
    last_due_at: OptionalTime
    last_outcome: FiringOutcome | None = Field(description="What became of the last due time.")
    last_job_id: OptionalId
    last_misfire: MisfireBody | None
    fired: int = Field(description="How many runs were made of due times.")
    skipped: int = Field(description="How many due times had none because of an overlap.")

    @classmethod
    def made(cls, schedule: Schedule, **more: Any) -> Self:
        """The schedule, with what `more` says of it."""
        return cls.of(schedule, job={name: schedule.job.get(name) for name in JOB_FIELDS}, **more)


class DeletedBody(ScheduleBody):
    """The schedule as it was, and what has become of its runs."""

    model_config = example(**SCHEDULE, runsCancelled=2, runsOngoing=1)

    runs_cancelled: int = Field(description="How many no worker had started: they are cancelled.")
    runs_ongoing: int = Field(description="How many go on to their end, with their retries.")


class SchedulePage(Page[ScheduleBody]):
    """Some schedules by name, and where the next ones begin."""


class ComingBody(Answer):
    """A due time in the future."""

    model_config = example(**COMING)

    due_at: Time
    begins_at: Time = Field(description="The same with its jitter.")
    local: str = Field(description="What the clocks of its time zone show.", json_schema_extra={"format": "date-time"})


class PreviewBody(Answer):
    """The next due times."""

    items: list[ComingBody]


class BackfilledBody(Answer):
    """What became of the due times of a range."""

    model_config = example(dryRun=True, dueTimes=[SCHEDULE["lastDueAt"]], present=29, jobs=[], note=None)

    dry_run: bool
    dues: list[Time] = Field(alias="dueTimes", description="Those that had no job.")
    present: int = Field(description="How many others there are, which had one.")
    jobs: list[Id] = Field(description="The jobs that were made of them, in their order; none in a dry run.")
    note: str | None = Field(description="That the range begins before the schedule does; else null.")
