"""Schedule service: makes, changes, pauses, resumes, runs, backfills and deletes schedules for people."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import Any, Final, NoReturn

from orchestrix import clock
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.schedules import (
    BACKFILL_LIMIT,
    DueTimes,
    Overlap,
    Schedule,
    ScheduledRun,
    ScheduleState,
    UnfinishedRuns,
    awaiting,
    begin_of,
    faults,
    in_turn,
    moment_of,
    times_of,
)
from orchestrix.errors import ConflictError, Invalid, NotFound
from orchestrix.jobs.cancellation import cancel_jobs
from orchestrix.jobs.events import StopRequest
from orchestrix.lifecycle import shielded
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_targets, jobs, schedules
from orchestrix.schedules import runs
from orchestrix.schedules.time_zones import new_zone, zone

_TIMING: Final = ("cron", "interval_ms", "zone", "starts_at", "ends_at")


class InvalidSchedule(Invalid):
    """Something about a schedule is wrong. `faults` are (field as clients call it, what is wrong with it)."""

    def __init__(self, found: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{name} {what}" for name, what in found))
        self.faults = tuple(found)


class ScheduleNameTaken(ConflictError):
    """There is a schedule of that name: `id`."""

    def __init__(self, id: str | None) -> None:
        super().__init__("a schedule with this name already exists: choose another name, or edit that schedule")
        self.id = id


class ScheduleVersionMismatch(ConflictError):
    """It is not at the requested version: `current` is the one that it has."""

    def __init__(self, current: int) -> None:
        super().__init__(f"it is now at version {current}")
        self.current = current


class ScheduleBusy(ConflictError):
    """Its present state does not allow the action; the sentence says what helps."""


@dataclass(frozen=True, slots=True)
class ScheduleRequester:
    """Who asks, and why."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class UpcomingRun:
    """A future due time, when its job will begin, and the local time then."""

    due_at: datetime
    begins_at: datetime
    local: str


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The result of a backfill: the due times with a job already, and the jobs that were made for the others.

    A dry run makes none. `note` is what the requester of that range may not know.
    """

    dues: tuple[datetime, ...] = ()
    present: int = 0
    jobs: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class DeletedSchedule:
    """A schedule as it was; how many of its runs were cancelled with it, and how many continue to their end."""

    schedule: Schedule
    cancelled: int
    ongoing: int


@dataclass(slots=True)
class _Done:
    """What is to be notified after a commit."""

    schedule: Schedule
    jobs: list[JobRow] = field(default_factory=list)
    stops: list[StopRequest] = field(default_factory=list)


class ScheduleService:
    """Each change is one transaction with its audit row.

    `changed` notifies the leader, on whichever node, that a due time has moved or a job may begin; `stop` notifies
    workers that an attempt is over. A caller that goes away does not undo what it has asked for.
    """

    def __init__(
        self, database: Database, changed: Callable[[], None], stop: Callable[[Sequence[StopRequest]], None]
    ) -> None:
        self._database = database
        self._changed = changed
        self._stop = stop

    async def create(self, fields: Mapping[str, Any], by: ScheduleRequester) -> Schedule:
        """A new schedule with these `fields` of `Schedule`.

        Raises `InvalidSchedule`, `ScheduleNameTaken`, `UnknownGroup` and `MixedVersions`.
        """
        now = self._database.now()
        given = {"created_by": by.actor, **fields}
        plain = Schedule(**given, id=clock.uuid7(), created_at=now, updated_at=now)
        schedule = awaiting(plain, _times(plain, now).after(now))
        return (await shielded(self._commit(lambda tx: self._create(tx, schedule, by)))).schedule

    async def get(self, key: str) -> Schedule:
        """The schedule with that id or name. Raises `NotFound`."""
        async with self._database.read() as connection:
            found = await schedules.get(connection, key)
        return found or _absent(key)

    async def change(
        self, key: str, fields: Mapping[str, Any], by: ScheduleRequester, version: int | None = None
    ) -> Schedule:
        """Replaces these `fields`; a new timing counts from now.

        Raises `InvalidSchedule` and `ScheduleVersionMismatch`; for another group `UnknownGroup` and `MixedVersions`.
        """
        return (await shielded(self._commit(lambda tx: self._change(tx, key, fields, by, version)))).schedule

    async def pause(self, key: str, by: ScheduleRequester) -> Schedule:
        """Its due times pass without a run until it is resumed; existing runs continue."""
        return (await shielded(self._commit(lambda tx: self._pause(tx, key, by)))).schedule

    async def resume(self, key: str, by: ScheduleRequester) -> Schedule:
        """Continues with the first due time from now on: those of the pause were not missed, but passed over on
        purpose.
        """
        return (await shielded(self._commit(lambda tx: self._resume(tx, key, by)))).schedule

    async def run(self, key: str, by: ScheduleRequester) -> JobRow:
        """A run now, also of a paused schedule.

        Raises `ScheduleBusy` where it would overlap and may not wait, and `MixedVersions`.
        """
        return (await shielded(self._commit(lambda tx: self._run(tx, key, by)))).jobs[0]

    async def backfill(
        self, key: str, start: datetime, end: datetime, by: ScheduleRequester, *, dry_run: bool = False
    ) -> BackfillResult:
        """Runs, one after another, for the due times in [start, end) that have none.

        Raises `InvalidSchedule` for a range that is not in the past or has too many, `ScheduleBusy` and
        `MixedVersions`.
        """
        result = BackfillResult()

        async def write(tx: Transaction) -> _Done:
            nonlocal result
            done, result = await self._backfill(tx, key, (start, end), by, dry_run)
            return done

        await shielded(self._commit(write))
        return result

    async def delete(self, key: str, by: ScheduleRequester) -> DeletedSchedule:
        """Deletes it. Runs that no worker has begun are cancelled; one that was begun continues to its end."""
        cancelled = ongoing = 0

        async def write(tx: Transaction) -> _Done:
            nonlocal cancelled, ongoing
            done, cancelled, ongoing = await self._delete(tx, key, by)
            return done

        done = await shielded(self._commit(write))
        return DeletedSchedule(done.schedule, cancelled, ongoing)

    async def preview(self, key: str, count: int) -> list[UpcomingRun]:
        """The next due times; of a paused schedule those that would come if it were resumed now."""
        schedule = await self.get(key)
        place, times = _read(schedule)
        first = schedule.due_at or times.after(self._database.now())
        if first is None:
            return []
        dues = [first, *islice(times.following(first), count - 1)]
        return [UpcomingRun(due, moment_of(schedule, due), _local(due, place)) for due in dues]

    async def _commit(self, work: Callable[[Transaction], Coroutine[Any, Any, _Done]]) -> _Done:
        done = await self._database.run(work)
        if done.stops:
            self._stop(done.stops)
        self._changed()
        return done

    async def _create(self, tx: Transaction, schedule: Schedule, by: ScheduleRequester) -> _Done:
        await job_targets.check(tx, _groups(schedule))
        if not await schedules.insert(tx, schedule):
            known = await schedules.get(tx, schedule.name)
            raise ScheduleNameTaken(known.id if known else None)
        await _audit(tx, "create-schedule", schedule, by)
        return _Done(schedule)

    async def _change(
        self, tx: Transaction, key: str, fields: Mapping[str, Any], by: ScheduleRequester, version: int | None
    ) -> _Done:
        before = await _locked(tx, key)
        if version is not None and version != before.version:
            raise ScheduleVersionMismatch(before.version)
        after = replace(before, **fields)
        if after == before:
            return _Done(before)
        await job_targets.check(tx, _groups(after) - _groups(before))
        times = _times(after, tx.now())
        if before.paused_at is None:
            moved = any(getattr(after, name) != getattr(before, name) for name in _TIMING)
            after = awaiting(after, times.after(tx.now()) if moved else before.due_at)
        return await _store(tx, before, replace(after, trouble=None), "change-schedule", by)

    async def _pause(self, tx: Transaction, key: str, by: ScheduleRequester) -> _Done:
        before = await _locked(tx, key)
        if before.paused_at is not None:
            return _Done(before)
        return await _store(tx, before, replace(awaiting(before, None), paused_at=tx.now()), "pause-schedule", by)

    async def _resume(self, tx: Transaction, key: str, by: ScheduleRequester) -> _Done:
        before = await _locked(tx, key)
        if before.paused_at is None:
            return _Done(before)
        _, times = _read(before, now=tx.now())
        after = replace(awaiting(before, times.after(tx.now())), paused_at=None, trouble=None)
        return await _store(tx, before, after, "resume-schedule", by)

    async def _run(self, tx: Transaction, key: str, by: ScheduleRequester) -> _Done:
        before = await _locked(tx, key)
        await _check_versions(tx, before)
        busy = (await schedules.busy(tx, [before.id]))[before.id]
        if not busy.free and before.overlap is Overlap.SKIP:
            raise ScheduleBusy(f"{_at_work(busy)}, and its overlap is skip: wait until that run ends, or cancel it")
        stops: list[StopRequest] = []
        if not busy.free and before.overlap is Overlap.CANCEL_PREVIOUS:
            before_it = await schedules.unfinished(tx, [before.id])
            stops = await cancel_jobs(tx, dict.fromkeys(before_it, f"run-schedule: {by.reason}"))
            busy = UnfinishedRuns(running=busy.running)
        run = ScheduledRun(None, queued=not busy.free)
        new = [job for _, job in await runs.insert(tx, before, [run], by.actor)]
        await schedules.store(tx, before, replace(before, last_job_id=new[0].id))
        await _audit(tx, "run-schedule", before, by, {"job": new[0].id})
        return _Done(before, new, stops)

    async def _backfill(
        self, tx: Transaction, key: str, span: tuple[datetime, datetime], by: ScheduleRequester, dry_run: bool
    ) -> tuple[_Done, BackfillResult]:
        before = await _locked(tx, key)
        if before.overlap is Overlap.CANCEL_PREVIOUS and before.state is ScheduleState.ACTIVE:
            raise ScheduleBusy(
                "its next due time would cancel the backfilled runs (overlap cancel_previous): pause it first"
            )
        dues = _past(before, span, tx.now())
        present = await schedules.known(tx, before.id, dues)
        wanted = [due for due in dues if due not in present]
        new: list[JobRow] = []
        if wanted and not dry_run:
            await _check_versions(tx, before)
            busy = (await schedules.busy(tx, [before.id]))[before.id]
            new = [job for _, job in await runs.insert(tx, before, in_turn(wanted, busy), by.actor)]
            between = {"from": span[0].isoformat(), "to": span[1].isoformat(), "jobs": len(new)}
            await _audit(tx, "backfill-schedule", before, by, between)
        made = tuple(job.id for job in new)
        return _Done(before, new), BackfillResult(tuple(wanted), len(present), made, _before_all(before, span[0]))

    async def _delete(self, tx: Transaction, key: str, by: ScheduleRequester) -> tuple[_Done, int, int]:
        before = await _locked(tx, key)
        locked = await jobs.lock(tx, await schedules.not_started_ids(tx, before.id))
        not_started = [id for id, job in locked.items() if job.not_started]  # one may have moved meanwhile
        stops = await cancel_jobs(tx, dict.fromkeys(not_started, "its schedule was deleted"))
        ongoing = await schedules.unfinished(tx, [before.id])
        await schedules.remove(tx, before.id)
        await _audit(tx, "delete-schedule", before, by, {"cancelled": len(not_started), "ongoing": len(ongoing)})
        return _Done(before, stops=stops), len(not_started), len(ongoing)


def _groups(schedule: Schedule) -> set[str]:
    """The group that its jobs are for, if they are for one."""
    return set() if schedule.group is None else {schedule.group}


async def _check_versions(tx: Transaction, schedule: Schedule) -> None:
    """Raises `MixedVersions` for a schedule whose jobs a living node cannot judge."""
    if schedule.group is not None:
        await job_targets.check_versions(tx)


def _times(schedule: Schedule, now: datetime) -> DueTimes:
    """Its due times, if all its fields are valid for a new schedule. Raises `InvalidSchedule`."""
    _, times = _read(schedule, new_zone, now)
    if found := faults(schedule, times, now):
        raise InvalidSchedule(found)
    return times


def _read(
    schedule: Schedule, zone_of: Callable[[str], tzinfo] = zone, now: datetime | None = None
) -> tuple[tzinfo, DueTimes]:
    """Its time zone and due times, also of one that only an earlier version accepts. Raises `InvalidSchedule`."""
    try:
        place = zone_of(schedule.zone)
    except Invalid as wrong:
        raise InvalidSchedule([("timeZone", str(wrong).removeprefix("timeZone "))]) from None
    try:
        return place, times_of(schedule, place, now)
    except Invalid as wrong:
        raise InvalidSchedule([("cron", str(wrong).removeprefix("cron "))]) from None


def _past(schedule: Schedule, span: tuple[datetime, datetime], now: datetime) -> list[datetime]:
    """The due times in the span that will not come by themselves. Raises `InvalidSchedule`."""
    start, end = span
    if start >= end:
        raise InvalidSchedule([("to", "must be later than from")])
    if end > now:
        raise InvalidSchedule([("to", "must not be in the future")])
    end = min(end, schedule.due_at or end)
    _, times = _read(schedule)
    first = times.since(start)
    all = () if first is None else (first, *islice(times.following(first), BACKFILL_LIMIT))
    dues = list(takewhile(lambda due: due < end, all))
    if len(dues) > BACKFILL_LIMIT:
        raise InvalidSchedule([("to", f"gives more than {BACKFILL_LIMIT} due times: choose a shorter range")])
    return dues


def _before_all(schedule: Schedule, start: datetime) -> str | None:
    """The note for a range that begins where the schedule had no due times yet."""
    first = schedule.starts_at if schedule.interval_ms is None else begin_of(schedule)
    if first is None or start >= first:
        return None
    begin = first.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f"the schedule starts at {begin}: it has no earlier due times"


def _at_work(busy: UnfinishedRuns) -> str:
    return "one of its runs is running" if busy.running else "one of its runs is waiting to start"


def _local(due: datetime, place: tzinfo) -> str:
    return due.astimezone(place).isoformat(timespec="seconds")


async def _locked(tx: Transaction, key: str) -> Schedule:
    return await schedules.lock(tx, key) or _absent(key)


async def _store(tx: Transaction, before: Schedule, after: Schedule, verb: str, by: ScheduleRequester) -> _Done:
    after = replace(after, version=before.version + 1, updated_at=tx.now())
    await schedules.store(tx, before, after)
    await _audit(tx, verb, before, by, {"version": after.version})
    return _Done(after)


async def _audit(
    tx: Transaction, verb: str, schedule: Schedule, by: ScheduleRequester, more: Mapping[str, Any] | None = None
) -> None:
    detail = {"schedule": schedule.id, "name": schedule.name, **(more or {})}
    await audit.insert(tx, [AuditRow(at=tx.now(), actor=by.actor, verb=verb, reason=by.reason, detail=detail)])


def _absent(key: str) -> NoReturn:
    raise NotFound(f"unknown schedule {key[:100]!r}")
