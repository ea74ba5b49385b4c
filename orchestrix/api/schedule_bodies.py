"""Schedule bodies: schedules in the OpenAPI document, as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orchestrix.domain.schedules import FiringOutcome, Misfire, Overlap, ScheduleState

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
COMING: Final = {
    "dueAt": SCHEDULE["dueAt"],
    "beginsAt": SCHEDULE["nextAt"],
    "local": "2026-02-03T02:30:00+01:00",
}


def _shown(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class JobTemplate(BaseModel):
    """The job that is begun each time."""

    model_config = ConfigDict(extra="forbid")

    queue: str
    handler: str
    payload: Any
    timeoutMs: int | None
    retries: int


class MisfireBody(BaseModel):
    """The last time that nobody was there when it was due."""

    model_config = ConfigDict(extra="forbid")

    from_: datetime = Field(alias="from", description="The first due time that was missed.")
    to: datetime = Field(description="The last one.")
    ran: int = Field(description="How many runs were made for them.")
    at: datetime = Field(description="When that was noticed.")


class ScheduleBody(BaseModel):
    """One schedule."""

    model_config = _shown(SCHEDULE)

    id: UUID
    name: str
    state: ScheduleState
    cron: str | None
    intervalMs: int | None
    timeZone: str
    startsAt: datetime | None
    endsAt: datetime | None
    overlap: Overlap
    misfire: Misfire
    catchUp: int
    missedAfterMs: int
    jitterMs: int
    job: JobTemplate
    createdBy: str
    createdAt: datetime
    updatedAt: datetime
    version: int = Field(description="Rises by one with every change that somebody makes; also the ETag.")
    pausedAt: datetime | None
    dueAt: datetime | None = Field(description="The next due time; null while it is paused and when it has ended.")
    nextAt: datetime | None = Field(description="The same with its jitter.")
    trouble: str | None = Field(description="Why it could not be read when it was due.")
    lastDueAt: datetime | None
    lastOutcome: FiringOutcome | None = Field(description="What became of the last due time.")
    lastJobId: UUID | None
    lastMisfire: MisfireBody | None
    fired: int = Field(description="How many runs were made of due times.")
    skipped: int = Field(description="How many due times had none because of an overlap.")


class DeletedBody(ScheduleBody):
    """The same as it was, and what has become of its runs."""

    model_config = _shown({**SCHEDULE, "runsCancelled": 2, "runsOngoing": 1})

    runsCancelled: int = Field(description="How many no worker had begun: they are cancelled.")
    runsOngoing: int = Field(description="How many go on to their end, with their retries.")


class SchedulePage(BaseModel):
    """Some schedules by name, and where the next ones begin."""

    model_config = ConfigDict(extra="forbid")

    items: list[ScheduleBody]
    nextCursor: str | None


class ComingBody(BaseModel):
    """A due time that is to come."""

    model_config = _shown(COMING)

    dueAt: datetime
    beginsAt: datetime = Field(description="The same with its jitter.")
    local: datetime = Field(description="What the clocks of its time zone show.")


class PreviewBody(BaseModel):
    """The next due times."""

    model_config = ConfigDict(extra="forbid")

    items: list[ComingBody]


class BackfilledBody(BaseModel):
    """What became of the due times of a range."""

    model_config = _shown(
        {"dryRun": True, "dueTimes": [SCHEDULE["lastDueAt"]], "present": 29, "jobs": [], "note": None}
    )

    dryRun: bool
    dueTimes: list[datetime] = Field(description="Those that had no job.")
    present: int = Field(description="How many others there are, which had one.")
    jobs: list[UUID] = Field(description="The jobs that were made of them, in their order; none in a dry run.")
    note: str | None = Field(description="That the range begins before the schedule does; else null.")


SHOWN: Final[tuple[type[BaseModel], ...]] = (ScheduleBody, DeletedBody, SchedulePage, PreviewBody, BackfilledBody)
