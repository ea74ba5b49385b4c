"""Schedule routes: create, list, change, pause, run and delete schedules."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from orchestrix.api import pagination
from orchestrix.api.headers import IF_MATCH, IF_NONE_MATCH, if_match, moved_on
from orchestrix.api.jobs.models import JobBody
from orchestrix.api.jobs.routes import UPGRADED_SOON
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence, invalid_body, not_found
from orchestrix.api.query import Paging, Query, read_whole
from orchestrix.api.schedules.models import (
    BackfilledBody,
    ComingBody,
    DeletedBody,
    PreviewBody,
    ScheduleBody,
    SchedulePage,
)
from orchestrix.api.schedules.requests import JOB, NAME, Backfill, NewSchedule, SchedulePatch
from orchestrix.api.values import NO_REASON, OptionalReason, ReasonQuery, reason_of
from orchestrix.domain.schedules import Schedule
from orchestrix.errors import NotFound
from orchestrix.persistence.jobs import schedules
from orchestrix.persistence.jobs.job_targets import MixedVersions, UnknownGroup
from orchestrix.schedules.service import (
    InvalidSchedule,
    ScheduleBusy,
    ScheduleNameTaken,
    ScheduleRequester,
    ScheduleService,
    ScheduleVersionMismatch,
)

ORDER: Final = "name of schedule"
MOST_PREVIEWED: Final = 100
ONE: Final = "/schedules/{schedule}"


def _refusal(error: Exception, key: Any) -> Problem | None:
    match error:
        case NotFound():
            return not_found(f"schedule {key[:100]!r}")
        case InvalidSchedule():
            return invalid_body([{"pointer": f"/{name}", "detail": what} for name, what in error.faults])
        case ScheduleNameTaken():
            return Problem("already_exists", as_sentence(error), existing=f"/schedules/{error.id}")
        case ScheduleVersionMismatch():
            return moved_on(error.current)
        case UnknownGroup():
            return invalid_body([{"pointer": f"{JOB}/group", "detail": str(error)}])
        case MixedVersions():
            return Problem("mixed_versions", as_sentence(error), headers=UPGRADED_SOON)
        case ScheduleBusy():
            return Problem("illegal_transition", as_sentence(error))
        case _:
            return None


operations = Operations("schedules", refusal=_refusal)


class PreviewQuery(Query):
    """How far to look."""

    count: Annotated[int, Field(ge=1, le=MOST_PREVIEWED), BeforeValidator(read_whole)] = Field(
        10, description="How many due times."
    )


def key_of(call: Call) -> str:
    """The id or the name in the path. Raises `Problem` 404 for what can be neither."""
    key = call.path("schedule")
    if not NAME.fullmatch(key):
        raise not_found(f"schedule {key[:100]!r}")
    return key


@operations.post("/schedules", status=201, problems=("already_exists", "mixed_versions"))
async def create_schedule(call: Call, new: NewSchedule) -> ScheduleBody:
    """Create a schedule.

    From then on its jobs start by themselves, one for each due time. A group of its job must be there: else 422.
    """
    fields = {name: value for name, value in new.fields().items() if value is not None}
    made = await _timetable(call).create(fields, _by(call, None))
    return ScheduleBody.made(made)


@operations.get("/schedules")
async def list_schedules(call: Call, query: Paging) -> SchedulePage:
    """List schedules.

    In the order of their names.
    """
    after = pagination.decode(ORDER, query.cursor, str)[0] if query.cursor else None
    async with call.context.database.read() as connection:
        found = await schedules.page(connection, query.limit + 1, after)
    shown = found[: query.limit]
    cursor = pagination.encode(ORDER, shown[-1].name, 0) if len(found) > query.limit else None
    return SchedulePage(items=[ScheduleBody.made(one) for one in shown], next_cursor=cursor)


@operations.get(ONE, of=key_of, headers=(IF_NONE_MATCH,))
async def get_schedule(call: Call, key: str) -> ScheduleBody:
    """Show a schedule.

    By its id or its name, as all operations on one schedule.
    """
    found = await _timetable(call).get(key)
    return ScheduleBody.made(found)


@operations.patch(ONE, of=key_of, headers=(IF_MATCH,), problems=("mixed_versions",))
async def change_schedule(call: Call, key: str, patch: SchedulePatch) -> ScheduleBody:
    """Change a schedule.

    What is not named stays, also of the job; a queue takes the place of a group, and a group that of a queue. A new
    timing counts from now; null removes startsAt, endsAt, jitter or the job's timeout. Existing runs keep the job that
    they were made with.
    """
    version = if_match(call.request)
    return ScheduleBody.made(await _changed(_timetable(call), key, patch, _by(call, patch.reason), version))


async def _changed(
    timetable: ScheduleService, key: str, patch: SchedulePatch, by: ScheduleRequester, version: int | None
) -> Schedule:
    """A change of the job is one of what it is now; if another request changes it meanwhile, it is read again."""
    if patch.job is None:
        return await timetable.change(key, patch.fields(), by, version)
    while True:
        now = await timetable.get(key)
        fields = {**patch.fields(), "job": patch.job.over(now.job)}
        try:
            return await timetable.change(key, fields, by, now.version if version is None else version)
        except ScheduleVersionMismatch:
            if version is not None:
                raise


@operations.post(f"{ONE}/pause", of=key_of)
async def pause_schedule(call: Call, key: str, why: OptionalReason) -> ScheduleBody:
    """Pause a schedule.

    Its due times pass without runs. Existing runs continue.
    """
    return ScheduleBody.made(await _timetable(call).pause(key, _by(call, why.reason)))


@operations.post(f"{ONE}/resume", of=key_of)
async def resume_schedule(call: Call, key: str, why: OptionalReason) -> ScheduleBody:
    """Resume a schedule.

    With the first due time from now on; those of the pause are not made up for.
    """
    return ScheduleBody.made(await _timetable(call).resume(key, _by(call, why.reason)))


@operations.delete(ONE, of=key_of)
async def delete_schedule(call: Call, key: str, query: ReasonQuery, why: OptionalReason) -> DeletedBody:
    """Delete a schedule.

    Runs that no worker has started are cancelled; one that was started continues to its end, with its retries.
    """
    gone = await _timetable(call).delete(key, _by(call, reason_of(query, why)))
    return DeletedBody.made(gone.schedule, runs_cancelled=gone.cancelled, runs_ongoing=gone.ongoing)


@operations.post(f"{ONE}/run", of=key_of, status=201, problems=("illegal_transition", "mixed_versions"))
async def run_schedule(call: Call, key: str, why: OptionalReason) -> JobBody:
    """Run a schedule now.

    Once, also while it is paused. An earlier run that has not ended counts as `overlap` says: with skip it is 409.
    """
    job = await _timetable(call).run(key, _by(call, why.reason))
    return JobBody.whole(job, call.context.links)


@operations.post(f"{ONE}/backfill", of=key_of, problems=("illegal_transition", "mixed_versions"))
async def backfill_schedule(call: Call, key: str, wanted: Backfill) -> BackfilledBody:
    """Run what was due in the past.

    The due times of the range that have no job yet, one after another. `to` itself is not in the range.
    """
    by, dry_run = _by(call, wanted.reason), wanted.dryRun
    done = await _timetable(call).backfill(key, wanted.from_, wanted.to, by, dry_run=dry_run)
    return BackfilledBody.of(done, dry_run=dry_run)


@operations.get(f"{ONE}/preview", of=key_of, problems=("invalid_body",))
async def preview_schedule(call: Call, key: str, query: PreviewQuery) -> PreviewBody:
    """Show the next due times.

    Of a paused schedule: when it would be due if it were resumed now.
    """
    found = await _timetable(call).preview(key, query.count)
    return PreviewBody(items=[ComingBody.of(one) for one in found])


def _by(call: Call, reason: str | None) -> ScheduleRequester:
    return ScheduleRequester(call.actor, reason or NO_REASON)


def _timetable(call: Call) -> ScheduleService:
    return call.context.timetable
