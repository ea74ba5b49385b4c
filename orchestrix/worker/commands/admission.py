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

    async def select_runnable(self, jobs: Sequence[CommandDelivery]) -> list[CommandDelivery]:
        """Those of `jobs` that are to be executed now. Waits while the database is unavailable; if the worker stops
        meanwhile, all are requeued."""
        if not jobs:
            return []
        began, verdicts = await self._verdicts(jobs)
        if verdicts is None:
            await self._in_flight.requeue(jobs)
            return []
        current, over = [], []
        for job, verdict in zip(jobs, verdicts, strict=True):
            job.checked_at = began
            if verdict is StateVerdict.CURRENT:
                job.older_since = None
                current.append(job)
            elif self._is_over(job, verdict, began):
                over.append(job)
        if over:
            await self._in_flight.finish(over)
        return current

    async def round(self) -> None:
        """Checks the early commands again."""
        if not self._to_check:
            await self._wake.wait(None)
        await asyncio.sleep(EARLY_RECHECK_INTERVAL_S)
        jobs = self._checked_again()
        for job in await self.select_runnable([job for job in jobs if self._in_flight.alive(job)]):
            self._run(job)

    async def requeue(self) -> None:
        """Requeues the early commands."""
        await self._in_flight.requeue(self._checked_again())

    def _checked_again(self) -> list[CommandDelivery]:
        jobs = list(self._to_check)
        self._to_check.clear()
        for job in jobs:
            if not self._in_flight.alive(job):
                self._in_flight.forget(job)
        return jobs

    async def _verdicts(self, jobs: Sequence[CommandDelivery]) -> tuple[float, list[StateVerdict] | None]:
        failures = 0
        while True:
            began = clock.monotonic()
            try:
                verdicts = await self._guard.check(jobs)
            except INFRASTRUCTURE_ERRORS as error:
                failures += 1
                await self._outage.note(KEY, error)
                if not await self._in_flight.pause(backoff(failures)):
                    return began, None
            else:
                await self._outage.over(KEY)
                return began, verdicts

    def _is_over(self, job: CommandDelivery, verdict: StateVerdict, now: float) -> bool:
        """Whether the command can be acknowledged at once."""
        if verdict is StateVerdict.NEWER:
            self._in_flight.counts.dropped += 1
            LOGGER.debug("%s dropped: its saga is already past this step", job.command.type, extra=job.log_fields)
            return True
        job.older_since = now if job.older_since is None else job.older_since
        if now - job.older_since < EARLY_TIMEOUT_S:
            self._to_check[job] = None
            self._wake.set()
            return False
        if verdict is StateVerdict.OLDER:
            self._in_flight.counts.older += 1
            LOGGER.debug("%s dropped: its saga has not reached this step", job.command.type, extra=job.log_fields)
            return True
        self._reporter.add(dead_letter_report(job.deliveries[0], "unknown-app", job))
        return False
