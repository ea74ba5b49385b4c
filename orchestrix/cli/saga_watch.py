"""Saga watch: follows a saga until it ends, over restarts of the API too."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from orchestrix import clock
from orchestrix.cli import output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.interruptible_sleep import pause
from orchestrix.cli.sse import ServerSentEvent, events
from orchestrix.errors import Unavailable

ENDED = frozenset({"COMPLETED", "FAILED"})
UNDO_FAILED = "COMPENSATION_FAILED"
_RETRY = re.compile(r"retry \d+\b")
"""The reason of a change that a failed try made; that of a person's retry has no number."""
LONG_POLL_S = 20
"""Seconds that the server may hold one long-poll."""
STREAM_IDLE_TIMEOUT_S = 45.0
"""Seconds without a byte, three keep-alives long, after which a stream counts as dead."""
RECONNECT_TIMEOUT_S = 60.0
"""Seconds that the API may be away before `watch` gives up."""


class ProgressPrinter:
    """Prints each new state once, with the time since the start."""

    def __init__(self, began: str) -> None:
        self._began = datetime.fromisoformat(began)
        self._version = 0

    def show(self, changes: list[dict[str, Any]]) -> None:
        """Prints those of the changes that are new."""
        for change in changes:
            if change["version"] > self._version:
                self._version = change["version"]
                print(self._line(change), flush=True)

    def _line(self, change: dict[str, Any]) -> str:
        failed_try = change.get("fromState") == change["toState"] and _RETRY.match(str(change.get("reason")))
        good = change["toState"] not in ("FAILED", "COMPENSATION_FAILED", "COMPENSATING") and not failed_try
        passed = (datetime.fromisoformat(change["at"]) - self._began).total_seconds()
        state = output.paint_state(f"{output.cell(change['toState']):<18}")
        return f"  {output.mark(good)} {state} {passed:7.2f}s  {output.cell(change.get('reason'))}"


def until_end(
    api: ApiClient, path: str, instance: dict[str, Any], seconds: float, progress: ProgressPrinter | None
) -> dict[str, Any]:
    """The instance when it has ended or an undo of it has failed, or as it is after `seconds`.

    Raises `Unavailable` only if the API is away when the time is over.
    """
    deadline = clock.monotonic() + seconds
    while True:
        try:
            if progress is not None:
                progress.show(api.all_items(f"{path}/history"))
            left = deadline - clock.monotonic()
            if instance["state"] in {*ENDED, UNDO_FAILED} or left <= 0:
                return instance
            wait = max(1, min(LONG_POLL_S, round(left)))
            query = {"wait": f"{wait}s", "sinceVersion": instance["version"]}
            instance = api.instance(path, query, timeout_s=wait)
        except Unavailable:
            left = deadline - clock.monotonic()
            if left <= 0:
                raise
            pause(min(0.5, left))


def watched(api: ApiClient, path: str) -> Iterator[dict[str, Any]]:
    """Every change of the instance from the first on, each once, until it has ended.

    Raises `NotFound`, and `Unavailable` if the API is away for `RECONNECT_TIMEOUT_S` seconds.
    """
    version = 0
    error: float | None = None
    while True:
        try:
            for change in _known_and_coming(api, path, version):
                error = None
                version = change["version"]
                yield change
                if change["toState"] in ENDED:
                    return
        except Unavailable:
            error = error or clock.monotonic()
            if version == 0 or clock.monotonic() - error > RECONNECT_TIMEOUT_S:
                raise
        pause(0.5)


def _known_and_coming(api: ApiClient, path: str, version: int) -> Iterator[dict[str, Any]]:
    """What the history has beyond `version`, then what the stream sends, until it is cut off."""
    for change in api.all_items(f"{path}/history"):
        if change["version"] > version:
            version = change["version"]
            yield change
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(version)}
    with api.stream(f"{path}/events", headers, STREAM_IDLE_TIMEOUT_S) as response:
        try:
            for event in events(response):
                change = _change_of(event)
                if change is not None and change["version"] > version:
                    version = change["version"]
                    yield change
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{api.url} broke the stream off: {error}") from error


def _change_of(event: ServerSentEvent) -> dict[str, Any] | None:
    """The row of history that the event brings; None for any other kind of event."""
    try:
        found = json.loads(event.data)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(found, dict) and isinstance(found.get("version"), int) and isinstance(found.get("toState"), str)
    return found if fits else None
