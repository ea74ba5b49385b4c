"""Schedule arguments: the commands and options of `schedules`."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrix.cli.parsing import LIMIT, add_client, add_reason, group, leaf, whole

RETRIES = 0, 1000
CATCH_UP = 1, 100
COUNT = 1, 100


def add(commands: Any) -> None:
    """Adds `schedules …`."""
    actions = group(commands, "schedules", "schedules: jobs that begin by themselves")
    create = leaf(actions, "create", "commands.schedules:create", "make a schedule")
    create.add_argument("name", metavar="NAME", help="how it is called, unique")
    create.add_argument("queue", metavar="QUEUE", help="whose workers do its jobs")
    create.add_argument("handler", metavar="HANDLER", help="which of their functions")
    _add_job(create)
    create.add_argument("--by", metavar="WHO", help="who asks for it (createdBy)")
    listing = leaf(actions, "list", "commands.schedules:list_all", "list schedules by name")
    listing.add_argument("--limit", type=whole(*LIMIT), metavar="N", help="how many at once, at most 200")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where a list ended")
    edit = leaf(actions, "edit", "commands.schedules:edit", "change what is named, and leave the rest")
    edit.add_argument("--queue", metavar="QUEUE", help="whose workers do its jobs")
    edit.add_argument("--handler", metavar="HANDLER", help="which of their functions")
    _add_job(edit, also_none=True)
    for command in (create, edit):
        _add_policy(command, needed=command is create)
    preview = leaf(actions, "preview", "commands.schedules:preview", "when it will be due")
    preview.add_argument("--count", type=whole(*COUNT), metavar="N", help="how many times (10)")
    several = [edit, preview, leaf(actions, "show", "commands.schedules:show", "show one"), *_verbs(actions)]
    for command in several:
        command.add_argument("name", metavar="NAME", help="its name or its id")
    for command in (create, listing, *several):
        add_client(command)


def _verbs(actions: Any) -> list[argparse.ArgumentParser]:
    """The commands that do something and may say why."""
    backfill = leaf(actions, "backfill", "commands.schedules:backfill", "run what was due in the past and has no run")
    for flag, meaning in (("--from", "the first moment that counts, as 2026-01-31T12:00:00Z"), ("--to", "the end")):
        backfill.add_argument(flag, dest=flag.strip("-") + "_", required=True, metavar="TIME", help=meaning)
    backfill.add_argument("--dry-run", action="store_true", help="only tell which due times these are")
    found = [
        backfill,
        leaf(actions, "pause", "commands.schedules:steer", "let its due times pass"),
        leaf(actions, "resume", "commands.schedules:steer", "end the pause"),
        leaf(actions, "run", "commands.schedules:run", "run it once, now"),
        leaf(actions, "delete", "commands.schedules:delete", "forget it"),
    ]
    for command in found:
        add_reason(command)
    return found


def _add_job(command: argparse.ArgumentParser, *, also_none: bool = False) -> None:
    command.add_argument("--payload", metavar="JSON", help="what the function gets: an object")
    time = command.add_mutually_exclusive_group()
    time.add_argument("--timeout", metavar="TIME", help="how long an attempt may take, as 30s, 5m or 2h")
    if also_none:
        time.add_argument("--no-timeout", action="store_true", help="an attempt may take as long as it takes")
    command.add_argument(
        "--retries", type=whole(*RETRIES), metavar="N", help="how many attempts may follow a failed one"
    )


def _add_policy(command: argparse.ArgumentParser, *, needed: bool) -> None:
    when = command.add_mutually_exclusive_group(required=needed)
    when.add_argument("--cron", metavar="FIELDS", help="minute, hour, day, month, weekday, as '30 2 * * MON-FRI'")
    when.add_argument("--every", metavar="TIME", help="the time from one to the next, as 90s, 5m or 1d")
    add = command.add_argument
    add("--time-zone", metavar="ZONE", help="by which clocks --cron is read, as Europe/Berlin (UTC)")
    add("--starts-at", metavar="TIME", help="not before, as 2026-01-31T12:00:00Z")
    add("--ends-at", metavar="TIME", help="not after")
    add("--overlap", choices=("skip", "queue", "cancel_previous"), help="if an earlier run is at work (skip)")
    add("--misfire", choices=("ignore", "fire_once", "catch_up"), help="for times that nobody saw (fire_once)")
    add("--catch-up", type=whole(*CATCH_UP), metavar="N", help="with catch_up: so many of the last ones (10)")
    add("--missed-after", metavar="TIME", help="how late is missed (1m)")
    add("--jitter", metavar="TIME", help="begin up to so much later")
    if not needed:
        add_reason(command)
