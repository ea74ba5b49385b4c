"""Report buffer: publishes an attempt's messages in their order until each is confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol, TypeAlias

from orchestrix import clock, crash
from orchestrix.broker.port import LinkState, Outcome, Outgoing, Published, Topology
from orchestrix.broker.published_spans import carrying, with_spans
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import WakeSignal, backoff
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import NO_SPAN, Span
from orchestrix.worker.context import LOGGER
from orchestrix.worker.jobs.messages import without_result
from orchestrix.worker.jobs.stop_signal import JobCancelled

MessageFactory: TypeAlias = Callable[[int], Outgoing]
"""Makes the message with a sequence number."""
BeginPublish: TypeAlias = Callable[[Outgoing, bool], Span]
"""Begins the span of publishing the message, for the first time or again."""

MAX_UNCONFIRMED: Final = 1000
MAX_UNCONFIRMED_BYTES: Final = 1024 * 1024
"""Upper limit of one attempt's unconfirmed messages; then `put` waits."""
BATCH_LIMIT: Final = 200
PROGRESS_BACKLOG_LIMIT: Final = 20
"""While more is unconfirmed, progress waits: older progress is replaced by newer."""
PROGRESS_INTERVAL_S: Final = 0.5
"""Seconds between two progress messages, of which only the last counts."""
POLL_INTERVAL_S: Final = 0.25


class ReportTransport(Protocol):
    """What carries reports: the broker, of which these are methods, or calls by HTTP."""

    @property
    def state(self) -> LinkState:
        """Nothing is published before it is UP."""

    @property
    def blocked(self) -> str | None:
        """Why nothing can be published now, else None."""

    async def wait_connected(self, timeout: float | None = None) -> bool:
        """Waits until UP."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """One result for each message, in order; it never raises for a message or a lost link."""

    async def declare(self, topology: Topology) -> None:
        """Declares what is missing where a message was returned. Raises `Unavailable` and `ConfigError`."""


class ReportBuffer:
    """Numbers the messages of one attempt from 1, and publishes them until all are confirmed.

    Many are in flight at once. Where one is not confirmed, it and all after it are republished, so that the last copies
    are in order; an unconfirmed message is never dropped. `last` is the number of the latest message;
    `channels_redeclared` says whether its channels were missing and were declared again.
    """

    def __init__(
        self,
        transport: ReportTransport,
        topology: Topology,
        begin_publish: BeginPublish = lambda message, again: NO_SPAN,
    ) -> None:
        self._transport, self._topology = transport, topology
        self.last = 0
        self.channels_redeclared = False
        self._waiting: deque[Outgoing] = deque()
        self._begin_publish = begin_publish
        self._tried = 0
        """How many of the first ones that wait were published before."""
        self._bytes = 0
        self._latest: MessageFactory | None = None
        self._due = 0.0
        self._closed = self._one_by_one = False
        self._wake = WakeSignal()
        self._has_room, self._empty = asyncio.Event(), asyncio.Event()

    async def put(self, make: MessageFactory) -> None:
        """Queues a message as soon as there is room. Raises `JobCancelled` after `end`."""
        while not self._closed and self._is_full:
            self._has_room.clear()
            await self._has_room.wait()
        if self._closed:
            raise JobCancelled("the job has ended")
        self._add(make)

    def show(self, make: MessageFactory) -> None:
        """Queues a message that the next one of its kind replaces, if that comes before it could be sent."""
        if self._closed:
            raise JobCancelled("the job has ended")
        self._latest = make
        if len(self._waiting) < PROGRESS_BACKLOG_LIMIT and self._due <= clock.monotonic():
            self._flush()
        self._wake.set()

    def end(self, make: MessageFactory) -> None:
        """Queues the final message."""
        self._flush()
        self._add(make)
        self._closed = True
        self._has_room.set()

    async def confirmed(self) -> None:
        """Waits until all queued messages are confirmed."""
        await self._empty.wait()

    async def run(self) -> None:
        """Publishes, until the final message is confirmed."""
        failures = 0
        while self._waiting or not self._closed:
            try:
                await self._wait_for_reports()
                await self._reachable()
                sent = await self._send(self._batch())
            except Exception:
                LOGGER.exception(
                    "the reports of a job could not be sent; retrying", extra={"event": log_events.WORKER_ERROR}
                )
                sent = False
            failures = 0 if sent else failures + 1
            if failures:
                await asyncio.sleep(backoff(failures))

    # Queued messages.

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_UNCONFIRMED or self._bytes >= MAX_UNCONFIRMED_BYTES

    def _add(self, make: MessageFactory) -> None:
        message = make(self.last + 1)
        self.last += 1
        self._waiting.append(message)
        self._bytes += len(message.body)
        self._empty.clear()
        self._wake.set()

    def _flush(self) -> None:
        if (make := self._latest) is not None:
            self._latest, self._due = None, clock.monotonic() + PROGRESS_INTERVAL_S
            self._add(make)

    async def _wait_for_reports(self) -> None:
        """Waits until there is something to send."""
        while True:
            wait = max(0.0, self._due - clock.monotonic())
            if not wait and len(self._waiting) < PROGRESS_BACKLOG_LIMIT:
                self._flush()
            if self._waiting:
                return
            await self._wake.wait(wait if self._latest is not None else None)

    def _batch(self) -> Sequence[Outgoing]:
        """The next ones; the final message only when all before it are confirmed, because no one reads what comes after
        it."""
        before = len(self._waiting) - (1 if self._closed and len(self._waiting) > 1 else 0)
        return list(islice(self._waiting, 1 if self._one_by_one else min(BATCH_LIMIT, before)))

    def _confirm(self, count: int) -> None:
        self._tried = max(0, self._tried - count)
        for _ in range(count):
            self._bytes -= len(self._waiting.popleft().body)
        self._has_room.set()
        if not self._waiting:
            self._empty.set()

    # Publishing.

    async def _reachable(self) -> None:
        while True:
            if self._transport.blocked is not None:
                await asyncio.sleep(POLL_INTERVAL_S)
            elif self._transport.state is not LinkState.UP:
                await self._transport.wait_connected(5.0)
            else:
                return

    async def _send(self, batch: Sequence[Outgoing]) -> bool:
        """Whether the whole batch is confirmed."""
        spans = [self._begin_publish(message, n < self._tried) for n, message in enumerate(batch)]
        self._tried = max(self._tried, len(batch))
        publishing = self._transport.publish(list(map(carrying, batch, spans)))
        results = await with_spans(crash.within("worker.jobs.after_publish", publishing), spans)
        crash.point("worker.jobs.after_confirm")
        good = next((n for n, one in enumerate(results) if one.outcome is not Outcome.CONFIRMED), len(batch))
        self._confirm(good)
        if good == len(batch):
            self._one_by_one = False
            return True
        await self._remove_obstacle(results[good])
        return False

    async def _remove_obstacle(self, result: Published) -> None:
        """Removes the obstacle that kept the message that is now first from being confirmed."""
        if result.outcome is Outcome.RETURNED:
            await self._declare()
        elif result.outcome is Outcome.REFUSED:
            self._replace(result.detail)
        else:
            self._one_by_one = (
                result.channel_closed
            )  # it, or one after it, is the cause: the next one is published alone

    async def _declare(self) -> None:
        self.channels_redeclared = True  # also by an incomplete declaration: some may exist
        try:
            await self._transport.declare(self._topology)
        except (ConfigError, Unavailable) as error:
            LOGGER.error(
                "a job's queue is missing and cannot be declared: %s", error, extra={"event": log_events.QUEUE_MISSING}
            )

    def _replace(self, detail: str) -> None:
        """What the broker refuses is sent without the caller's own fields; if that does not help, a result is replaced
        by a failure, so that the attempt ends, and anything else is dropped.
        """
        first = self._waiting[0]
        LOGGER.error(
            "the broker rejected a message for %s: %s",
            first.routing_key,
            detail,
            extra={"event": log_events.REPORT_REJECTED},
        )
        if first.headers or first.correlation_id:
            self._waiting[0] = replace(first, headers={}, correlation_id=None)
        elif (failure := without_result(first, detail)) is not None:
            self._waiting[0] = failure
            self._bytes += len(failure.body) - len(first.body)
        else:
            self._confirm(1)
