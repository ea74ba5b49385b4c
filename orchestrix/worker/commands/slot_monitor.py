"""Slot monitor: shows the running commands to its observers five times a second, and sleeps while nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from orchestrix import clock
from orchestrix.broker.port import Consumer
from orchestrix.lifecycle import WakeSignal
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.redelivery.policy import TRUSTED_AFTER_S

MONITOR_INTERVAL_S: Final = 0.2


class SlotObserver(Protocol):
    """An observer of the running commands."""

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """`busy` are the running commands, `now` is of `clock.monotonic()`. Must not block."""


class SlotMonitor:
    """Shows the running commands to each of `observers`, one after the other; then `rebalance` may requeue some."""

    def __init__(
        self,
        busy: Callable[[], Sequence[CommandDelivery]],
        observers: Sequence[SlotObserver],
        rebalance: Callable[[float], Awaitable[None]],
    ) -> None:
        self._busy, self._observers, self._rebalance = busy, observers, rebalance
        self._wake = WakeSignal()

    def wake(self) -> None:
        """Notifies it that a command has started."""
        self._wake.set()

    async def round(self) -> None:
        """One check."""
        if not self._busy():
            await self._wake.wait(None)
        await asyncio.sleep(MONITOR_INTERVAL_S)
        busy, now = self._busy(), clock.monotonic()
        for one in self._observers:
            one.observe(busy, now)
        await self._rebalance(now)


class PrefetchGrowth:
    """Raises the prefetch where the commands in flight have run for two seconds without killing the process.

    A command finished at its first delivery raises it at once; a redelivered one does not: it may have killed its last
    worker, and every other command in flight then counts a worker death.
    """

    def __init__(self, consumer: Consumer, in_flight: InFlightCommands) -> None:
        self._consumer, self._in_flight = consumer, in_flight
        self._last = float("-inf")
        self._retried, self._since = 0, float("inf")

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Grows by one factor every two seconds, as long as there is a reason."""
        if self._in_flight.retried > self._retried:
            self._since = min(self._since, now)
        if now - self._last < TRUSTED_AFTER_S:
            return
        working = any(command.begun is not None and now - command.begun >= TRUSTED_AFTER_S for command in busy)
        if working or now - self._since >= TRUSTED_AFTER_S:
            self._last, self._retried, self._since = now, self._in_flight.retried, float("inf")
            self._consumer.grow()
