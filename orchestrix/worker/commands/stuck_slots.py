"""Stuck slots: finds the slots of a worker that are lost because their handlers do not end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from orchestrix import clock
from orchestrix.errors import OrchestrixError
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.state_guard import StateGuard, StateVerdict
from orchestrix.worker.context import LOGGER

KEY: Final = "places"
GRACE_S: Final = 10.0
"""Seconds that a handler may run beyond its time before its slot counts as lost."""
STUCK_SLOT_HINT: Final = (
    "a thread, or code that ignores its cancellation, cannot be stopped: give its calls timeouts, check the "
    "context for cancellation, or write an async def; restart this worker to free the slot"
)


class StuckSlots:
    """The lost slots: when no other slot is left, the worker takes nothing more and logs that."""

    def __init__(self, in_flight: InFlightCommands, guard: StateGuard, outage: Backpressure, slots: int) -> None:
        self._in_flight, self._guard, self._outage, self._slot_count = in_flight, guard, outage, slots
        self.lost: dict[CommandDelivery, None] = {}
        self._lookup_at: dict[CommandDelivery, float] = {}
        self._lookup: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        """Whether no slot is left."""
        return len(self.lost) >= self._slot_count

    def observe(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Checks for those whose time is over whether their sagas have granted more."""
        over = [job for job in busy if job.begun is not None and now >= job.ends + GRACE_S and job not in self.lost]
        due = [job for job in over if now >= self._lookup_at.get(job, now)]
        if due and (self._lookup is None or self._lookup.done()):
            self._lookup_at = {job: at for job, at in self._lookup_at.items() if job in over}
            self._lookup = asyncio.create_task(self._ask(due), name="check of overdue commands")

    async def back(self, job: CommandDelivery) -> None:
        """Frees the slot: the command has ended, however late."""
        self._lookup_at.pop(job, None)
        if job not in self.lost:
            return
        del self.lost[job]
        LOGGER.warning("%s ended late: its slot is free again", job.what, extra=job.log_fields)
        await self._outage.over(KEY)

    def stop(self) -> None:
        """Stops the checks."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def _ask(self, jobs: list[CommandDelivery]) -> None:
        for job in jobs:
            try:
                left, (verdict,) = await self._guard.time_left(job), await self._guard.check([job])
            except OrchestrixError:
                left, verdict = GRACE_S, StateVerdict.CURRENT
            if job.begun is None:
                continue  # it has ended meanwhile
            if left > 0:
                self._lookup_at[job] = clock.monotonic() + min(left + GRACE_S, 60.0)
            else:
                await self._abandon(job, verdict)

    async def _abandon(self, job: CommandDelivery, verdict: StateVerdict) -> None:
        self.lost[job] = None
        late = clock.monotonic() - job.ends
        left = self._slot_count - len(self.lost)
        LOGGER.error(
            "%s still runs %.0f s after its timeout: its slot is blocked until it ends; slots left: %d of %d; %s",
            job.command.type, late, left, self._slot_count, STUCK_SLOT_HINT, extra=job.log_fields,
        )  # fmt: skip
        if verdict is not StateVerdict.CURRENT:
            await self._in_flight.finish([job])  # else the consumer timeout would close the channel in half an hour
        if self.gone:
            await self._outage.note(KEY, f"all {self._slot_count} slots are blocked: restart this worker")
