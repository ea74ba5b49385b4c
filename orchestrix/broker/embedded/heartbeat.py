"""Heartbeat timer: sends a connection's heartbeats, and gives up a silent peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrix import clock

MISSED_INTERVALS = 2


class HeartbeatTimer:
    """Sends two heartbeats per interval; after two silent intervals the peer is dead. AMQP 0-9-1, 4.2.7. Seconds."""

    def __init__(self, interval: float, beat: Callable[[], None], dead: Callable[[], None]) -> None:
        self._interval = interval
        self._beat = beat
        self._dead = dead
        self._heard_at = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.deaf = False
        self._schedule()

    def heard(self) -> None:
        self._heard_at = clock.monotonic()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._interval:
            self._timer = asyncio.get_running_loop().call_later(self._interval / 2, self._tick)

    def _tick(self) -> None:
        """While we do not read (`deaf`) the peer's silence means nothing."""
        if self.deaf:
            self.heard()
        if clock.monotonic() - self._heard_at > MISSED_INTERVALS * self._interval:
            self._dead()
            return
        self._beat()
        self._schedule()
