"""Job commands: submit one and wait for its end, list them, and read or follow a log."""

from __future__ import annotations

import argparse
import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from orchestrix import clock
from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import answer, api_of
from orchestrix.cli.display.views import shown
from orchestrix.cli.instance_names import APP, id_of, path_of, quoted
from orchestrix.cli.interruptible_sleep import pause
from orchestrix.cli.saga_watch import RECONNECT_TIMEOUT_S, STREAM_IDLE_TIMEOUT_S
from orchestrix.cli.sse import ServerSentEvent, events
from orchestrix.cli.syntax.parsing import uuid
from orchestrix.errors import Invalid, Unavailable

_PATH = "/jobs"
_ROUTING = ("routing", "key", "address", "end", "deadline")
ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"})
POLL_INTERVAL_S = 0.5


def submit(arguments: argparse.Namespace) -> int:
    """`jobs submit`; with `--wait` or `--follow` answers 1 if it did not succeed, 6 if it has not ended."""
    refuse_unfit(arguments)
    job = answer(arguments)
    if arguments.wait is None and not arguments.follow:
        return shown(arguments, job)
    api, path = api_of(arguments), f"{_PATH}/{job['id']}"
    if arguments.follow:
        return _follow(arguments, api, f"{path}/logs")
    ends = clock.monotonic() + arguments.wait
    while job["state"] not in ENDED and clock.monotonic() < ends:
        pause(POLL_INTERVAL_S)
        job = api.document(path)
    shown(arguments, job)
    if job["state"] in ENDED:
        return exit_codes.OK if job["state"] == "SUCCEEDED" else exit_codes.FAILED
    texts = (
        f"`orchestrix jobs logs -f {job['id']}` follows it, `orchestrix jobs show {job['id']}` says what it waits for"
    )
    exit_codes.warn(f"still {job['state']} after {arguments.wait:g} s: {texts}", "error")
    return exit_codes.NOT_ENDED


def refuse_unfit(arguments: argparse.Namespace) -> None:
    """Raises `Invalid` for options of a job's queue or group that do not go together."""
    routing = [f"--{name}" for name in _ROUTING if getattr(arguments, name, None) is not None]
    if arguments.group is None:
        if routing:
            are = "is" if len(routing) == 1 else "are"
            raise Invalid(f"{' and '.join(routing)} {are} for executors: name their app with --group")
        return
    if arguments.queue is not None:
        given = f"{arguments.handler} {arguments.queue}"
        raise Invalid(f"--group takes the place of QUEUE: give a HANDLER alone, not {given}")
    from orchestrix.saga.job_targets import BroadcastEnd, Routing, Strategy

    end = None if arguments.end is None else BroadcastEnd(arguments.end)
    strategy = Strategy(arguments.routing or Strategy.ROUND_ROBIN)
    for field, what in Routing(strategy, arguments.key, arguments.address, end).faults():
        told = what.replace(" strategy ", " --routing ").replace(" write ", " use --routing ")
        raise Invalid(f"--{field} {told}")
    if getattr(arguments, "deadline", None) is not None and strategy is not Strategy.SHARDING_BROADCAST:
        raise Invalid("--deadline is for --routing SHARDING_BROADCAST: leave it out, or limit an attempt by --timeout")


def list_all(arguments: argparse.Namespace) -> int:
    """`jobs list`: one page. A schedule and an instance may be named by their names."""
    api = api_of(arguments)
    if arguments.schedule is not None and not _is_uuid(arguments.schedule):
        arguments.schedule = api.document(f"/schedules/{quoted(arguments.schedule, 'name')}")["id"]
    if arguments.saga_id is not None:
        arguments.saga_id = id_of(arguments.saga or APP, arguments.saga_id, api)
    return shown(arguments, answer(arguments))


def _is_uuid(text: str) -> bool:
    """So that the jobs of a schedule that was deleted can still be listed."""
    with suppress(argparse.ArgumentTypeError):
        return bool(uuid(text))
    return False


def logs(arguments: argparse.Namespace) -> int:
    """`jobs logs`: what it has logged; with `-f` until it ends, and then 1 unless it has succeeded."""
    api, path = api_of(arguments), path_of(arguments, "/jobs/{id}/logs")
    if arguments.follow:
        return _follow(arguments, api, path)
    items = api.all_items(path)
    if arguments.output == "json":
        output.print_json({"items": items})
    else:
        for item in items:
            print(_line(item))
    if not items:
        _note_logs_of_parts(api.document(path.removesuffix("/logs")))
    return exit_codes.OK


def _note_logs_of_parts(job: dict[str, Any]) -> None:
    """That a broadcast has no log of its own."""
    if (job.get("routing") or {}).get("strategy") == "SHARDING_BROADCAST":
        exit_codes.warn(f"each part of a broadcast has a log: `orchestrix jobs list --parent {job['id']}`", "note")


def _follow(arguments: argparse.Namespace, api: ApiClient, path: str) -> int:
    state: Any = None
    lines = 0
    for event in _followed(api, path):
        found = json.loads(event.data)
        if event.name == "end":
            state = found.get("state")
            continue
        lines += 1
        if arguments.output == "json":
            output.print_json_line(found)
        else:
            print(_line(found), flush=True)
    if state is None or not lines:
        job = api.document(path.removesuffix("/logs"))
        state = job.get("state")
        _note_logs_of_parts(job)
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
