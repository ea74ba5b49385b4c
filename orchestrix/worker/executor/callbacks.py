"""Callbacks: carries the reports of an attempt by HTTP to the nodes, in their order, and takes their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from orchestrix.broker.port import LinkState, Outcome, Outgoing, Published, Topology
from orchestrix.errors import Unavailable
from orchestrix.http_client import HttpClient, HttpRequest, HttpResponse
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.executor.run_call import LOGS_PATH, RunCall

MAX_LINES: Final = 500
MAX_BODY_BYTES: Final = 256 * 1024
"""The largest request that a node takes."""
REPEAT_EVERY: Final = 10
"""Failures in a row after which they are logged again."""
UNWANTED: Final = (400, 413, 415, 422)
"""The node cannot read this very report: sending it again cannot help."""
NOT_OURS: Final = (401, 403, 404, 410)
"""The node does not know the attempt, or not as this executor's."""


class Callbacks:
    """The reports of one attempt go to the callback that answered last, then to the others, each with `timeout_s`
    seconds.

    `on_cancel` is called with the reason where an answer says that the attempt must stop, or where no callback knows
    it. It is what `ReportBuffer` publishes by, so nothing that was not confirmed is lost.
    """

    blocked: Final = None
    state: Final = LinkState.UP

    def __init__(self, client: HttpClient, call: RunCall, timeout_s: float, on_cancel: Callable[[str], None]) -> None:
        self._client, self._urls, self._timeout_s = client, list(call.callbacks), timeout_s
        self._headers = {"Authorization": f"Bearer {call.token}", "Content-Type": "application/json"}
        self._name = f"job {call.dispatch.handler}, attempt {call.dispatch.history_id}"
        self._on_cancel = on_cancel
        self._failed = 0

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """One result for each, in their order; after one that is not confirmed nothing is sent."""
        results: list[Published] = []
        for batch in _batches(messages):
            one = await self._post(batch)
            results += [one] * len(batch)
            if one.outcome is not Outcome.CONFIRMED:
                break
        return results + [Published(Outcome.UNKNOWN)] * (len(messages) - len(results))

    async def wait_connected(self, timeout: float | None = None) -> bool:
        """There is nothing to wait for: each request connects by itself."""
        return True

    async def declare(self, topology: Topology) -> None:
        """The nodes declare the job's queues."""

    async def _post(self, batch: Sequence[Outgoing]) -> Published:
        """Published to the first callback that takes it."""
        path = batch[0].routing_key
        body = batch[0].body if path != LOGS_PATH else b"[" + b",".join(one.body for one in batch) + b"]"
        headers = {**self._headers, **{name: str(value) for name, value in batch[0].headers.items()}}
        failures: list[str] = []
        statuses: set[int] = set()
        for url in list(self._urls):
            try:
                answer = await self._client.send(HttpRequest("POST", url + path, body, headers), self._timeout_s)
            except Unavailable as error:
                failures.append(f"{url}: {error}")
                statuses.add(0)
                continue
            if 200 <= answer.status < 300:
                self._prefer(url)
                self._taken(answer)
                return Published(Outcome.CONFIRMED)
            if answer.status in UNWANTED:
                return Published(Outcome.REFUSED, f"{url} answered {answer.status}: {answer.body[:300]!r}")
            failures.append(f"{url}: {answer.status}")
            statuses.add(answer.status)
        if statuses <= set(NOT_OURS):
            self._on_cancel(f"no node knows the attempt ({'; '.join(failures)})")
            return Published(Outcome.CONFIRMED)
        self._log(failures)
        return Published(Outcome.UNKNOWN, "; ".join(failures))

    def _prefer(self, url: str) -> None:
        place = self._urls.index(url)
        self._urls = self._urls[place:] + self._urls[:place]

    def _taken(self, answer: HttpResponse) -> None:
        if self._failed:
            LOGGER.warning(
                "%s: reports are taken again after %s",
                self._name,
                counted(self._failed, "failure"),
                extra={"event": log_events.EXECUTOR_REPORTS},
            )
            self._failed = 0
        try:
            fields = json.loads(answer.body or b"{}")
        except (ValueError, RecursionError):
            return
        if isinstance(fields, dict) and (reason := fields.get("cancel")) is not None:
            self._on_cancel(str(reason)[:1000] or "it was cancelled")

    def _log(self, failures: Sequence[str]) -> None:
        self._failed += 1
        if self._failed == 1 or self._failed % REPEAT_EVERY == 0:
            LOGGER.warning(
                "%s: no node takes its reports, retrying: %s",
                self._name,
                "; ".join(failures),
                extra={"event": log_events.EXECUTOR_REPORTS},
            )


def _batches(messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """Each status alone; the log lines in between together, as far as a node takes them in one request."""
    batch: list[Outgoing] = []
    size = 0
    for one in messages:
        line = one.routing_key == LOGS_PATH
        if batch and (not line or len(batch) == MAX_LINES or size + len(one.body) + 2 > MAX_BODY_BYTES):
            yield batch
            batch, size = [], 0
        if not line:
            yield [one]
            continue
        batch.append(one)
        size += len(one.body) + 2
    if batch:
        yield batch
