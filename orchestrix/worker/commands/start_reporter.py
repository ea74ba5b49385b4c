"""Began: tells the orchestrator when the work of a command has begun, where it cannot know that by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from orchestrix import clock
from orchestrix.worker.commands import events
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.reporter import CommandReport, CommandReporter

REPORT_AFTER_MIN_S: Final = 0.2
"""Work that is done sooner is never told of."""
REPORT_AFTER_SHARE: Final = 0.25
"""Of the step's time: what began later than that after its sending, or lasts longer, is told of."""


class StartReporter:
    """Sends `evt.stepStarted` at most once for each piece of work, and never after its result.

    By its own clock a worker knows how long it is at work. How long the command has been under way is a comparison with
    the sender's clock: a hint, which decides only how soon it is told.
    """

    def __init__(self, reporter: CommandReporter) -> None:
        self._reporter = reporter
        self._told: set[CommandDelivery] = set()

    def look(self, busy: Iterable[CommandDelivery], now: float) -> None:
        """Tells of those among `busy` that it is time for."""
        busy = list(busy)
        self._told.intersection_update(busy)
        for job in busy:
            if job.begun is not None and job not in self._told and now - job.begun >= self._after(job, now):
                self._told.add(job)
                self._reporter.add(CommandReport(events.started(job, now - job.begun), "started", began=job))

    def _after(self, job: CommandDelivery, now: float) -> float:
        """The seconds of work after which it is told."""
        quarter = REPORT_AFTER_SHARE * job.timeout
        begun = now if job.begun is None else job.begun
        waited = clock.now().timestamp() - (now - begun) - sent_at(job)
        return REPORT_AFTER_MIN_S if waited > quarter else max(REPORT_AFTER_MIN_S, quarter)


def sent_at(job: CommandDelivery) -> float:
    """When the command was sent, in seconds since 1970 by the sender's clock; infinite where it does not say so."""
    stamped = job.deliveries[0].sent_at
    if stamped is not None:
        return stamped
    try:
        id = UUID(job.command.id)
    except ValueError:
        return float("inf")
    return (id.int >> 80) / 1000 if id.version == 7 else float("inf")
