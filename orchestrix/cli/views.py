"""Views: how the answers of the API look in a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.syntax.declarations import Columns, columns

Document = dict[str, Any]
_HISTORY = columns("version fromState=FROM toState=TO reason actor")


def shown(arguments: argparse.Namespace, found: Document) -> int:
    """Shows an answer as the command declares it, or as JSON."""
    view = arguments.declared.view
    if arguments.output == "json":
        output.print_json(found)
    elif isinstance(view, str):
        globals()[view](found)
    elif view is None:
        output.print_fields(found)
    else:
        _print_items(view, found)
    return exit_codes.OK


def _print_items(view: Columns, found: Document) -> None:
    items = found["items"]
    if view.fields == ("*",):
        names = tuple(dict.fromkeys(name for item in items for name in item))
        view = Columns(names, tuple(_title(name) for name in names))
    print_rows(view, items)
    if found.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {found['nextCursor']}", "note")


def print_rows(view: Columns, rows: Sequence[Document]) -> None:
    """A table of the documents."""
    output.print_table(view.heads, [[_value(row, name) for name in view.fields] for row in rows])


def _value(row: Document, name: str) -> Any:
    if name == "when":
        interval = row.get("intervalMs")
        return row.get("cron") if interval is None else f"every {interval / 1000:g}s"
    return row.get(name)


def _title(name: str) -> str:
    return "".join(f" {char}" if char.isupper() else char for char in name).upper()


def why(found: Document) -> None:
    """Why something does not go on, and what helps."""
    titles = {"why": "sentence", "next": "nextAction", "code": "blocker", "since": "since", "until": "nextAt"}
    output.print_fields({title: found.get(name) for title, name in titles.items() if found.get(name) is not None})


def changed(found: Document) -> None:
    """An instance after a verb, or what the verb would do."""
    if not found.get("dryRun"):
        return output.print_fields(found)
    rows = found.get("history") or []
    note = found.get("note") or "it is so already"
    print("nothing is changed; this would be:" if rows else f"nothing would change: {output.visible(str(note))}")
    if rows:
        print_rows(_HISTORY, rows)
    if undo := found.get("undo"):
        print(f"undone, in this order: {output.visible(', '.join(map(str, undo)))}")
    if command := found.get("command"):
        print(f"sent: {output.visible(str(command))}")
    return None


def redispatched(found: Document) -> None:
    """How many commands were sent again."""
    print(f"commands that are sent again: {output.cell(found.get('redispatched'))}")


def redriven(found: Document) -> None:
    """How many dead letters were sent again, and which were not."""
    print(f"dead letters that fit: {output.cell(found.get('matched'))}")
    print(f"sent again: {output.cell(found.get('redriven'))}")
    if refused := found.get("refused"):
        output.print_table(("NOT SENT", "WHY"), [[one.get("id"), one.get("reason")] for one in refused])


def backfilled(found: Document) -> None:
    """The due times that got a run, or would."""
    made = found.get("jobs") or []
    rows = [(due, made[place] if place < len(made) else None) for place, due in enumerate(found.get("dueTimes") or [])]
    if rows:
        output.print_table(("DUE", "JOB"), rows)
    print(f"due times that had a run already: {output.cell(found.get('present'))}")
    if found.get("note"):
        print(output.visible(str(found["note"])))
    if found.get("dryRun"):
        print("nothing is changed")


def deleted(found: Document) -> None:
    """What became of the runs of a deleted schedule."""
    print(f"{output.visible(str(found.get('name')))} is deleted: nothing is due any more")
    print(f"runs that no worker had begun, and that are cancelled: {output.cell(found.get('runsCancelled'))}")
    print(f"runs that go on to their end, with their retries: {output.cell(found.get('runsOngoing'))}")
    print(f"all of them: GET /jobs?scheduleId={output.visible(str(found.get('id')))}")
