"""Consumer presence: since when the broker has taken messages, and each command queue has had a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState
from orchestrix.broker.probe import accepts_messages
from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.telemetry.metrics.catalogue import COMMAND_CONSUMERS, COMMAND_MESSAGES
from orchestrix.telemetry.metrics.instruments import Values, gauge

CHECK_INTERVAL_S: Final = 1.0
"""Seconds for which the result of a check is used, and between two checks while something is amiss."""
IDLE_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two checks while nothing is."""
CONCURRENT_CHECKS: Final = 6
"""Queues that are checked concurrently, each on a channel of its own: brokers allow few."""
ANSWER_PATH: Final = ""
"""The key of the answer path among the queues; no queue has that name."""


class ConsumerPresence:
    """Checks now and then, so that a deadline knows for how long no worker could have read a command, or answered it.

    A queue that could not be checked counts as one without consumer for deadlines, and is not in the metrics. Nothing
    is checked without a broker: then no time passes for a step anyhow. `now` is the database's time.
    """

    def __init__(self, broker: Broker, commands: Callable[[], Iterable[str]], now: Callable[[], datetime]) -> None:
        self._broker = broker
        self._commands = commands
        self._now = now
        self._without: set[str] = set()
        self._since: dict[str, datetime] = {}
        self._waiting: dict[str, datetime] = {}
        self._messages: dict[str, int] = {}
        self._consumers: dict[str, int] = {}
        self._lost_at: dict[str, float] = {}
        self._known: set[str] = set()
        self.checked = WakeSignal()
        """Set after each check."""
        self._refreshed_at: float | None = None
        self._link = 0
        self._refresh_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(CONCURRENT_CHECKS)
        self._wake = WakeSignal()
        self._unwatch: list[Callable[[], None]] = []
        self._loop = Loop("consumer check", self._round)
        broker.on_up(self._link_up)

    async def start(self) -> None:
        """Begins to check."""
        watching = (gauge(COMMAND_CONSUMERS).watch(self._consumer_counts), gauge(COMMAND_MESSAGES).watch(self._total))
        self._unwatch = [*self._unwatch, *watching]
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what it has found stays."""
        await self._loop.stop()
        while self._unwatch:
            self._unwatch.pop()()

    async def refresh(self) -> None:
        """Checks, unless that was done a moment ago."""
        async with self._refresh_lock:
            if self._refreshed_at is not None and clock.monotonic() - self._refreshed_at < CHECK_INTERVAL_S:
                return
            link = self._link
            commands = sorted(self._commands())
            heard = await asyncio.gather(*map(self._count, commands))
            counted = {command: count for command, count in zip(commands, heard, strict=True) if count is not None}
            for command in commands:
                messages, consumers = counted.get(command, (0, 0))
                self._note_consumers(command, consumers > 0)
                if messages:
                    self._waiting[command] = self._now()
            # As a whole: those of queues that no saga has any more are gone, and a scrape sees all of one check. The
            # metrics have no value of a queue that could not be checked: 0 consumers would be an alert.
            self._messages = {command: messages for command, (messages, _) in counted.items()}
            self._consumers = {command: consumers for command, (_, consumers) in counted.items()}
            self._note_consumers(
                ANSWER_PATH, await accepts_messages(self._broker)
            )  # last, for the others may take seconds
            if link == self._link:
                self._refreshed_at = clock.monotonic()
            self.checked.set()

    def since(self, command: str, at_least: datetime) -> datetime | None:
        """Since when the queue of `command` has had a consumer, `at_least` or later; None while it has none."""
        return None if command in self._without else max(at_least, self._since.get(command, at_least))

    def is_silent(self, command: str, seconds: float) -> bool | None:
        """Whether the queue of `command` has had no consumer for so many seconds; None while that is not known."""
        if command not in self._known:
            return None
        if command not in self._without:
            return False
        lost_at = self._lost_at.get(command)
        return True if lost_at is not None and clock.monotonic() - lost_at >= seconds else None

    def waiting_at(self, command: str) -> datetime | None:
        """When the queue of `command` last had messages that no consumer had taken, which is now where the last check
        found some; None if it never did."""
        return self._now() if self.messages(command) else self._waiting.get(command)

    def messages(self, command: str) -> int:
        """How many messages the queue of `command` had at the last check; 0 where it could not be checked."""
        return self._messages.get(command, 0)

    def answers_since(self, at_least: datetime) -> datetime | None:
        """Since when the broker has taken messages, `at_least` or later; None while it takes none."""
        if self._broker.blocked is not None:  # as it has said since the last check
            self._without.add(ANSWER_PATH)
        return self.since(ANSWER_PATH, at_least)

    def _note_consumers(self, command: str, consumed: bool) -> None:
        self._known.add(command)
        if not consumed:
            self._without.add(command)
            self._lost_at.setdefault(command, clock.monotonic())
        elif command in self._without:
            self._without.remove(command)
            self._lost_at.pop(command, None)
            self._since[command] = self._now()

    def _consumer_counts(self) -> Values:
        up = self._broker.state is LinkState.UP
        return {(command,): count for command, count in self._consumers.items()} if up else {}

    def _total(self) -> Values:
        return {(): sum(self._messages.values())} if self._broker.state is LinkState.UP else {}

    async def _count(self, command: str) -> tuple[int, int] | None:
        """(messages, consumers), zero of both where there is no such queue; None where it cannot be checked."""
        try:
            async with self._slots:
                return await self._broker.message_count(command) or (0, 0)
        except RetryableError:
            return None

    def _link_up(self, generation: int) -> None:
        self._link, self._refreshed_at = generation, None
        self._without.clear()  # what was before is the outage's
        self._lost_at.clear()
        self._known.clear()
        self._wake.set()

    async def _round(self) -> None:
        if self._broker.state is LinkState.UP:
            await self.refresh()
        await self._wake.wait(CHECK_INTERVAL_S if self._without else IDLE_CHECK_INTERVAL_S)
