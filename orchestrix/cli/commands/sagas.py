"""Saga commands: start one and wait for its end, and watch one."""

from __future__ import annotations

import argparse
from typing import Any, Final

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import AlreadyExists, ApiClient
from orchestrix.cli.api_request import answer, api_of
from orchestrix.cli.display.ages import moment_of, utc
from orchestrix.cli.display.views import shown
from orchestrix.cli.instance_names import base, command_of, on_instance
from orchestrix.cli.saga_watch import ENDED, UNDO_FAILED, ProgressPrinter, until_end, watched
from orchestrix.cli.syntax.declarations import columns
from orchestrix.errors import ConflictError

_STUCK: Final = columns(
    "id appName|key=NAME state attempt blocker wakeReason=WAITING_FOR wakeAt=NEXT updatedAt=SINCE createdAt=AGE"
)


def list_all(arguments: argparse.Namespace) -> int:
    """`list`: one page; of what is stuck also what it waits for, and since when."""
    if arguments.stuck:
        arguments.declared = arguments.declared._replace(view=_STUCK)
    return shown(arguments, answer(arguments))


def create(arguments: argparse.Namespace) -> int:
    """`create`: starts one; with `--wait` shows its progress and answers 1 if it did not complete."""
    api = api_of(arguments)
    try:
        instance = api.instance_of(answer(arguments))
    except AlreadyExists as taken:
        there = api.document(taken.path)
        text = f"it is {arguments.saga} {there.get('id')} ({there.get('state')})"
        raise ConflictError(f"{arguments.key!r} already exists: {text}") from taken
    return shown(arguments, instance) if arguments.wait is None else _wait(arguments, api, instance)


def _wait(arguments: argparse.Namespace, api: ApiClient, instance: dict[str, Any]) -> int:
    progress = None
    if arguments.output != "json":
        name = output.visible(str(instance.get("appName") or instance.get("key") or ""))
        print(f"{arguments.saga} {instance['id']}  {name}")
        progress = ProgressPrinter(str(instance["createdAt"]))
    path = f"{base(arguments.saga)}/{instance['id']}"
    instance = until_end(api, path, instance, arguments.wait, progress)
    if progress is None:
        output.print_json(instance)
    if instance["state"] in ENDED:
        return exit_codes.OK if instance["state"] == "COMPLETED" else exit_codes.FAILED
    return _not_ended(arguments, instance)


def _not_ended(arguments: argparse.Namespace, instance: dict[str, Any]) -> int:
    why, watch = (f"`{command_of(arguments.saga, verb, instance['id'])}`" for verb in ("why", "watch"))
    if instance["state"] == UNDO_FAILED:
        exit_codes.warn(f"an undo failed, and it waits for an operator: see {why}", "error")
        return exit_codes.FAILED
    text = f"still {instance['state']} after {arguments.wait:g} s: {watch} follows it, {why} says what it waits for"
    exit_codes.warn(text, "error")
    return exit_codes.NOT_ENDED


def watch(arguments: argparse.Namespace) -> int:
    """`watch`: each change as it comes, until the end; answers 1 if that is not COMPLETED."""
    api = api_of(arguments)
    state = on_instance(arguments, api, "{base}/{id}", lambda path: _follow(arguments, api, path))
    return exit_codes.OK if state == "COMPLETED" else exit_codes.FAILED


def _follow(arguments: argparse.Namespace, api: ApiClient, path: str) -> str:
    state = ""
    for change in watched(api, path):
        state = change["toState"]
        if arguments.output == "json":
            output.print_json_line(change)
        else:
            print(_change(change), flush=True)
    return state


def _change(change: dict[str, Any]) -> str:
    at = moment_of(change.get("at"))
    parts = (
        output.cell(utc(at) if at else None),
        f"v{output.cell(change.get('version'))}",
        f"{output.cell(change.get('fromState'))} → {output.paint_state(output.cell(change['toState']))}",
        output.cell(change.get("reason")),
        output.cell(change.get("actor")),
    )
    return "  ".join(parts)
