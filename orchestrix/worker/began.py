"""Began: tells the orchestrator when the work of a command has begun, where it cannot know that by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from orchestrix import clock

from . import events
from .job import Job
from .reporter import Report, Reporter

LEAST_S: Final = 0.2
"""Work that is done sooner is never told of."""
PART: Final = 0.25
"""Of the step's time: what began later than that after its sending, or lasts longer, is told of."""


class Began:
    """Sends `evt.stepStarted` at most once for each piece of work, and never after its result.

    By its own clock a worker knows how long it is at work. How long the command has been under way is a comparison with
    the sender's clock: a hint, which decides only how soon it is told.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._told: set[Job] = set()

    def look(self, busy: Iterable[Job], now: float) -> None:
        """Tells of those among `busy` that it is time for."""
        busy = list(busy)
        self._told.intersection_update(busy)
        for job in busy:
            if job.begun is not None and job not in self._told and now - job.begun >= self._after(job, now):
                self._told.add(job)
                self._reporter.add(Report(events.started(job, now - job.begun), "started", began=job))

    def _after(self, job: Job, now: float) -> float:
        """The seconds of work after which it is told."""
        quarter = PART * job.timeout
        begun = now if job.begun is None else job.begun
        waited = clock.now().timestamp() - (now - begun) - sent_at(job)
        return LEAST_S if waited > quarter else max(LEAST_S, quarter)


def sent_at(job: Job) -> float:
    """When the command was sent, in seconds since 1970 by the sender's clock; infinite where it does not say so."""
    stamped = job.deliveries[0].sent_at
    if stamped is not None:
        return stamped
    try:
        id = UUID(job.command.id)
    except ValueError:
        return float("inf")
    return (id.int >> 80) / 1000 if id.version == 7 else float("inf")
