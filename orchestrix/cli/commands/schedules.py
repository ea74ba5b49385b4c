"""Schedule commands: create, list, show, change, run and delete schedules."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import api_of, json_object, reason_of
from orchestrix.errors import Invalid

_PATH = "/schedules"
_POLICY = {
    "cron": "cron",
    "every": "interval",
    "time_zone": "timeZone",
    "starts_at": "startsAt",
    "ends_at": "endsAt",
    "overlap": "overlap",
    "misfire": "misfire",
    "catch_up": "catchUp",
    "missed_after": "missedAfter",
    "jitter": "jitter",
}
_COLUMNS = ("name", "state", "when", "timeZone", "overlap", "dueAt", "lastDueAt", "lastOutcome")
_HEADS = ("NAME", "STATE", "WHEN", "ZONE", "OVERLAP", "NEXT", "LAST", "OUTCOME")


def create(arguments: argparse.Namespace) -> int:
    """`schedules create`: makes one."""
    body: dict[str, Any] = {"name": arguments.name, "job": _job(arguments), **_policy(arguments)}
    body |= {"createdBy": arguments.by} if arguments.by is not None else {}
    return _shown(arguments, api_of(arguments).send("POST", _PATH, body))


def list_all(arguments: argparse.Namespace) -> int:
    """`schedules list`: one page, by name; where there is more, its last line says how to go on."""
    page = api_of(arguments).page(_PATH, {"limit": arguments.limit, "cursor": arguments.cursor})
    if arguments.output == "json":
        output.print_json(page)
        return exit_codes.OK
    rows = [{**item, "when": _when(item)} for item in page["items"]]
    output.print_table(_HEADS, [[row.get(name) for name in _COLUMNS] for row in rows])
    if page.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {page['nextCursor']}", "note")
    return exit_codes.OK


def show(arguments: argparse.Namespace) -> int:
    """`schedules show`: one as it is now."""
    return _shown(arguments, api_of(arguments).document(_path(arguments)))


def edit(arguments: argparse.Namespace) -> int:
    """`schedules edit`: changes what is named."""
    job = _job(arguments) | ({"timeout": None} if arguments.no_timeout else {})
    changes = {**_policy(arguments), **({"job": job} if job else {})}
    if not changes:
        raise Invalid("nothing is to be changed: name what, as --cron, --overlap or --payload")
    body = {**changes, "reason": reason_of(arguments)}
    return _shown(arguments, api_of(arguments).send("PATCH", _path(arguments), body))


def steer(arguments: argparse.Namespace) -> int:
    """`schedules pause` and `resume`."""
    path = f"{_path(arguments)}/{arguments.action}"
    return _shown(arguments, api_of(arguments).send("POST", path, {"reason": reason_of(arguments)}))


def run(arguments: argparse.Namespace) -> int:
    """`schedules run`: starts a run now, and shows its job."""
    return _shown(
        arguments, api_of(arguments).send("POST", f"{_path(arguments)}/run", {"reason": reason_of(arguments)})
    )


def delete(arguments: argparse.Namespace) -> int:
    """`schedules delete`: deletes it, and says what has become of its runs."""
    gone = api_of(arguments).send("DELETE", _path(arguments), {"reason": reason_of(arguments)})
    if arguments.output == "json":
        output.print_json(gone)
        return exit_codes.OK
    print(f"{output.visible(str(gone.get('name')))} is deleted: nothing is due any more")
    print(f"runs that no worker had begun, and that are cancelled: {output.cell(gone.get('runsCancelled'))}")
    print(f"runs that go on to their end, with their retries: {output.cell(gone.get('runsOngoing'))}")
    print(f"all of them: GET /jobs?scheduleId={output.visible(str(gone.get('id')))}")
    return exit_codes.OK


def backfill(arguments: argparse.Namespace) -> int:
    """`schedules backfill`: the due times of the range that have no run."""
    body = {"from": arguments.from_, "to": arguments.to_, "dryRun": arguments.dry_run, "reason": reason_of(arguments)}
    found = api_of(arguments).send("POST", f"{_path(arguments)}/backfill", body)
    if arguments.output == "json":
        output.print_json(found)
        return exit_codes.OK
    made = found.get("jobs") or []
    rows = [(due, made[place] if place < len(made) else None) for place, due in enumerate(found.get("dueTimes") or [])]
    if rows:
        output.print_table(("DUE", "JOB"), rows)
    print(f"due times that had a run already: {output.cell(found.get('present'))}")
    if found.get("note"):
        print(output.visible(str(found["note"])))
    if arguments.dry_run:
        print("nothing is changed")
    return exit_codes.OK


def preview(arguments: argparse.Namespace) -> int:
    """`schedules preview`: the next due times."""
    found = api_of(arguments).get(f"{_path(arguments)}/preview", {"count": arguments.count})
    if arguments.output == "json":
        output.print_json(found)
    else:
        columns = ("local", "dueAt", "beginsAt")
        output.print_table(
            ("LOCAL", "DUE", "BEGINS"), [[item.get(name) for name in columns] for item in found["items"]]
        )
    return exit_codes.OK


def _job(arguments: argparse.Namespace) -> dict[str, Any]:
    named = ("queue", "handler", "timeout", "retries")
    job = {name: value for name in named if (value := getattr(arguments, name)) is not None}
    return job | ({} if arguments.payload is None else {"payload": json_object(arguments.payload, "--payload")})


def _policy(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for flag, name in _POLICY.items() if (value := getattr(arguments, flag)) is not None}


def _path(arguments: argparse.Namespace) -> str:
    if arguments.name in ("", ".", ".."):
        raise Invalid(f"{arguments.name!r} is no name of a schedule")
    try:
        return f"{_PATH}/{quote(arguments.name, safe='')}"
    except UnicodeEncodeError as wrong:
        raise Invalid("the schedule's name is not valid text: write it in UTF-8") from wrong


def _when(item: dict[str, Any]) -> str:
    interval = item.get("intervalMs")
    return str(item.get("cron")) if interval is None else f"every {interval / 1000:g}s"


def _shown(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    if arguments.output == "json":
        output.print_json(found)
    else:
        output.print_fields(found)
    return exit_codes.OK
