"""Schedule routes: create, list, change, pause, run and delete schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api import cursors
from orchestrix.api.action_requests import NO_REASON
from orchestrix.api.control import BODY_PROBLEMS, IF_MATCH, REASON, reason_of
from orchestrix.api.headers import if_match, matches, moved_on
from orchestrix.api.instance_routes import SHOWN, Answers, header, json_of, page
from orchestrix.api.job_schemas import JobBody
from orchestrix.api.jobs import whole
from orchestrix.api.listing import CURSOR, DEFAULT_LIMIT, LIMIT, page_response
from orchestrix.api.parameters import Parameter
from orchestrix.api.problems import Problem, invalid_body, not_found, said
from orchestrix.api.request_body import parsed, read_object
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.schedule_bodies import BackfilledBody, DeletedBody, PreviewBody, ScheduleBody, SchedulePage
from orchestrix.api.schedule_schemas import NAME, BackfillDemand, NewSchedule, ScheduleDemand, SchedulePatch
from orchestrix.api.serializers import moment, perhaps
from orchestrix.api.start import JSON
from orchestrix.domain.schedules import Schedule
from orchestrix.errors import NotFound
from orchestrix.persistence.jobs import schedules
from orchestrix.saga.messages import dump
from orchestrix.schedules.service import (
    InvalidSchedule,
    ScheduleBusy,
    ScheduleNameTaken,
    ScheduleRequester,
    ScheduleService,
    ScheduleVersionMismatch,
    UpcomingRun,
)

ORDER: Final = "name of schedule"
MOST_PREVIEWED: Final = 100
COUNT: Final = Parameter(
    "count", "How many.", {"type": "integer", "minimum": 1, "maximum": MOST_PREVIEWED, "default": 10}
)


async def create(call: Call) -> Response:
    """Makes one."""
    wish = parsed(NewSchedule, await read_object(call.request))
    fields = {name: value for name, value in wish.fields().items() if value is not None}
    with _refusals(""):
        made = await _timetable(call).create(fields, ScheduleRequester(call.actor, NO_REASON))
    return _answer(made, 201, {"Location": f"/schedules/{made.id}"})


async def list_schedules(call: Call) -> Response:
    """One page, by name."""
    limit, cursor = call.query.limit(DEFAULT_LIMIT), call.query.text("cursor")
    after = cursors.decode(ORDER, cursor, str)[0] if cursor else None
    async with call.context.database.read() as connection:
        found = await schedules.page(connection, limit + 1, after)
    following = cursors.encode(ORDER, found[limit - 1].name, 0) if len(found) > limit else None
    return page_response(call, [view(one) for one in found[:limit]], following)


async def show(call: Call) -> Response:
    """One schedule; 304 where the client has it."""
    with _refusals(_key(call)):
        found = await _timetable(call).get(_key(call))
    if matches(call.request, _etag(found)):
        return Response(status_code=304, headers={"ETag": _etag(found)})
    return _answer(found)


async def change(call: Call) -> Response:
    """Changes what people say of it."""
    key, version = _key(call), if_match(call.request)
    wish = parsed(SchedulePatch, await read_object(call.request))
    with _refusals(key):
        return _answer(await _changed(_timetable(call), key, wish, _by(call, wish.reason), version))


async def _changed(
    timetable: ScheduleService, key: str, wish: SchedulePatch, by: ScheduleRequester, version: int | None
) -> Schedule:
    """A change of the job is one of what it is now; where somebody else changes it meanwhile, it is looked at again."""
    if wish.job is None:
        return await timetable.change(key, wish.fields(), by, version)
    while True:
        now = await timetable.get(key)
        fields = {**wish.fields(), "job": wish.job.over(now.job)}
        try:
            return await timetable.change(key, fields, by, now.version if version is None else version)
        except ScheduleVersionMismatch:
            if version is not None:
                raise


async def pause(call: Call) -> Response:
    """Lets its due times pass."""
    return await _steer(call, _timetable(call).pause)


async def resume(call: Call) -> Response:
    """Ends the pause."""
    return await _steer(call, _timetable(call).resume)


async def delete(call: Call) -> Response:
    """Forgets it; as it was, and what has become of its runs."""
    key, by = _key(call), ScheduleRequester(call.actor, await reason_of(call))
    with _refusals(key):
        gone = await _timetable(call).delete(key, by)
    body = {**view(gone.schedule), "runsCancelled": gone.cancelled, "runsOngoing": gone.ongoing}
    return Response(dump(body), headers={"ETag": _etag(gone.schedule)}, media_type=JSON)


async def run(call: Call) -> Response:
    """Runs it once, now."""
    key, by = _key(call), await _given(call)
    with _refusals(key):
        job = await _timetable(call).run(key, by)
    headers = {"Location": f"/jobs/{job.id}", "ETag": f'"{job.version}"'}
    return Response(dump(whole(job, [])), 201, headers, JSON)


async def backfill(call: Call) -> Response:
    """Runs what was due in a range of the past and has no run."""
    key = _key(call)
    wish = parsed(BackfillDemand, await read_object(call.request))
    with _refusals(key):
        done = await _timetable(call).backfill(key, wish.from_, wish.to, _by(call, wish.reason), dry_run=wish.dryRun)
    body = {
        "dryRun": wish.dryRun,
        "dueTimes": [moment(due) for due in done.dues],
        "present": done.present,
        "jobs": list(done.jobs),
        "note": done.note,
    }
    return Response(dump(body), media_type=JSON)


async def preview(call: Call) -> Response:
    """The next due times."""
    key, count = _key(call), call.query.number("count", 1, MOST_PREVIEWED, default=10)
    assert count is not None, "it has a default"
    with _refusals(key):
        found = await _timetable(call).preview(key, count)
    return Response(dump({"items": [_coming(one) for one in found]}), media_type=JSON)


def view(one: Schedule) -> dict[str, Any]:
    """The schedule as the API shows it."""
    return {
        "id": one.id,
        "name": one.name,
        "state": one.state,
        "cron": one.cron,
        "intervalMs": one.interval_ms,
        "timeZone": one.zone,
        "startsAt": perhaps(one.starts_at),
        "endsAt": perhaps(one.ends_at),
        "overlap": one.overlap,
        "misfire": one.misfire,
        "catchUp": one.catch_up,
        "missedAfterMs": one.missed_after_ms,
        "jitterMs": one.jitter_ms,
        "job": _template(one),
        "createdBy": one.created_by,
        "createdAt": moment(one.created_at),
        "updatedAt": moment(one.updated_at),
        "version": one.version,
        "pausedAt": perhaps(one.paused_at),
        **_past_and_future(one),
    }


def _past_and_future(one: Schedule) -> dict[str, Any]:
    return {
        "dueAt": perhaps(one.due_at),
        "nextAt": perhaps(one.next_at),
        "trouble": one.trouble,
        "lastDueAt": perhaps(one.last_due_at),
        "lastOutcome": one.last_outcome,
        "lastJobId": one.last_job_id,
        "lastMisfire": _misfire(one),
        "fired": one.fired,
        "skipped": one.skipped,
    }


def _template(one: Schedule) -> dict[str, Any]:
    job = one.job
    names = {
        "queue": "queue",
        "handler": "handler",
        "payload": "payload",
        "timeoutMs": "timeout_ms",
        "retries": "retries",
    }
    return {shown: job.get(name) for shown, name in names.items()}


def _misfire(one: Schedule) -> dict[str, Any] | None:
    if one.last_misfire is None:
        return None
    times = {
        name: moment(datetime.fromisoformat(one.last_misfire[name]).astimezone(UTC)) for name in ("from", "to", "at")
    }
    return {**times, "ran": one.last_misfire["ran"]}


def _coming(one: UpcomingRun) -> dict[str, str]:
    return {"dueAt": moment(one.due_at), "beginsAt": moment(one.begins_at), "local": one.local}


async def _steer(call: Call, verb: Callable[[str, ScheduleRequester], Awaitable[Schedule]]) -> Response:
    key, by = _key(call), await _given(call)
    with _refusals(key):
        return _answer(await verb(key, by))


async def _given(call: Call) -> ScheduleRequester:
    """Who asks, and why; the body may be left out."""
    given = parsed(ScheduleDemand, await read_object(call.request)) if await call.request.body() else ScheduleDemand()
    return _by(call, given.reason)


def _by(call: Call, reason: str | None) -> ScheduleRequester:
    return ScheduleRequester(call.actor, reason or NO_REASON)


def _timetable(call: Call) -> ScheduleService:
    return call.context.timetable


def _key(call: Call) -> str:
    """The id or the name in the path. Raises `Problem` 404 for what can be neither."""
    key = call.path("schedule")
    if not NAME.fullmatch(key):
        raise not_found(f"schedule {key[:100]!r}")
    return key


def _etag(one: Schedule) -> str:
    return f'"{one.version}"'


def _answer(one: Schedule, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dump(view(one)), status, {"ETag": _etag(one), **(headers or {})}, JSON)


@contextmanager
def _refusals(key: str) -> Iterator[None]:
    """Makes a problem of each way to refuse."""
    try:
        yield
    except NotFound:
        raise not_found(f"schedule {key[:100]!r}") from None
    except InvalidSchedule as wrong:
        raise invalid_body([{"pointer": f"/{name}", "detail": what} for name, what in wrong.faults]) from None
    except ScheduleNameTaken as taken:
        raise Problem("already_exists", said(taken), existing=f"/schedules/{taken.id}") from None
    except ScheduleVersionMismatch as other:
        etag = {"ETag": f'"{other.current}"'}
        raise Problem("version_mismatch", moved_on(other.current), headers=etag, current=other.current) from None
    except ScheduleBusy as refused:
        raise Problem("illegal_transition", said(refused)) from None


_ONE: Final = "/schedules/{schedule}"
_PROBLEMS: Final = ("not_found", "bad_parameter", "unavailable")
_BODY: Final = (*_PROBLEMS, *BODY_PROBLEMS)
_SHOWN: Final[Answers] = {200: json_of(ScheduleBody, "As it is from now on.", SHOWN)}
_MADE: Final = {**SHOWN, "Location": {"description": "Where it is from now on.", "schema": {"type": "string"}}}


def _verb(name: str, handler: Handler, summary: str, about: str) -> Route:
    path, operation = f"{_ONE}/{name}", f"{name}Schedule"
    more: dict[str, Any] = {"tag": "schedules", "body": ScheduleDemand, "answers": _SHOWN, "problems": _BODY}
    return Route("POST", path, operation, handler, summary, about, **more)


ROUTES: Final = (
    Route(
        "POST",
        "/schedules",
        "createSchedule",
        create,
        "Make a schedule",
        "From then on its jobs begin by themselves, each due time once.",
        tag="schedules",
        body=NewSchedule,
        answers={201: json_of(ScheduleBody, "It is committed.", _MADE)},
        problems=("already_exists", "bad_parameter", "unavailable", "outcome_unknown", *BODY_PROBLEMS),
    ),
    Route(
        "GET",
        "/schedules",
        "listSchedules",
        list_schedules,
        "Schedules, by name",
        tag="schedules",
        parameters=(LIMIT, CURSOR),
        answers=page(SchedulePage),
        problems=("bad_parameter", "unavailable"),
    ),
    Route(
        "GET",
        _ONE,
        "getSchedule",
        show,
        "Show one",
        "By its id or its name, as all that follow.",
        tag="schedules",
        headers=(header("If-None-Match", "The ETag that the client has."),),
        answers={200: json_of(ScheduleBody, "As it is now.", SHOWN), 304: {"description": "The client has it."}},
        problems=_PROBLEMS,
    ),
    Route(
        "PATCH",
        _ONE,
        "changeSchedule",
        change,
        "Change it",
        "What is not named stays, also of the job. A new timing counts from now; null takes startsAt, endsAt, jitter or"
        " the job's timeout away. Runs that are there keep the job that they were made with.",
        tag="schedules",
        headers=(IF_MATCH,),
        body=SchedulePatch,
        answers=_SHOWN,
        problems=(*_BODY, "version_mismatch"),
    ),
    Route(
        "DELETE",
        _ONE,
        "deleteSchedule",
        delete,
        "Forget it",
        "Runs that no worker has begun are cancelled; one that was begun goes on to its end, with its retries.",
        tag="schedules",
        parameters=(REASON,),
        answers={200: json_of(DeletedBody, "As it was, and what has become of its runs.", SHOWN)},
        problems=_BODY,
    ),
    _verb("pause", pause, "Let its due times pass", "Runs that are there go on."),
    _verb("resume", resume, "End the pause", "With the first due time from now on; those of the pause are gone."),
    Route(
        "POST",
        f"{_ONE}/run",
        "runSchedule",
        run,
        "Run it once, now",
        "Also while it is paused. An earlier run that has not ended counts as `overlap` says: with skip it is 409.",
        tag="schedules",
        body=ScheduleDemand,
        answers={201: json_of(JobBody, "The job.", _MADE)},
        problems=(*_BODY, "illegal_transition"),
    ),
    Route(
        "POST",
        f"{_ONE}/backfill",
        "backfillSchedule",
        backfill,
        "Run what was due in the past",
        "The due times of the range that have no job yet, one after another.",
        tag="schedules",
        body=BackfillDemand,
        answers={200: json_of(BackfilledBody, "They wait for their turn.")},
        problems=(*_BODY, "illegal_transition"),
    ),
    Route(
        "GET",
        f"{_ONE}/preview",
        "previewSchedule",
        preview,
        "When will it be due?",
        "Of a paused one: when it would be due if it were resumed now.",
        tag="schedules",
        parameters=(COUNT,),
        answers={200: json_of(PreviewBody, "The next due times.")},
        problems=(*_PROBLEMS, "invalid_body"),
    ),
)
