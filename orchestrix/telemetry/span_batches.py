"""Span batches: passes ended spans to an exporter in a thread of its own, without ever making their process wait.

In place of the SDK's `BatchSpanProcessor`, whose end waits for the exporter's retries, which starts a thread in each
forked process, and which does not say how many spans it has lost.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY as SUPPRESS_INSTRUMENTATION
from opentelemetry.context import attach, set_value
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from orchestrix import clock, fork_safety
from orchestrix.telemetry import tracing
from orchestrix.telemetry.log_throttle import LogThrottle

log = logging.getLogger("orchestrix.telemetry")

LOG_INTERVAL_S: Final = 60.0


class Exporter(Protocol):
    """Takes spans away; called in one thread."""

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether they have been taken. May wait."""

    def close(self) -> None:
        """Nothing follows. A `send` that waits in another thread ends soon."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When spans are sent: after `delay_s` seconds, or as soon as there are `batch`; more than `queue` are dropped."""

    delay_s: float = 5.0
    batch: int = 512
    queue: int = 2048

    @staticmethod
    def of_environment() -> BatchLimits:
        """By the SDK's own variables; a value that is no positive whole number counts as not given."""
        usual = BatchLimits()
        queue = positive("OTEL_BSP_MAX_QUEUE_SIZE", usual.queue)
        batch = min(queue, positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual.batch))
        return BatchLimits(positive("OTEL_BSP_SCHEDULE_DELAY", round(usual.delay_s * 1000)) / 1000, batch, queue)


class SpanBatches(SpanProcessor):
    """Sends spans by `exporter`. What does not fit into its queue, or is not taken, is lost and counted."""

    def __init__(self, exporter: Exporter, limits: BatchLimits) -> None:
        self._exporter, self._limits = exporter, limits
        self._queue: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._stopping = self._abandoned = False
        self._sending = 0
        self._flushes: deque[threading.Event] = deque()
        self._throttle = LogThrottle(LOG_INTERVAL_S)
        self._forget = fork_safety.on_fork(self._in_child)
        self.lost = 0
        """Spans that have not reached the exporter's other side."""
        self._thread = threading.Thread(target=self._run, name="orchestrix-spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a span that is kept; never waits."""
        if self._stopping or span.context is None or not span.context.trace_flags.sampled:
            return
        if len(self._queue) >= self._limits.queue:
            self._lose(1, "they end faster than they are taken")
            return
        self._queue.append(span)
        if len(self._queue) >= self._limits.batch and not self._wake.is_set():
            self._wake.set()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Sends what has ended so far, waiting for that; whether it was in time."""
        if self._stopping:
            return False
        flushed = threading.Event()
        self._flushes.append(flushed)
        self._wake.set()
        return flushed.wait(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Ends like `stop` within the 30 s of the SDK."""
        if not self._abandoned:
            self.begin_stop()
            self.stopped(30.0)

    def begin_stop(self) -> None:
        """Takes no more spans, and sends the rest."""
        self._stopping = True
        self._forget()
        self._wake.set()

    def stopped(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` seconds for the rest to be sent; what is left then is lost. Whether none was."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._abandoned = True
            self.lost += len(self._queue) + self._sending
            self._exporter.close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        attach(set_value(SUPPRESS_INSTRUMENTATION, True))  # the sending is no part of any trace
        while not self._stopping:
            self._wake.wait(self._limits.delay_s)
            self._wake.clear()
            self._export_all()
        self._export_all()
        if not self._abandoned:
            self._exporter.close()

    def _export_all(self) -> None:
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        while self._queue and not self._abandoned:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._limits.batch))]
            self._send(batch)
        for flushed in flushes:
            flushed.set()

    def _send(self, batch: Sequence[ReadableSpan]) -> None:
        self._sending = len(batch)
        try:
            why = "" if self._exporter.send(batch) else "they were not taken"
        except Exception as error:  # whatever an exporter raises is no reason to send no more
            why = f"{type(error).__name__}: {error}"
        self._sending = 0
        if why and not self._abandoned:
            self._lose(len(batch), why)

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        if self._throttle.due(why) is not None:
            log.warning("spans are lost, %d so far: %s", self.lost, why)

    def _in_child(self) -> None:
        """In a forked process there is no thread, and what is queued is its parent's."""
        tracing.install(None)
        self._stopping = self._abandoned = True
        self._queue = deque()


def positive(name: str, usual: int) -> int:
    """The number in that variable of the environment; `usual` without one that is a positive whole number."""
    try:
        return max(0, int(os.environ.get(name, ""))) or usual
    except ValueError:
        return usual


def stop_all(processors: Sequence[SpanBatches], timeout_s: float) -> int:
    """Ends all of them within `timeout_s` seconds; how many spans have been lost since their begin."""
    end = clock.monotonic() + timeout_s
    for one in processors:
        one.begin_stop()
    for one in processors:
        one.stopped(max(0.0, end - clock.monotonic()))
    return sum(one.lost for one in processors)
