"""Broker status: whether the broker and the workers that a saga waits for are available."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState
from orchestrix.errors import RetryableError
from orchestrix.saga.commands import expected
from orchestrix.saga.compensation import with_undo
from orchestrix.saga.definition import Compensation, Saga
from orchestrix.saga.state import Instance

COUNT_TTL_S: Final = 1.0
"""Seconds for which lists use the last known counts of a queue."""

KNOWN_QUEUES_LIMIT: Final = 10_000
"""Queues whose last count is remembered: names come and go."""

Counts = Mapping[str, tuple[int, int]]
"""(messages, consumers) by queue, of those that are known."""


class BrokerStatus:
    """What the broker reports: its own state at once, that of each queue when it is asked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, tuple[float, tuple[int, int] | None]] = {}

    @property
    def problem(self) -> str | None:
        """Why the broker cannot be used, if it cannot."""
        if self._broker.state is not LinkState.UP:
            return self._broker.problem or f"the broker is {self._broker.state.value}"
        return self._broker.blocked

    async def counts(self, queues: Iterable[str], *, max_age_s: float = 0.0) -> Counts:
        """Of these queues, as they were at most `max_age_s` seconds ago; without those that the broker does not
        report.
        """
        found = {}
        for queue in queues:
            count = await self._count(queue, max_age_s)
            if count is not None:
                found[queue] = count
        return found

    async def empty(self, queues: Iterable[str], *, max_age_s: float = 0.0) -> set[str]:
        """Those of them that have nothing ready, or do not exist; without those of which nothing is known."""
        wanted = list(queues)
        there = await self.counts(wanted, max_age_s=max_age_s)
        if self._broker.state is not LinkState.UP:
            return set()
        missing = {queue for queue in wanted if self._known.get(queue, (0.0, (0, 0)))[1] is None}
        return missing | {queue for queue, (ready, _) in there.items() if ready == 0}

    async def _count(self, queue: str, max_age_s: float) -> tuple[int, int] | None:
        if self._broker.state is not LinkState.UP:
            return None
        at, count = self._known.get(queue, (-max_age_s, None))
        if clock.monotonic() - at < max_age_s:
            return count
        try:
            count = await self._broker.message_count(queue)
        except RetryableError:
            return None
        self._known.pop(queue, None)
        self._known[queue] = clock.monotonic(), count
        if len(self._known) > KNOWN_QUEUES_LIMIT:
            del self._known[next(iter(self._known))]
        return count


def needed(saga: Saga, instance: Instance) -> tuple[str, ...]:
    """The commands that a worker must take for it to continue: the one in flight, and the undo that follows a
    cancel.
    """
    order, progress = expected(saga, instance), instance.progress
    if order is None:
        return ()
    following = with_undo(saga, [progress.awaited, *progress.todo])[:1] if progress.awaited is not None else ()
    undos = [step.undo for name in following if (step := saga.step(name)) is not None]
    commands = [order.command, *(undo.command for undo in undos if isinstance(undo, Compensation))]
    return tuple(command for command in commands if command)
