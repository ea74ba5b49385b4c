"""Scheduled runs: makes jobs of a schedule's runs."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrix import clock
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.schedules import Schedule, ScheduledRun, job_of
from orchestrix.persistence.engine import Transaction


def made(schedule: Schedule, runs: Sequence[ScheduledRun], tx: Transaction, by: str | None = None) -> list[JobRow]:
    """A job for each run, requested by `by`; the order of the runs is that of their ids."""
    return [job_of(schedule, run, clock.uuid7(), tx.now(), by) for run in runs]
