"""Saga commands: start, list, show and watch sagas; `apps …` is `sagas … app` under names of its own."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import APP, api_of, json_object, key_header, path_of, words
from orchestrix.cli.saga_watch import ENDED, ProgressPrinter, until_end, watched

_FILTERS = {
    "state": "state",
    "created_by": "createdBy",
    "created_after": "createdAfter",
    "created_before": "createdBefore",
    "q": "q",
    "sort": "sort",
    "limit": "limit",
    "cursor": "cursor",
}


def create(arguments: argparse.Namespace) -> int:
    """`create`: starts one; with `--wait` shows its progress and answers 1 if it did not complete."""
    name = "appName" if arguments.saga == APP else "key"
    body: dict[str, Any] = {name: arguments.key, "createdBy": arguments.by}
    if arguments.data is not None:
        body["data"] = json_object(arguments.data, "--data")
    headers = idempotency(arguments.idempotency_key)
    api = api_of(arguments)
    instance = api.post(path_of(arguments), body, headers)
    if arguments.wait is None:
        show_instance(arguments, instance)
        return exit_codes.OK
    return _create_and_wait(arguments, api, instance)


def _create_and_wait(arguments: argparse.Namespace, api: ApiClient, instance: dict[str, Any]) -> int:
    progress = None
    if arguments.output == "table":
        print(f"{arguments.saga} {instance['id']}  {output.visible(name_of(instance))}")
        progress = ProgressPrinter(str(instance["createdAt"]))
    instance = until_end(api, path_of(arguments, instance["id"]), instance, arguments.wait, progress)
    if progress is None:
        output.print_json(instance)
    if instance["state"] not in ENDED:
        exit_codes.warn(
            f"still {instance['state']} after {arguments.wait:g} s; it goes on by itself: "
            f"`orchestrix {words(arguments, 'watch')} {instance['id']}` follows it",
            "error",
        )
    return exit_codes.OK if instance["state"] == "COMPLETED" else exit_codes.FAILED


def list_all(arguments: argparse.Namespace) -> int:
    """`list`: one page; where there is more, its last line says how to go on."""
    filters = {name: getattr(arguments, flag) for flag, name in _FILTERS.items()}
    filters["stuck"] = "true" if arguments.stuck else None
    page = api_of(arguments).page(path_of(arguments), filters)
    if arguments.output == "json":
        output.print_json(page)
        return exit_codes.OK
    rows = [
        (item["id"], name_of(item), item["state"], item["version"], item["createdBy"], item["createdAt"])
        for item in page["items"]
    ]
    output.print_table(("ID", "NAME" if arguments.saga == APP else "KEY", "STATE", "VERSION", "BY", "CREATED"), rows)
    if page.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {page['nextCursor']}", "note")
    return exit_codes.OK


def show(arguments: argparse.Namespace) -> int:
    """`show`: the instance as it is now."""
    show_instance(arguments, api_of(arguments).instance(path_of(arguments, arguments.id)))
    return exit_codes.OK


def history(arguments: argparse.Namespace) -> int:
    """`history`: every change of its state, oldest first."""
    items = api_of(arguments).all_items(path_of(arguments, arguments.id) + "/history")
    if arguments.output == "json":
        output.print_json({"items": items})
        return exit_codes.OK
    columns = ("version", "fromState", "toState", "reason", "actor", "at")
    output.print_table(
        ("VERSION", "FROM", "TO", "REASON", "ACTOR", "AT"),
        [[item.get(column) for column in columns] for item in items],
    )
    return exit_codes.OK


def messages(arguments: argparse.Namespace) -> int:
    """`messages`: what was sent, waits, was ignored or could not be read."""
    items = api_of(arguments).all_items(path_of(arguments, arguments.id) + "/messages")
    if arguments.output == "json":
        output.print_json({"items": items})
        return exit_codes.OK
    columns = list(dict.fromkeys(name for item in items for name in item))
    output.print_table([_title(name) for name in columns], [[item.get(name) for name in columns] for item in items])
    return exit_codes.OK


def watch(arguments: argparse.Namespace) -> int:
    """`watch`: each change as it comes, until the end; answers 1 if that is not COMPLETED."""
    api, path = api_of(arguments), path_of(arguments, arguments.id)
    state = ""
    for change in watched(api, path):
        state = change["toState"]
        if arguments.output == "json":
            output.print_json_line(change)
        else:
            print(_change(change), flush=True)
    return exit_codes.OK if state == "COMPLETED" else exit_codes.FAILED


def name_of(instance: dict[str, Any]) -> str:
    """What the user called it."""
    return str(instance.get("appName") or instance.get("key") or "")


def idempotency(key: str | None) -> dict[str, str]:
    """The header for a key, if there is one. Raises `Invalid`."""
    return {} if key is None else key_header(key)


def show_instance(arguments: argparse.Namespace, instance: dict[str, Any]) -> None:
    """The instance, as the user wants it."""
    if arguments.output == "json":
        output.print_json(instance)
    else:
        output.print_fields(instance)


def _change(change: dict[str, Any]) -> str:
    parts = (
        output.cell(change.get("at")),
        f"v{output.cell(change.get('version'))}",
        f"{output.cell(change.get('fromState'))} → {output.paint_state(output.cell(change['toState']))}",
        output.cell(change.get("reason")),
        output.cell(change.get("actor")),
    )
    return "  ".join(parts)


def _title(name: str) -> str:
    return "".join(f" {char}" if char.isupper() else char for char in name).upper()
