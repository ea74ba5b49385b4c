"""Job commands: submit, list, show and cancel jobs, and read their logs."""

from __future__ import annotations

import argparse
import http.client
import json
from collections.abc import Iterator
from typing import Any

from orchestrix import clock
from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import api_of, json_object, reason_of
from orchestrix.cli.commands.sagas import idempotency
from orchestrix.cli.interruptible_sleep import pause
from orchestrix.cli.saga_watch import RECONNECT_TIMEOUT_S, STREAM_IDLE_TIMEOUT_S
from orchestrix.cli.sse import ServerSentEvent, events
from orchestrix.errors import Unavailable

_PATH = "/jobs"
_FILTERS = {"state": "state", "queue": "queue", "created_by": "createdBy", "limit": "limit", "cursor": "cursor"}
_COLUMNS = ("id", "queue", "handler", "state", "attempt", "progress", "workerId", "createdBy", "createdAt", "waitsFor")
_HEADS = ("ID", "QUEUE", "HANDLER", "STATE", "ATTEMPT", "PROGRESS", "WORKER", "BY", "CREATED", "WAITS FOR")


def submit(arguments: argparse.Namespace) -> int:
    """`jobs submit`: submits one."""
    body: dict[str, Any] = {"queue": arguments.queue, "handler": arguments.handler}
    if arguments.payload is not None:
        body["payload"] = json_object(arguments.payload, "--payload")
    wished = {"timeout": arguments.timeout, "retries": arguments.retries, "createdBy": arguments.by}
    body |= {name: value for name, value in wished.items() if value is not None}
    headers = idempotency(arguments.idempotency_key)
    return _shown(arguments, api_of(arguments).send("POST", _PATH, body, headers))


def list_all(arguments: argparse.Namespace) -> int:
    """`jobs list`: one page; where there is more, its last line says how to go on."""
    page = api_of(arguments).page(_PATH, {name: getattr(arguments, flag) for flag, name in _FILTERS.items()})
    if arguments.output == "json":
        output.print_json(page)
        return exit_codes.OK
    output.print_table(_HEADS, [[item.get(name) for name in _COLUMNS] for item in page["items"]])
    if page.get("nextCursor"):
        exit_codes.warn(f"there are more: the same command with --cursor {page['nextCursor']}", "note")
    return exit_codes.OK


def show(arguments: argparse.Namespace) -> int:
    """`jobs show`: one with its attempts."""
    return _shown(arguments, api_of(arguments).document(f"{_PATH}/{arguments.id}"))


def cancel(arguments: argparse.Namespace) -> int:
    """`jobs cancel`: cancels one."""
    path = f"{_PATH}/{arguments.id}/cancel"
    return _shown(arguments, api_of(arguments).send("POST", path, {"reason": reason_of(arguments)}))


def logs(arguments: argparse.Namespace) -> int:
    """`jobs logs`: what it has logged; with `-f` until it ends, and then 1 unless it has succeeded."""
    api, path = api_of(arguments), f"{_PATH}/{arguments.id}/logs"
    if arguments.follow:
        return _follow(arguments, api, path)
    items = api.all_items(path)
    if arguments.output == "json":
        output.print_json({"items": items})
    else:
        for item in items:
            print(_line(item))
    return exit_codes.OK


def _follow(arguments: argparse.Namespace, api: ApiClient, path: str) -> int:
    state: Any = None
    for event in _followed(api, path):
        found = json.loads(event.data)
        if event.name == "end":
            state = found.get("state")
        elif arguments.output == "json":
            output.print_json_line(found)
        else:
            print(_line(found), flush=True)
    if state is None:
        state = api.document(path.removesuffix("/logs")).get("state")
    return exit_codes.OK if state == "SUCCEEDED" else exit_codes.FAILED


def _followed(api: ApiClient, path: str) -> Iterator[ServerSentEvent]:
    """Each line once, then the end, over restarts of the API. Raises `Unavailable` if that is away for too long."""
    last_id, since = "", clock.monotonic()
    while True:
        try:
            for event in _stream(api, path, last_id):
                last_id, since = event.id or last_id, clock.monotonic()
                yield event
                if event.name == "end":
                    return
            return
        except Unavailable:
            if clock.monotonic() - since > RECONNECT_TIMEOUT_S:
                raise
        pause(0.5)


def _stream(api: ApiClient, path: str, last_id: str) -> Iterator[ServerSentEvent]:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    with api.stream(f"{path}?follow=true", headers, STREAM_IDLE_TIMEOUT_S) as response:
        if response.status == 204:
            return  # there is nothing more
        try:
            yield from events(response)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{api.url} broke the stream off: {error}") from error
    raise Unavailable(f"{api.url} ended the stream")


def _line(item: dict[str, Any]) -> str:
    level = output.cell(item.get("level"))
    return f"{output.cell(item.get('at'))}  {level:<7}  {output.visible(str(item.get('message', '')))}"


def _shown(arguments: argparse.Namespace, job: dict[str, Any]) -> int:
    if arguments.output == "json":
        output.print_json(job)
    else:
        output.print_fields(job)
    return exit_codes.OK
