"""Dead-letter commands: list, show, edit, redrive and drop messages that could not be handled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import api_of, json_object, keyed, reason_of
from orchestrix.errors import Invalid

_PATH = "/dead-letters"
_FILTERS = {"queue": "queue", "saga": "saga", "app": "appId", "died_of": "reason"}
_COLUMNS = ("id", "queue", "saga", "appId", "reason", "deliveries", "diedAt", "redriven", "redrivenAt")
_HEADS = ("ID", "QUEUE", "SAGA", "APP", "REASON", "DELIVERIES", "DIED", "REDRIVEN", "AT")


def list_all(arguments: argparse.Namespace) -> int:
    """`dlq list`: one page, the latest first; where there is more, its last line says how to go on."""
    query = {name: getattr(arguments, flag) for flag, name in _FILTERS.items()}
    query |= {"limit": arguments.limit, "cursor": arguments.cursor, "redriven": "true" if arguments.redriven else None}
    page = api_of(arguments).page(_PATH, query)
    if arguments.output == "json":
        output.print_json(page)
        return exit_codes.OK
    output.print_table(_HEADS, [[item.get(name) for name in _COLUMNS] for item in page["items"]])
    if page.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {page['nextCursor']}", "note")
    return exit_codes.OK


def show(arguments: argparse.Namespace) -> int:
    """`dlq show`: one with its body and its headers."""
    return _shown(arguments, api_of(arguments).document(f"{_PATH}/{arguments.id}"))


def edit(arguments: argparse.Namespace) -> int:
    """`dlq edit`: replaces its body."""
    text, flag = (arguments.body, "--body") if arguments.body is not None else (_read(arguments.file), "--file")
    body = {"body": json_object(text, flag), "reason": reason_of(arguments)}
    return _shown(arguments, _sent(arguments, "PATCH", f"/{arguments.id}", body))


def redrive(arguments: argparse.Namespace) -> int:
    """`dlq redrive`: sends one again, or all that fit; answers 1 if some of them cannot be sent."""
    chosen = {name: value for flag, name in _FILTERS.items() if (value := getattr(arguments, flag)) is not None}
    if arguments.id is not None:
        if chosen or arguments.all or arguments.dry_run:
            raise Invalid("an id names one dead letter: leave out the filters, --all and --dry-run")
        return _shown(arguments, _sent(arguments, "POST", f"/{arguments.id}/redrive", {"reason": reason_of(arguments)}))
    if not chosen and not arguments.all:
        raise Invalid("which ones? give an id, or --queue, --saga, --app or --died-of, or --all")
    body = {"filter": chosen, "reason": reason_of(arguments), "dryRun": arguments.dry_run}
    return _told(arguments, _sent(arguments, "POST", "/redrive", body))


def drop(arguments: argparse.Namespace) -> int:
    """`dlq drop`: deletes one."""
    return _shown(arguments, _sent(arguments, "DELETE", f"/{arguments.id}", {"reason": reason_of(arguments)}))


def _sent(arguments: argparse.Namespace, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with keyed(arguments) as key:
        return api_of(arguments).send(method, f"{_PATH}{path}", body, key)


def _shown(arguments: argparse.Namespace, letter: dict[str, Any]) -> int:
    if arguments.output == "json":
        output.print_json(letter)
    else:
        output.print_fields(letter)
    return exit_codes.OK


def _told(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    refused = found.get("refused") or []
    if arguments.output == "json":
        output.print_json(found)
    else:
        print(f"dead letters that fit: {output.cell(found.get('matched'))}")
        print(f"sent again: {output.cell(found.get('redriven'))}")
        if refused:
            output.print_table(("NOT SENT", "WHY"), [[one.get("id"), one.get("reason")] for one in refused])
    return exit_codes.FAILED if refused else exit_codes.OK


def _read(place: str) -> str:
    """The content of the file, or of standard input for `-`."""
    try:
        return sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise Invalid(f"{place} is not UTF-8") from wrong
    except OSError as wrong:
        raise Invalid(f"{place} cannot be read: {wrong.strerror or wrong}") from wrong
