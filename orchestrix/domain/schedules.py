"""Schedule rules: when a schedule is due, and what happens at a due time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from orchestrix.domain.cron import Cron
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.errors import Invalid

QUEUED_WAKE_AT: Final = datetime.fromisoformat("9999-12-31T00:00:00+00:00")
"""The `wake_at` of a job that waits for the end of another one of its schedule."""
QUEUED_RUNS_LIMIT: Final = 2000
"""Runs of one schedule that wait for their turn; a due time beyond is skipped."""
MISSED_AFTER_MIN: Final = timedelta(seconds=10)
"""Twice the time in which a due time is certainly handled."""
_TOO_SOON: Final = "is too short: due times are checked every 5 s;"
CATCH_UP_LIMIT: Final = 100
BACKFILL_LIMIT: Final = 1000

FREQUENT_INTERVAL: Final = timedelta(hours=1)
"""Due times at most so far apart come again after the clock was set back."""

_TICK, _SECOND, _MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)


class Overlap(StrEnum):
    """What happens at a due time while an earlier run is unfinished. In no case do two runs work at once."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel_previous"


class Misfire(StrEnum):
    """What is done for missed due times: nothing, one run for all of them, or the last few runs."""

    IGNORE = "ignore"
    FIRE_ONCE = "fire_once"
    CATCH_UP = "catch_up"


class ScheduleState(StrEnum):
    """Whether a schedule will be due again."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ENDED = "ENDED"


class FiringOutcome(StrEnum):
    """The result of the last due time."""

    STARTED = "started"
    QUEUED = "queued"
    SKIPPED = "skipped"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Interval:
    """Due at `anchor` and then each `step`, independent of local time."""

    step: timedelta
    anchor: datetime

    def after(self, moment: datetime) -> datetime:
        """The first due time later than `moment`."""
        if moment < self.anchor:
            return self.anchor
        return self.anchor + ((moment - self.anchor) // self.step + 1) * self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Jobs that begin by themselves.

    `cron` or `interval_ms` says when, `zone` in which local time. `job` is what is begun: columns of a job by name.
    `due_at` is the next due time, and `next_at` the moment for it with its jitter; both are None while it is paused and
    when it has ended. `version` counts what people change. `last_misfire` has `from`, `to`, `ran` and `at`.
    """

    id: str
    name: str
    cron: str | None = None
    interval_ms: int | None = None
    zone: str = "UTC"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    overlap: Overlap = Overlap.SKIP
    misfire: Misfire = Misfire.FIRE_ONCE
    catch_up: int = 10
    missed_after_ms: int = 60_000
    jitter_ms: int = 0
    job: Mapping[str, Any]
    created_by: str
    created_at: datetime
    updated_at: datetime
    version: int = 1
    paused_at: datetime | None = None
    due_at: datetime | None = None
    next_at: datetime | None = None
    trouble: str | None = None
    last_due_at: datetime | None = None
    last_outcome: FiringOutcome | None = None
    last_job_id: str | None = None
    last_misfire: Mapping[str, Any] | None = None
    fired: int = 0
    skipped: int = 0

    @property
    def state(self) -> ScheduleState:
        """Whether it will be due again."""
        if self.paused_at is not None:
            return ScheduleState.PAUSED
        return ScheduleState.ENDED if self.due_at is None else ScheduleState.ACTIVE

    @property
    def group(self) -> str | None:
        """The group of executors that its jobs are for; None where they are for the workers of a queue."""
        return self.job.get("executor_group")

    @property
    def missed_after(self) -> timedelta:
        """How long after its last moment a due time counts as missed."""
        return timedelta(milliseconds=self.missed_after_ms)

    @property
    def jitter(self) -> timedelta:
        """How much later than it is due a job may begin."""
        return timedelta(milliseconds=self.jitter_ms)


@dataclass(frozen=True, slots=True)
class DueTimes:
    """All due times of a schedule."""

    timing: Cron | Interval
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first due time later than `moment`; None if none comes any more."""
        if self.starts_at is not None and moment < self.starts_at:
            moment = self.starts_at - _TICK
        due = self.timing.after(moment)
        return None if due is None or (self.ends_at is not None and due > self.ends_at) else due

    def since(self, moment: datetime) -> datetime | None:
        """The first due time at `moment` or later."""
        return self.after(moment - _TICK)

    def following(self, moment: datetime) -> Iterator[datetime]:
        """All due times later than `moment`, in order."""
        due = self.after(moment)
        while due is not None:
            yield due
            due = self.after(due)

    def last_before(self, moment: datetime, since: datetime) -> datetime | None:
        """The last due time in [since, moment), found without computing those before it; None without any."""
        low, span = moment, _MINUTE
        while not self._due_between(low, moment):
            if low < since:
                return None
            low, span = max(moment - span, since - _TICK), span * 2
        high = moment
        while high - low > _SECOND:  # due times are at least so far apart
            middle = low + (high - low) / 2
            low, high = (middle, high) if self._due_between(middle, moment) else (low, middle)
        return self.after(low)

    def _due_between(self, low: datetime, moment: datetime) -> bool:
        due = self.after(low)
        return due is not None and due < moment


@dataclass(frozen=True, slots=True)
class UnfinishedRuns:
    """How many runs of a schedule have not ended.

    Those that work, those that may begin, and those that wait for another one's end.
    """

    running: int = 0
    ready: int = 0
    queued: int = 0

    @property
    def free(self) -> bool:
        """Whether a run can begin at once."""
        return not (self.running or self.ready or self.queued)


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """A job to make for a due time, or for a requested run; `queued` until an earlier one has ended."""

    due_at: datetime | None
    queued: bool = False


@dataclass(frozen=True, slots=True)
class Firing:
    """The result of a due time that has come, and which one is next.

    `cancel` ends the earlier runs. `missed` is the last of the missed due times, which begin with the one that had
    come.
    """

    due_at: datetime
    next_due: datetime | None
    runs: tuple[ScheduledRun, ...] = ()
    cancel: bool = False
    missed: datetime | None = None

    @property
    def outcome(self) -> FiringOutcome:
        """The same as a short name."""
        if self.runs:
            return FiringOutcome.QUEUED if self.runs[-1].queued else FiringOutcome.STARTED
        return FiringOutcome.SKIPPED if self.missed is None else FiringOutcome.MISSED


def is_id(key: str) -> bool:
    """Whether `key` has the form of an id, five groups of hexadecimal digits, as no name has."""
    groups = key.lower().split("-")
    lengths = [len(group) for group in groups]
    return lengths == [8, 4, 4, 4, 12] and all(digit in "0123456789abcdef" for group in groups for digit in group)


def times_of(schedule: Schedule, zone: tzinfo, now: datetime | None = None) -> DueTimes:
    """The due times of `schedule`, whose time zone is `zone`. Raises `Invalid`.

    With `now` an interval that was made before the clock was set back continues by the clock as it is.
    """
    timing: Cron | Interval
    if schedule.cron is not None:
        timing = Cron(schedule.cron, zone)
    elif schedule.interval_ms is not None:
        timing = Interval(timedelta(milliseconds=schedule.interval_ms), begin_of(schedule, now))
    else:
        raise Invalid("a schedule needs cron or interval")
    return DueTimes(timing, schedule.starts_at, schedule.ends_at)


def begin_of(schedule: Schedule, now: datetime | None = None) -> datetime:
    """The first due time of an interval: nothing was due before."""
    begin = schedule.starts_at or schedule.created_at.replace(microsecond=0)
    if now is None or schedule.starts_at is not None or begin <= now + CLOCK_TOLERANCE:
        return begin
    step = timedelta(milliseconds=schedule.interval_ms or 1)
    return begin - ((begin - now) // step + 1) * step


def reset_due_time(schedule: Schedule, times: DueTimes, now: datetime) -> Schedule:
    """`schedule` with the next of all its due times, where it waits for a later one: the clock was set back since."""
    if schedule.due_at is None or schedule.due_at <= now:
        return schedule
    next_due = times.after(now)
    return awaiting(schedule, next_due) if next_due is not None and next_due < schedule.due_at else schedule


def comes_again(run: ScheduledRun, times: DueTimes) -> bool:
    """Whether a due time that had its job needs another one where the clock was set back since that was made.

    What comes so often does not wait until the old time has come again. What is rarely due has had its run.
    """
    if run.due_at is None:
        return False
    following = times.after(run.due_at)
    return following is not None and following - run.due_at <= FREQUENT_INTERVAL


def moment_of(schedule: Schedule, due: datetime) -> datetime:
    """When the job of a due time is to begin: up to `jitter` later, and the same whoever computes it."""
    span = schedule.jitter // _TICK
    if not span:
        return due
    drawn = sha256(f"{schedule.id} {due.isoformat()}".encode()).digest()
    return due + timedelta(microseconds=int.from_bytes(drawn[:8], "big") % span)


def awaiting(schedule: Schedule, due: datetime | None) -> Schedule:
    """`schedule` with `due` as its next due time."""
    return replace(schedule, due_at=due, next_at=None if due is None else moment_of(schedule, due))


def fire(schedule: Schedule, times: DueTimes, now: datetime, busy: UnfinishedRuns) -> Firing:
    """The result of the due time that has come. A due time was missed if no leader handled it in time."""
    due = schedule.due_at
    assert due is not None, "only what is due is fired"
    missed_before = now - schedule.missed_after - schedule.jitter
    if due >= missed_before:
        return _due(schedule, due, busy, Firing(due, times.after(due)))
    last = times.last_before(missed_before, due) or due
    firing = Firing(due, times.since(missed_before), missed=last)
    if schedule.misfire is Misfire.IGNORE:
        return firing
    if schedule.misfire is Misfire.FIRE_ONCE:
        return _due(schedule, last, busy, firing)
    room = min(schedule.catch_up, QUEUED_RUNS_LIMIT - busy.queued)
    return replace(firing, runs=in_turn(_last(times, due, last, room), busy))


def in_turn(dues: list[datetime], busy: UnfinishedRuns) -> tuple[ScheduledRun, ...]:
    """Runs that work one after another, behind the unfinished ones."""
    return tuple(ScheduledRun(due, queued=place > 0 or not busy.free) for place, due in enumerate(dues))


def _due(schedule: Schedule, due: datetime, busy: UnfinishedRuns, firing: Firing) -> Firing:
    if busy.free:
        return replace(firing, runs=(ScheduledRun(due),))
    if schedule.overlap is Overlap.CANCEL_PREVIOUS:
        return replace(firing, runs=(ScheduledRun(due, queued=busy.running > 0),), cancel=True)
    if schedule.overlap is Overlap.QUEUE and busy.queued < QUEUED_RUNS_LIMIT:
        return replace(firing, runs=(ScheduledRun(due, queued=True),))
    return firing


def _last(times: DueTimes, first: datetime, last: datetime, count: int) -> list[datetime]:
    """The last `count` due times from `first` to `last`, the oldest first."""
    found: list[datetime] = []
    due: datetime | None = last
    while due is not None and len(found) < count:
        found.append(due)
        due = times.last_before(due, first)
    return found[::-1]


def job_of(schedule: Schedule, run: ScheduledRun, id: str, now: datetime, by: str | None = None) -> JobRow:
    """The job of a run requested by `by`; by default by the creator of the schedule."""
    return JobRow(
        **schedule.job,
        id=id,
        created_by=by or schedule.created_by,
        correlation_id=id,
        created_at=now,
        updated_at=now,
        wake_at=QUEUED_WAKE_AT if run.queued else now,
        schedule_id=schedule.id,
        due_at=run.due_at,
    )


def after_firing(schedule: Schedule, firing: Firing, jobs: Sequence[JobRow], now: datetime) -> Schedule:
    """The schedule when `jobs` have been made of the runs of `firing`."""
    fresh = awaiting(schedule, firing.next_due)
    misfire = schedule.last_misfire
    if firing.missed is not None:
        times = {"from": firing.due_at, "to": firing.missed, "at": now}
        misfire = {**{name: time.isoformat() for name, time in times.items()}, "ran": len(jobs)}
    return replace(
        fresh,
        trouble=None,
        last_due_at=firing.missed or firing.due_at,
        last_outcome=firing.outcome,
        last_job_id=jobs[-1].id if jobs else schedule.last_job_id,
        last_misfire=misfire,
        fired=schedule.fired + len(jobs),
        skipped=schedule.skipped + (firing.outcome is FiringOutcome.SKIPPED),
    )


def released(job: JobRow, now: datetime) -> JobRow:
    """It has waited for its turn and may begin."""
    return replace(job, wake_at=now, updated_at=now, version=job.version + 1)


def faults(schedule: Schedule, times: DueTimes, now: datetime) -> list[tuple[str, str]]:
    """(field, what is wrong and what to do about it) for every field that is invalid, alone or with others."""
    found = _of_cron(times)
    if schedule.starts_at is not None and schedule.ends_at is not None and schedule.ends_at < schedule.starts_at:
        found.append(("endsAt", "is before startsAt, so it would never be due; use a later time"))
    elif times.after(now) is None:
        found.append(("endsAt", "is before the next due time, so it would never be due; use a later one or none"))
    if schedule.interval_ms is not None and schedule.jitter_ms >= schedule.interval_ms:
        found.append(("jitter", "must be below interval, or a run could start after the next one"))
    if schedule.missed_after < MISSED_AFTER_MIN:
        found.append(("missedAfter", f"{_TOO_SOON} write {MISSED_AFTER_MIN.total_seconds():g}s or more"))
    if schedule.misfire is Misfire.CATCH_UP and schedule.overlap is Overlap.CANCEL_PREVIOUS:
        found.append(
            ("misfire", "catch_up runs would cancel each other with overlap cancel_previous: choose fire_once")
        )
    return found


def _of_cron(times: DueTimes) -> list[tuple[str, str]]:
    try:
        if isinstance(times.timing, Cron):
            times.timing.check_new()
    except Invalid as wrong:
        return [("cron", str(wrong).removeprefix("cron "))]
    return []
