"""Saga commands: start one and wait for its end, and watch one."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import AlreadyExists, ApiClient
from orchestrix.cli.api_request import answer, api_of
from orchestrix.cli.instance_names import APP, base, on_instance
from orchestrix.cli.saga_watch import ENDED, ProgressPrinter, until_end, watched
from orchestrix.cli.views import shown
from orchestrix.errors import ConflictError


def create(arguments: argparse.Namespace) -> int:
    """`create`: starts one; with `--wait` shows its progress and answers 1 if it did not complete."""
    api = api_of(arguments)
    try:
        instance = api.instance_of(answer(arguments))
    except AlreadyExists as taken:
        there = api.document(taken.path)
        said = f"it is {arguments.saga} {there.get('id')} ({there.get('state')})"
        raise ConflictError(f"{arguments.key!r} already exists: {said}") from taken
    return shown(arguments, instance) if arguments.wait is None else _wait(arguments, api, instance)


def _wait(arguments: argparse.Namespace, api: ApiClient, instance: dict[str, Any]) -> int:
    progress = None
    if arguments.output == "table":
        name = output.visible(str(instance.get("appName") or instance.get("key") or ""))
        print(f"{arguments.saga} {instance['id']}  {name}")
        progress = ProgressPrinter(str(instance["createdAt"]))
    path = f"{base(arguments.saga)}/{instance['id']}"
    instance = until_end(api, path, instance, arguments.wait, progress)
    if progress is None:
        output.print_json(instance)
    if instance["state"] not in ENDED:
        noun = "apps watch" if arguments.saga == APP else f"sagas watch {arguments.saga}"
        exit_codes.warn(
            f"still {instance['state']} after {arguments.wait:g} s; it goes on by itself: "
            f"`orchestrix {noun} {instance['id']}` follows it",
            "error",
        )
    return exit_codes.OK if instance["state"] == "COMPLETED" else exit_codes.FAILED


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
    parts = (
        output.cell(change.get("at")),
        f"v{output.cell(change.get('version'))}",
        f"{output.cell(change.get('fromState'))} → {output.paint_state(output.cell(change['toState']))}",
        output.cell(change.get("reason")),
        output.cell(change.get("actor")),
    )
    return "  ".join(parts)
