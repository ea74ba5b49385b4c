"""Control commands: explain a saga, act on it, list deadlines, and redispatch."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import api_of, json_object, keyed, path_of, reason_of
from orchestrix.cli.commands.sagas import show_instance
from orchestrix.errors import Invalid

_CALLS = {"edit": ("PATCH", ""), "extend": ("PATCH", "/deadline"), "withdraw": ("DELETE", "/deadline")}
"""Method and end of the path, where they are not `POST` and the verb."""
_WAKE_UPS = ("saga", "id", "key", "state", "step", "attempt", "wakeReason", "wakeAt", "deadlineAt")


def why(arguments: argparse.Namespace) -> int:
    """`why`: one sentence on why a saga does not go on, and what helps."""
    found = api_of(arguments).document(path_of(arguments, arguments.id) + "/why")
    if arguments.output == "json":
        output.print_json(found)
    else:
        titles = {"why": "sentence", "next": "nextAction", "code": "blocker", "since": "since", "until": "nextAt"}
        output.print_fields({title: found.get(name) for title, name in titles.items() if found.get(name) is not None})
    return exit_codes.OK


def act(arguments: argparse.Namespace) -> int:
    """A verb: does it, or with `--dry-run` shows what it would do. Each command has a key of its own."""
    method, suffix = _CALLS.get(arguments.verb, ("POST", f"/{arguments.verb}"))
    body = _body(arguments)
    headers = {} if arguments.if_version is None else {"If-Match": f'"{arguments.if_version}"'}
    path, api = path_of(arguments, arguments.id) + suffix, api_of(arguments)
    with keyed(arguments) as key:
        if arguments.dry_run:
            _show_preview(arguments, api.send(method, path, body, headers | key, {"dryRun": "true"}))
            return exit_codes.OK
        done = api.instance_of(api.send(method, path, body, headers | key))
    show_instance(arguments, done)
    return exit_codes.OK


def deadlines(arguments: argparse.Namespace) -> int:
    """`deadlines list`: what the engine will do by itself, the soonest first; one page."""
    page = api_of(arguments).page("/deadlines", {"limit": arguments.limit, "cursor": arguments.cursor})
    if arguments.output == "json":
        output.print_json(page)
        return exit_codes.OK
    heads = ("SAGA", "ID", "KEY", "STATE", "STEP", "ATTEMPT", "WAITS FOR", "UNTIL", "RUN ENDS")
    output.print_table(heads, [[item.get(name) for name in _WAKE_UPS] for item in page["items"]])
    if page.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {page['nextCursor']}", "note")
    return exit_codes.OK


def redispatch(arguments: argparse.Namespace) -> int:
    """`redispatch`: sends commands in flight again, of all sagas, of one, or of some of its instances."""
    if arguments.ids and arguments.saga is None:
        raise Invalid("ids alone do not say whose they are: add --saga, as --saga app")
    body: dict[str, Any] = {"reason": reason_of(arguments)}
    body |= {"saga": arguments.saga} if arguments.saga is not None else {}
    body |= {"ids": arguments.ids} if arguments.ids else {}
    with keyed(arguments) as key:
        found = api_of(arguments).send("POST", "/redispatch", body, key)
    if arguments.output == "json":
        output.print_json(found)
    else:
        print(f"commands that are sent again: {output.cell(found.get('redispatched'))}")
    return exit_codes.OK


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"reason": reason_of(arguments)}
    if arguments.verb == "skip" and arguments.step_output is not None:
        body["output"] = json_object(arguments.step_output, "--output")
    elif arguments.verb == "edit" or (arguments.verb == "retry" and arguments.data is not None):
        body["data"] = json_object(arguments.data, "--data")
    elif arguments.verb == "extend":
        body |= {"at": arguments.at} if arguments.at is not None else {"extendBy": arguments.by}
    return body


def _show_preview(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    if arguments.output == "json":
        output.print_json(found)
        return
    rows = found.get("history") or []
    note = found.get("note") or "it is so already"
    print("nothing is changed; this would be:" if rows else f"nothing would change: {output.visible(str(note))}")
    if rows:
        columns = ("version", "fromState", "toState", "reason", "actor")
        heads = ("VERSION", "FROM", "TO", "REASON", "ACTOR")
        output.print_table(heads, [[row.get(name) for name in columns] for row in rows])
    if undo := found.get("undo"):
        print(f"undone, in this order: {output.visible(', '.join(map(str, undo)))}")
    if command := found.get("command"):
        print(f"sent: {output.visible(str(command))}")
