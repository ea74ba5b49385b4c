"""Commands `schedules`: jobs that begin by themselves."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import BY, PAGE, REASON, RETRIES, routing
from orchestrix.cli.syntax.declarations import NULL, CommandGroup, OneOf, Option, ShellCommand, columns, option, switch
from orchestrix.cli.syntax.parsing import whole
from orchestrix.cli.syntax.values import json_object, moment

CATCH_UP: Final = 1, 100
COUNT: Final = 1, 100
_NAME = option("name", "its name or its id", "NAME")


def _job(named: bool) -> tuple[Option | OneOf, ...]:
    """The options of the schedule's job; of one that is changed if it is not `named` yet."""
    mark = "" if named else "--"
    time = option("--timeout", "how long an attempt may take, as 30s, 5m or 2h", "TIME", "job.timeout")
    none = option("--no-timeout", "an attempt may take any time", to="job.timeout", action="store_const", const=NULL)
    queue = (
        option("queue", "whose workers do its jobs; leave it out with --group", "QUEUE", "job.queue", unless="--group")
        if named
        else option("--queue", "whose workers do its jobs", "QUEUE", "job.queue")
    )
    return (
        queue,
        option(f"{mark}handler", "which of their functions", "HANDLER", "job.handler"),
        option("--payload", "what the function gets: an object", "JSON", "job.payload", json_object),
        *((time,) if named else (OneOf((time, none)),)),
        option("--retries", "how many attempts may follow a failed one", "N", "job.retries", type=whole(*RETRIES)),
        *routing("job.", "the id of the schedule"),
    )


_WHEN = (
    option("--cron", "minute, hour, day, month, weekday, as '30 2 * * MON-FRI'", "FIELDS", "cron"),
    option("--every", "the time from one to the next, as 90s, 5m or 1d", "TIME", "interval"),
)
_OVERLAPS: Final = ("skip", "queue", "cancel_previous")
_MISFIRES: Final = ("ignore", "fire_once", "catch_up")
_MORE = (
    option("--time-zone", "by which clocks --cron is read, as Europe/Berlin (UTC)", "ZONE", "timeZone"),
    option("--starts-at", "not before, as 2026-01-31T12:00:00Z", "TIME", "startsAt"),
    option("--ends-at", "not after", "TIME", "endsAt"),
    option("--overlap", "if an earlier run is at work (skip)", to="overlap", choices=_OVERLAPS),
    option("--misfire", "for times that nobody saw (fire_once)", to="misfire", choices=_MISFIRES),
    option("--catch-up", "with catch_up: how many of the last ones (10)", "N", "catchUp", type=whole(*CATCH_UP)),
    option("--missed-after", "how late is missed (1m)", "TIME", "missedAfter"),
    option("--jitter", "random delay of up to this time", "TIME", "jitter"),
)
_FROM: Final = "the first moment that counts, as 7d (ago), yesterday or 2026-01-31T12:00:00Z"
_PAST = (
    option("--from", _FROM, "TIME", "from", moment, dest="from_", required=True),
    option("--to", "the end, which does not count itself", "TIME", "to", moment, dest="to_", required=True),
    switch("--dry-run", "only tell which due times these are", "dryRun"),
)
_ONE = "/schedules/{name}"
_CREATED: Final = """schedules create nightly reports monthly --cron '30 2 * * *'
schedules create hourly reindex --group shop --every 1h"""
SCHEDULES: Final = CommandGroup("schedules", "schedules: jobs that start by themselves", (
    ShellCommand("create", "create a schedule", _CREATED,
            (option("name", "how it is called, unique", "NAME", "name"), *_job(named=True), BY,
             OneOf(_WHEN, required=True), *_MORE), "POST /schedules", run="commands.api_commands:create_schedule"),
    ShellCommand("list", "list schedules by name", "schedules list", PAGE, "GET /schedules",
            columns("name state when timeZone=ZONE overlap dueAt=NEXT lastDueAt=LAST lastOutcome=OUTCOME")),
    ShellCommand("show", "show one", "schedules show nightly", (_NAME,), f"GET {_ONE}"),
    ShellCommand("edit", "change the named settings, keep the others", "schedules edit nightly --cron '0 3 * * *'",
            (_NAME, *_job(named=False), OneOf(_WHEN), *_MORE, REASON), f"PATCH {_ONE}",
            run="commands.api_commands:edit"),
    ShellCommand("pause", "pause the schedule", "schedules pause nightly", (_NAME, REASON), f"POST {_ONE}/pause"),
    ShellCommand("resume", "end the pause", "schedules resume nightly", (_NAME, REASON), f"POST {_ONE}/resume"),
    ShellCommand("run", "run it once, now", "schedules run nightly", (_NAME, REASON), f"POST {_ONE}/run"),
    ShellCommand("backfill", "run missed due times of the past",
            "schedules backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-31T00:00:00Z --dry-run",
            (_NAME, *_PAST, REASON), f"POST {_ONE}/backfill", "backfilled"),
    ShellCommand("preview", "show the next due times", "schedules preview nightly --count 5",
            (_NAME, option("--count", "how many times (10)", "N", "?count", type=whole(*COUNT))), f"GET {_ONE}/preview",
                 "preview"),
    ShellCommand("delete", "delete it", "schedules delete nightly", (_NAME, REASON), f"DELETE {_ONE}", "deleted",
                 question="Delete schedule {name}?"),
))  # fmt: skip
