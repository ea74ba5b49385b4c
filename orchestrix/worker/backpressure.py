"""Backpressure: pauses consumption while the worker's own infrastructure is unavailable."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Consumer
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER

REOPEN_AFTER_S: Final = 300.0
"""Seconds after which this worker's unacknowledged messages go to other workers."""


class Backpressure:
    """While anything is unavailable, the worker takes nothing new and keeps what it has.

    Each outage has a key; consumption resumes when the last one is over. After five minutes the channel is reopened,
    which requeues the commands for other workers.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._problems: set[str] = set()
        self._since = 0.0
        self._paused = False
        self._lock = asyncio.Lock()

    @property
    def current(self) -> bool:
        """Whether anything is unavailable."""
        return bool(self._problems)

    async def note(self, key: str, error: object) -> None:
        """Notes that what `key` stands for is unavailable (still or from now on) because of `error`."""
        if not self._problems:
            self._since = clock.monotonic()
            LOGGER.warning("commands paused: %s", error, extra={"event": log_events.WORK_PAUSED})
        self._problems.add(key)
        if clock.monotonic() - self._since >= REOPEN_AFTER_S:
            self._since = clock.monotonic()
            LOGGER.warning(
                "commands paused for %d s, requeueing them for other workers: %s",
                REOPEN_AFTER_S,
                error,
                extra={"event": log_events.WORK_PAUSED},
            )
            async with self._lock:
                await self._consumer.reopen()
                self._paused = False
        await self._follow()

    async def over(self, key: str) -> None:
        """Notes that what `key` stands for works, or is no longer needed."""
        if key in self._problems:
            self._problems.discard(key)
            if not self._problems:
                LOGGER.warning("commands resumed", extra={"event": log_events.WORK_RESUMED})
            await self._follow()

    async def stop_receiving(self) -> None:
        """Takes nothing new from now on, because the worker stops."""
        self._problems.add("stop")
        await self._follow()

    async def _follow(self) -> None:
        async with self._lock:
            if self.current and not self._paused:
                self._paused = True
                await self._consumer.pause()
            elif self._paused and not self.current:
                self._paused = False
                await self._consumer.resume()
