"""Views: how the answers of the API options in a terminal."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from orchestrix import clock
from orchestrix.cli import exit_codes, output
from orchestrix.cli.display.ages import age, moment_of, utc
from orchestrix.cli.instance_names import command_of
from orchestrix.cli.syntax.declarations import Column, Columns, columns, title

Document = dict[str, Any]
_HISTORY: Final = columns("version fromState=FROM toState=TO reason actor")
_DEFINITIONS: Final = columns("saga version starts=NEW_ONES live=LIVE states=BY_STATE runsHere=RUNS_HERE path+")
_VERB: Final = re.compile("`(retry|skip|edit|pause|resume|cancel|terminate|redispatch)`")
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


class DisplayOptions(NamedTuple):
    """How values are shown: all of them and as they came if `wide`; times as ages, or in UTC."""

    wide: bool
    utc: bool
    now: datetime

    @property
    def columns(self) -> int | None:
        """How wide a table may be."""
        return None if self.wide else output.terminal_columns()


def display_options(arguments: argparse.Namespace) -> DisplayOptions:
    """As the command's options say."""
    return DisplayOptions(arguments.output == "wide", getattr(arguments, "utc", False), clock.now())


def shown(arguments: argparse.Namespace, found: Document) -> int:
    """Shows an answer as the command declares it, or as JSON."""
    view, options = arguments.declared.view, display_options(arguments)
    if arguments.output == "json":
        output.print_json(found)
    elif isinstance(view, str):
        globals()[view](found, options)
    elif view is None:
        print_document(found, options)
    else:
        print_items(view, found, options)
    return exit_codes.OK


def print_items(view: Columns, found: Document, options: DisplayOptions) -> None:
    """A page of a list."""
    if view == columns("*"):
        names = dict.fromkeys(name for item in found["items"] for name in item)
        view = tuple(Column((name,), title(name), wide=name == "traceId") for name in names)
    print_rows(view, found["items"], options)
    if found.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor={found['nextCursor']}", "note")


def print_rows(view: Columns, rows: Sequence[Document], options: DisplayOptions, indent: int = 0) -> None:
    """A table of the documents, or the word that there are none."""
    if not rows:
        return print("none")
    seen = [one for one in view if _is_shown(one, rows, options)]
    cells = [[text_of(_of(row, one), options) for one in seen] for row in rows]
    room = None if options.columns is None else options.columns - indent
    lines = output.table([one.head for one in seen], cells, room)
    return print("\n".join(" " * indent + line for line in lines.splitlines()))


def _is_shown(column: Column, rows: Sequence[Document], options: DisplayOptions) -> bool:
    return (options.wide or not column.wide) and (not column.perhaps or any(_of(row, column) for row in rows))


def _of(row: Document, column: Column) -> Any:
    if column.fields == ("when",):
        interval = row.get("intervalMs")
        return row.get("cron") if interval is None else f"every {interval / 1000:g}s"
    return next((found for name in column.fields if (found := _at(row, name)) is not None), None)


def _at(row: Document, name: str) -> Any:
    outer, _, inner = name.partition(".")
    return (row.get(outer) or {}).get(inner) if inner else row.get(name)


def text_of(value: Any, options: DisplayOptions) -> Any:
    """A value for a cell."""
    if options.wide:
        return value
    at = moment_of(value)
    if at is not None:
        return utc(at) if options.utc else age(at, options.now)
    if isinstance(value, dict) and value.keys() == {"percent"}:
        return f"{value['percent']} %"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or None
    return value


def print_document(found: Document, options: DisplayOptions) -> None:
    """One name and value a line, without those that are empty; lists of documents are tables below."""
    if isinstance(job := found.get("job"), dict):  # what a schedule starts
        found = {**found, **{f"job.{name}": value for name, value in job.items()}, "job": None}
    for place in ("routing", "job.routing"):  # how the executor of a job is picked
        if isinstance(routing := found.get(place), dict):
            more = [f"{name} {value}" for name, value in routing.items() if name != "strategy" and value is not None]
            found = {**found, place: ", ".join([str(routing.get("strategy")), *more])}
    if isinstance(links := found.get("links"), dict) and links.keys() <= {"trace", "logs"}:  # of other tools
        found = {**found, "links": None, **{name: url for name, url in links.items() if name not in found}}
    kept = {name: value for name, value in found.items() if options.wide or value not in _EMPTY}
    tables = {name: value for name, value in kept.items() if _is_table(value)}
    output.print_fields({name: _field(value, options) for name, value in kept.items() if name not in tables})
    for name, rows in tables.items():
        print(f"{output.visible(name)}:")
        names = dict.fromkeys(field for row in rows for field in row)
        print_rows(
            tuple(Column((one,), title(one), perhaps=not options.wide) for one in names), rows, options, indent=2
        )


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _field(value: Any, options: DisplayOptions) -> Any:
    at = moment_of(value)
    return text_of(value, options) if at is None or options.wide else f"{utc(at)} ({age(at, options.now)})"


def why(found: Document, options: DisplayOptions) -> None:
    """Why something does not continue, and what helps: of an instance, as the lines to type."""
    if isinstance(action := found.get("nextAction"), str) and {"saga", "id"} <= found.keys():
        found = {**found, "nextAction": _lines(action, str(found["saga"]), found["id"])}
    titles = {"why": "sentence", "next": "nextAction", "code": "blocker", "since": "since", "until": "nextAt"}
    fields = {**{name: found.get(field) for name, field in titles.items()}, "links": found.get("links")}
    print_document(fields, options._replace(wide=False))


def _lines(action: str, saga: str, id: Any) -> str:
    """The same with the lines to type instead of the actions as the API names them."""

    def line(found: re.Match[str]) -> str:
        verb = found[1]
        text = f"orchestrix redispatch --saga {saga} {id}" if verb == "redispatch" else command_of(saga, verb, id)
        return found[0] if f"`{text}`" in action else f"`{text}{' --data JSON' if verb == 'edit' else ''}`"

    return _VERB.sub(line, action)


def changed(found: Document, options: DisplayOptions) -> None:
    """An instance after a verb, or what the verb would do."""
    if not found.get("dryRun"):
        return print_document(found, options)
    rows = found.get("history") or []
    note = found.get("note") or "it is so already"
    print("Dry run, nothing changed. Would do:" if rows else f"Nothing would change: {output.visible(str(note))}")
    if rows:
        print_rows(_HISTORY, rows, options)
    if undo := found.get("undo"):
        print(f"undo, in this order: {output.visible(', '.join(map(str, undo)))}")
    if command := found.get("command"):
        print(f"send: {output.visible(str(command))}")
    return None


def redispatched(found: Document, _: DisplayOptions) -> None:
    """How many commands were sent again, or would be."""
    count = output.cell(found.get("matched", found.get("redispatched")))
    if found.get("dryRun"):
        print(f"Dry run, nothing changed. Would send {count} commands again.")
    else:
        print(f"commands sent again: {count}")


def redriven(found: Document, options: DisplayOptions) -> None:
    """How many dead letters were sent again or dropped, and which were not."""
    done = "redriven" if "redriven" in found else "dropped"
    words = {"redriven": "sent again", "dropped": "dropped"}
    print(f"dead letters that match: {output.cell(found.get('matched'))}")
    if found.get("dryRun"):
        print("Dry run, nothing changed.")
    else:
        print(f"{words[done]}: {output.cell(found.get(done))}")
    if refused := found.get("refused"):
        print_rows(columns("id=REFUSED reason=WHY"), refused, options)


def backfilled(found: Document, options: DisplayOptions) -> None:
    """The due times that got a run, or would."""
    made = found.get("jobs") or []
    if dues := found.get("dueTimes"):
        rows = [{"due": due, "job": made[place] if place < len(made) else None} for place, due in enumerate(dues)]
        print_rows(columns("due job"), rows, options._replace(utc=True))
    print(f"due times that had a run already: {output.cell(found.get('present'))}")
    if found.get("note"):
        print(output.visible(str(found["note"])))
    if found.get("dryRun"):
        print("Dry run, nothing changed.")


def preview(found: Document, options: DisplayOptions) -> None:
    """When a schedule will be due."""
    print_rows(columns("local dueAt beginsAt"), found["items"], options._replace(wide=True))


def deleted(found: Document, _: DisplayOptions) -> None:
    """What became of the runs of a deleted schedule."""
    print(f"{output.visible(str(found.get('name')))} is deleted: nothing is due any more")
    print(f"runs that no worker had begun, and that are cancelled: {output.cell(found.get('runsCancelled'))}")
    print(f"runs that go on to their end, with their retries: {output.cell(found.get('runsOngoing'))}")
    print(f"all of them: `orchestrix jobs list --schedule {output.visible(str(found.get('id')))}`")


def definitions(found: Document, options: DisplayOptions) -> None:
    """Every version of every saga, and what is live of it."""
    rows = [
        {
            **item,
            **version,
            "starts": version.get("version") == item.get("starts"),
            "live": sum(version.get("live", {}).values()),
            "states": ", ".join(f"{count} {state}" for state, count in version.get("live", {}).items()),
        }
        for item in found.get("items", [])
        for version in item.get("versions", [])
    ]
    print_rows(_DEFINITIONS, rows, options)
