"""Schedule requests: what a person sends to create, change and control schedules, and its validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from orchestrix.api import patterns
from orchestrix.api.jobs.models import NewJob, NotYet, Retries
from orchestrix.api.jobs.targets import QUEUE_OR_GROUP, Group, RoutingBody, target_of
from orchestrix.api.values import (
    INTEGRAL,
    SHORTEST_SPAN,
    Moment,
    Name,
    QueueName,
    Reason,
    Span,
    asked,
    either,
    milliseconds,
    read_span,
    span_schema,
)
from orchestrix.domain.schedules import BACKFILL_LIMIT, CATCH_UP_LIMIT, Misfire, Overlap, is_id
from orchestrix.saga.job_targets import TARGET_COLUMNS, JobTarget

M = TypeVar("M", bound=BaseModel)
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
SHORTEST_INTERVAL: Final = timedelta(seconds=1)
LONGEST_JITTER: Final = timedelta(days=1)
JOB: Final = "/job"
"""Where the job of a schedule is in the body."""


def schedule_name(text: str) -> str:
    """`text` if a schedule can be called so. Raises `ValueError` that says what is allowed."""
    if not NAME.fullmatch(text):
        raise ValueError("must have 1 to 100 letters, digits, dots, - or _, the first one a letter or a digit")
    if is_id(text):
        raise ValueError("must not look like an id: choose a name that people can remember")
    return text


_DAY: Final = {"type": "string", "format": "date-time", "pattern": "^2[01][0-9][0-9]-"}


def _day(moment: datetime) -> datetime:
    if not EARLIEST <= moment < LATEST:
        raise ValueError(f"must be from the year {EARLIEST.year} on and before {LATEST.year}")
    return moment


def _interval(value: object) -> timedelta:
    span = _span(value)
    if span < SHORTEST_INTERVAL or span.microseconds % 1000:
        raise ValueError("must be whole milliseconds from 1s to 3650d: seconds, or a text such as 1.5s, 90s, 5m or 1d")
    return span


def _jitter(value: object) -> timedelta:
    span = _span(value)
    if not SHORTEST_SPAN <= span <= LONGEST_JITTER:
        raise ValueError("must be from 1ms to 1d: seconds, or a text such as 500ms, 30s or 5m; leave it out for none")
    return span


def _span(value: object) -> timedelta:
    """Nothing where it is none: each rule about one has a single sentence."""
    try:
        return read_span(value)
    except ValueError:
        return timedelta()


def _one_of(kind: type[StrEnum]) -> Callable[[object], object]:
    def read(value: object) -> object:
        if value not in list(kind):
            raise ValueError(f"must be one of {', '.join(kind)}")
        return kind(str(value))

    return read


def _words(kind: type[StrEnum]) -> dict[str, Any]:
    return {"type": "string", "enum": list(kind)}


ScheduleName = Annotated[str, AfterValidator(schedule_name), Field(json_schema_extra={"pattern": f"^{NAME.pattern}$"})]
Day = Annotated[Moment, AfterValidator(_day), WithJsonSchema(_DAY)]
Overlapping = Annotated[Overlap, BeforeValidator(_one_of(Overlap)), WithJsonSchema(_words(Overlap))]
Misfiring = Annotated[Misfire, BeforeValidator(_one_of(Misfire)), WithJsonSchema(_words(Misfire))]
Interval = Annotated[
    timedelta, BeforeValidator(_interval), WithJsonSchema(span_schema(patterns.INTERVAL, 1, 315_360_000))
]
Jitter = Annotated[timedelta, BeforeValidator(_jitter), WithJsonSchema(span_schema(patterns.JITTER, 0.001, 86_400))]

CatchUp = Annotated[int, Field(ge=1, le=CATCH_UP_LIMIT), INTEGRAL]
Cron = Annotated[str, Field(json_schema_extra={"format": "cron", "minLength": 1})]
Zone = Annotated[str, Field(json_schema_extra={"format": "time-zone", "minLength": 1})]

_CRON: Final = (
    "Five fields: minute, hour, day of month, month, day of week, with names (MON, JAN), lists, ranges and steps; or "
    "@hourly, @daily, @weekly, @monthly, @yearly. Either this or `interval`."
)
_ZONE: Final = "By which clocks `cron` is read: a name of the IANA time zone database."


class ScheduledJob(NewJob):
    """The job that is started each time."""

    model_config = asked(
        {"required": ["handler"], **QUEUE_OR_GROUP}, queue="reports", handler="monthly", timeout="10m", retries=2
    )

    createdBy: NotYet = Field(None, description="That of the schedule: leave it out.")
    deadline: Annotated[Span | None, WithJsonSchema({"type": "null"})] = Field(None, description="Not for schedules.")

    @model_validator(mode="after")
    def _by_the_schedule(self) -> ScheduledJob:
        if self.createdBy is not None:
            raise ValueError("must not have createdBy: it is the schedule's own")
        if self.deadline is not None:
            raise ValueError("must not have a deadline: set the timeout of its attempts")
        return self

    def columns(self) -> dict[str, Any]:
        """The same as columns of the job. Raises `Problem` 422."""
        target = target_of(self.queue, self.group, self.routing, JOB)
        timeout_ms = milliseconds(self.timeout) if self.timeout is not None else None
        return {
            **target.columns(),
            "handler": self.handler,
            "payload": self.payload,
            "retries": self.retries,
            "timeout_ms": target.timeout_ms(timeout_ms),
        }


class JobChange(BaseModel):
    """What is to be different about the job that is started each time; the rest stays."""

    model_config = asked(payload={"month": 4}, timeout="20m")

    queue: QueueName | None = Field(None, description="Takes the place of a group and its routing.")
    handler: Name | None = None
    payload: dict[str, Any] | None = Field(None, description="The whole of the new one: an object.")
    timeout: Span | None = Field(None, description="null takes it away; for a group it is one hour then.")
    retries: Retries | None = None
    group: Group | None = Field(None, description="Takes the place of a queue. The routing of another group stays.")
    routing: RoutingBody | None = Field(None, description="The whole of the new one.")

    @model_validator(mode="after")
    def _needed(self) -> JobChange:
        return _valued(self, ("queue", "handler", "payload", "retries", "group", "routing"))

    def over(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a job after the change. Raises `Problem` 422."""
        target = self._target(JobTarget.of(job))
        new: dict[str, Any] = {
            name: getattr(self, name) for name in ("handler", "payload", "retries") if name in self.model_fields_set
        }
        timeout_ms = job.get("timeout_ms")
        if "timeout" in self.model_fields_set:
            timeout_ms = milliseconds(self.timeout) if self.timeout is not None else None
        rest = {name: value for name, value in job.items() if name not in TARGET_COLUMNS}
        return {**target.columns(), **rest, **new, "timeout_ms": target.timeout_ms(timeout_ms)}

    def _target(self, before: JobTarget) -> JobTarget:
        """For whom it is from now on: a queue or a group that is named takes the place of the other."""
        if self.queue is None and self.group is None and self.routing is None:
            return before
        queue, group = self.queue, self.group
        if queue is None and group is None:
            queue, group = before.queue, before.group
        target = target_of(queue, group, self.routing, JOB)
        return target if self.routing is not None or group is None else replace(target, routing=before.routing)


class _Policy(BaseModel):
    cron: Cron | None = Field(None, description=_CRON)
    interval: Interval | None = Field(None, description="Seconds, or a text such as `30s`, `5m`, `1d`: at least 1s.")
    startsAt: Day | None = Field(None, description="Not due before; where an interval begins.")
    endsAt: Day | None = Field(None, description="Not due after.")
    jitter: Jitter | None = Field(None, description="A job begins up to so much later than it is due.")

    def fields(self) -> dict[str, Any]:
        """What the client has set, as fields of a schedule."""
        return {name: value for key in self.model_fields_set for name, value in self._field(key)}

    def _field(self, key: str) -> list[tuple[str, Any]]:
        value = getattr(self, key)
        match key:
            case "interval" | "jitter" | "missedAfter":
                nothing = 0 if key == "jitter" else None
                return [(_FIELDS[key], nothing if value is None else milliseconds(value))]
            case "job":
                return [("job", value.columns())] if isinstance(value, ScheduledJob) else []
            case _:
                return [(_FIELDS.get(key, key), value)]


_FIELDS: Final = {
    "interval": "interval_ms",
    "jitter": "jitter_ms",
    "missedAfter": "missed_after_ms",
    "timeZone": "zone",
    "startsAt": "starts_at",
    "endsAt": "ends_at",
    "catchUp": "catch_up",
    "createdBy": "created_by",
}


def _valued(request: M, needed: Sequence[str]) -> M:
    nothing = [name for name in needed if name in request.model_fields_set and getattr(request, name) is None]
    if nothing:
        raise ValueError(f"must have a value for {', '.join(nothing)}: leave out what is to stay")
    return request


_ALWAYS: Final = ("timeZone", "overlap", "misfire", "catchUp", "missedAfter", "job")
"""What a schedule always has."""


class NewSchedule(_Policy):
    """A schedule to make."""

    model_config = asked(
        either("cron", "interval"),
        name="nightly-report",
        cron="30 2 * * MON-FRI",
        timeZone="Europe/Berlin",
        overlap="skip",
        misfire="fire_once",
        job={"queue": "reports", "handler": "monthly", "timeout": "10m", "retries": 2},
    )

    name: ScheduleName
    timeZone: Zone = Field("UTC", description=_ZONE)
    overlap: Overlapping = Field(
        Overlap.SKIP, description="What a due time does that finds an earlier run in progress."
    )
    misfire: Misfiring = Field(Misfire.FIRE_ONCE, description="What is done for due times that no node saw in time.")
    catchUp: CatchUp = Field(10, description="With catch_up: so many of the last runs.")
    missedAfter: Span = Field(timedelta(minutes=1), description="How late a due time counts as missed.")
    job: ScheduledJob
    createdBy: Name | None = Field(None, description="Who asks for it; whoever the token belongs to by default.")

    @model_validator(mode="after")
    def _timed(self) -> NewSchedule:
        if (self.cron is None) == (self.interval is None):
            raise ValueError("must have cron or interval, and not both")
        return self


class SchedulePatch(_Policy):
    """What is to be different from now on; the rest stays."""

    model_config = asked(cron="0 3 * * *", reason="the reports take longer now")

    timeZone: Zone | None = Field(None, description=_ZONE)
    overlap: Overlapping | None = None
    misfire: Misfiring | None = None
    catchUp: CatchUp | None = None
    missedAfter: Span | None = None
    job: JobChange | None = None
    reason: Reason | None = None

    @model_validator(mode="after")
    def _one_timing(self) -> SchedulePatch:
        given = [name for name in ("cron", "interval") if name in self.model_fields_set]
        if given and [getattr(self, name) is not None for name in given].count(True) != 1:
            raise ValueError("must have one of cron and interval if it names any: the one takes the other's place")
        return _valued(self, _ALWAYS)

    def fields(self) -> dict[str, Any]:
        """What the client has set, as fields of a schedule."""
        found = super().fields()
        found.pop("reason", None)
        if self.cron is not None or self.interval is not None:
            found = {"cron": None, "interval_ms": None, **found}
        return found


class Backfill(BaseModel):
    """To run what was due in the past."""

    model_config = asked(**{"from": "2026-01-01T00:00:00Z", "to": "2026-01-31T00:00:00Z", "dryRun": True})

    from_: Day = Field(alias="from", description="The first moment that counts.")
    to: Day = Field(description=f"The first one that does not; not in the future. At most {BACKFILL_LIMIT} due times.")
    dryRun: bool = Field(False, description="Only tell which due times these are.")
    reason: Reason | None = None
