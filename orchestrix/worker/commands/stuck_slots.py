"""Stuck slots: finds the slots of a worker that are lost because their handlers do not end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from orchestrix import clock
from orchestrix.errors import OrchestrixError
from orchestrix.telemetry import log_events
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
        over = [
            command
            for command in busy
            if command.begun is not None and now >= command.ends + GRACE_S and command not in self.lost
        ]
        due = [command for command in over if now >= self._lookup_at.get(command, now)]
        if due and (self._lookup is None or self._lookup.done()):
            self._lookup_at = {command: at for command, at in self._lookup_at.items() if command in over}
            self._lookup = asyncio.create_task(self._ask(due), name="check of commands past their timeout")

    async def back(self, command: CommandDelivery) -> None:
        """Frees the slot: the command has ended, however late."""
        self._lookup_at.pop(command, None)
        if command not in self.lost:
            return
        del self.lost[command]
        LOGGER.warning(
            "%s ended late: its slot is free again",
            command.what,
            extra=command.log_fields(log_events.HANDLER_ENDED_LATE),
        )
        await self._outage.over(KEY)

    def stop(self) -> None:
        """Stops the checks."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def _ask(self, commands: list[CommandDelivery]) -> None:
        for command in commands:
            try:
                left, (verdict,) = await self._guard.time_left(command), await self._guard.check([command])
            except OrchestrixError:
                left, verdict = GRACE_S, StateVerdict.CURRENT
            if command.begun is None:
                continue  # it has ended meanwhile
            if left > 0:
                self._lookup_at[command] = clock.monotonic() + min(left + GRACE_S, 60.0)
            else:
                await self._abandon(command, verdict)

    async def _abandon(self, command: CommandDelivery, verdict: StateVerdict) -> None:
        self.lost[command] = None
        late = clock.monotonic() - command.ends
        left = self._slot_count - len(self.lost)
        LOGGER.error(
            "%s still runs %.0f s after its timeout: its slot is blocked until it ends; slots left: %d of %d; %s",
            command.message.type, late, left, self._slot_count, STUCK_SLOT_HINT,
            extra=command.log_fields(log_events.HANDLER_STUCK),
        )  # fmt: skip
        if verdict is not StateVerdict.CURRENT:
            await self._in_flight.finish([command])  # else the consumer timeout would close the channel in half an hour
        if self.gone:
            await self._outage.note(KEY, f"all {self._slot_count} slots are blocked: restart this worker")
