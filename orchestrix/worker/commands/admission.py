"""Command admission: what happens to a command once its saga's row has been read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import clock
from orchestrix.lifecycle import WakeSignal, backoff
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.reporter import CommandReporter, dead_letter_report
from orchestrix.worker.commands.state_guard import StateGuard, StateVerdict
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import CHANNEL_LOST, set_ignored
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS

KEY: Final = "database"
EARLY_TIMEOUT_S: Final = 2.0
"""Seconds in which a row that is behind its command may still become visible."""
EARLY_RECHECK_INTERVAL_S: Final = 0.2


class CommandAdmission:
    """Admits current commands, drops outdated ones, and checks early ones again."""

    def __init__(
        self,
        in_flight: InFlightCommands,
        guard: StateGuard,
        reporter: CommandReporter,
        outage: Backpressure,
        run: Callable[[CommandDelivery], None],
    ) -> None:
        self._in_flight = in_flight
        self._guard = guard
        self._reporter = reporter
        self._outage = outage
        self._run = run
        self._to_check: dict[CommandDelivery, None] = {}
        self._wake = WakeSignal()

    async def select_runnable(self, commands: Sequence[CommandDelivery]) -> list[CommandDelivery]:
        """Those of `commands` that are to be executed now. Waits while the database is unavailable; if the worker stops
        meanwhile, all are requeued."""
        if not commands:
            return []
        began, verdicts = await self._verdicts(commands)
        if verdicts is None:
            await self._in_flight.requeue(commands)
            return []
        current, over = [], []
        for command, verdict in zip(commands, verdicts, strict=True):
            command.checked_at = began
            if verdict is StateVerdict.CURRENT:
                command.older_since = None
                current.append(command)
            elif self._is_over(command, verdict, began):
                over.append(command)
        if over:
            await self._in_flight.finish(over)
        return current

    async def round(self) -> None:
        """Checks the early commands again."""
        if not self._to_check:
            await self._wake.wait(None)
        await asyncio.sleep(EARLY_RECHECK_INTERVAL_S)
        commands = self._checked_again()
        for command in await self.select_runnable([command for command in commands if self._in_flight.alive(command)]):
            self._run(command)

    async def requeue(self) -> None:
        """Requeues the early commands."""
        await self._in_flight.requeue(self._checked_again())

    def _checked_again(self) -> list[CommandDelivery]:
        commands = list(self._to_check)
        self._to_check.clear()
        for command in commands:
            if not self._in_flight.alive(command):
                self._in_flight.forget(command, CHANNEL_LOST)
        return commands

    async def _verdicts(self, commands: Sequence[CommandDelivery]) -> tuple[float, list[StateVerdict] | None]:
        failures = 0
        while True:
            began = clock.monotonic()
            try:
                verdicts = await self._guard.check(commands)
            except INFRASTRUCTURE_ERRORS as error:
                failures += 1
                await self._outage.note(KEY, error)
                if not await self._in_flight.pause(backoff(failures)):
                    return began, None
            else:
                await self._outage.over(KEY)
                return began, verdicts

    def _is_over(self, command: CommandDelivery, verdict: StateVerdict, now: float) -> bool:
        """Whether the command can be acknowledged at once."""
        if verdict is StateVerdict.NEWER:
            self._in_flight.counts.dropped += 1
            set_ignored(command.span, verdict.value)
            LOGGER.debug(
                "%s dropped: its saga is already past this step", command.message.type, extra=command.log_fields()
            )
            return True
        command.older_since = now if command.older_since is None else command.older_since
        if now - command.older_since < EARLY_TIMEOUT_S:
            self._to_check[command] = None
            self._wake.set()
            return False
        if verdict is StateVerdict.OLDER:
            self._in_flight.counts.older += 1
            set_ignored(command.span, verdict.value)
            LOGGER.debug(
                "%s dropped: its saga has not reached this step", command.message.type, extra=command.log_fields()
            )
            return True
        self._reporter.add(dead_letter_report(command.deliveries[0], "unknown-app", command))
        return False
