"""Job dead letters: collects dead letters about jobs, whose queues come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import dead_letters_of
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow

QUEUE_POLL_INTERVAL_S: Final = 10.0
"""Seconds between two polls for new queues."""


class DeadDispatchPort(Protocol):
    """What happens to jobs whose dispatches do not arrive."""

    async def queues(self) -> set[str]:
        """The queues in which messages about jobs can die. Raises `Unavailable`."""

    async def died(self, tx: Transaction, letters: Sequence[tuple[DeadLetter, bytes]]) -> None:
        """These are stored now, each with its whole body: the consequences are part of the transaction."""

    async def refused(self, tx: Transaction, row: OutboxRow, detail: str) -> bool:
        """The broker refuses that row for good; False for one that is not about jobs, which is left as it is."""


class QueueCollector(Protocol):
    """Collects the dead letters of some queues."""

    async def start(self) -> None:
        """Begins."""

    async def stop(self) -> None:
        """Stops; what is unacknowledged is redelivered."""

    def trouble(self) -> str | None:
        """What cannot be stored."""


class JobDeadLetters:
    """Collects the dead letters of all existing job queues.

    `make` makes the collector of these queues; for new ones another takes its place.
    """

    def __init__(
        self, broker: Broker, orders: DeadDispatchPort, make: Callable[[Sequence[str]], QueueCollector]
    ) -> None:
        self._broker = broker
        self._orders = orders
        self._make = make
        self._mover: QueueCollector | None = None
        self._known: set[str] = set()
        self._wake = WakeSignal()
        self._loop = Loop("job dead letters", self._round)

    async def start(self) -> None:
        """Begins to poll for queues."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged is requeued."""
        await self._loop.stop()
        if self._mover is not None:
            await self._mover.stop()

    def trouble(self) -> str | None:
        """How many dead letters cannot be stored; None if all can."""
        return self._mover.trouble() if self._mover is not None else None

    async def _round(self) -> None:
        await self._broker.wait_up()
        wanted = {dead_letters_of(queue) for queue in await self._orders.queues()} - self._known
        there = {queue for queue in sorted(wanted) if await self._broker.message_count(queue) is not None}
        if there:
            self._known |= there
            if self._mover is not None:
                await self._mover.stop()
            self._mover = self._make(sorted(self._known))
            await self._mover.start()
        await self._wake.wait(QUEUE_POLL_INTERVAL_S)
