"""Job dead letters: collects dead letters about jobs, and of shard members, whose queues come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import dead_letters_of
from orchestrix.dead_letters.collector import DeadLetterCollector
from orchestrix.lifecycle import Loop, WakeSignal

QUEUE_POLL_INTERVAL_S: Final = 10.0
"""Seconds between two polls for new queues."""


class JobDeadLetters:
    """Collects the dead letters of all existing queues beside those of sagas.

    `queues` returns those in which such messages can die, or raises `Unavailable`. `make` makes the collector of
    their dead letters; for new ones another takes its place.
    """

    def __init__(
        self,
        broker: Broker,
        queues: Callable[[], Awaitable[set[str]]],
        make: Callable[[Sequence[str]], DeadLetterCollector],
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._make = make
        self._collector: DeadLetterCollector | None = None
        self._known: set[str] = set()
        self._wake = WakeSignal()
        self._loop = Loop("job dead letters", self._round)

    async def start(self) -> None:
        """Begins to poll for queues."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged is requeued."""
        await self._loop.stop()
        if self._collector is not None:
            await self._collector.stop()

    def problem(self) -> str | None:
        """How many dead letters cannot be stored; None if all can."""
        return self._collector.problem() if self._collector is not None else None

    async def _round(self) -> None:
        await self._broker.wait_connected()
        filters = {dead_letters_of(queue) for queue in await self._queues()} - self._known
        there = {queue for queue in sorted(filters) if await self._broker.message_count(queue) is not None}
        if there:
            self._known |= there
            if self._collector is not None:
                await self._collector.stop()
            self._collector = self._make(sorted(self._known))
            await self._collector.start()
        await self._wake.wait(QUEUE_POLL_INTERVAL_S)
