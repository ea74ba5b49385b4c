"""Scheduled runs: makes jobs of a schedule's runs, and cancels them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.schedules import Schedule, ScheduledRun, job_of
from orchestrix.jobs import step_results
from orchestrix.jobs.events import StopRequest
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import jobs


def made(schedule: Schedule, runs: Sequence[ScheduledRun], tx: Transaction, by: str | None = None) -> list[JobRow]:
    """A job for each run, requested by `by`; the order of the runs is that of their ids."""
    return [job_of(schedule, run, clock.uuid7(), tx.now(), by) for run in runs]


async def cancel(tx: Transaction, reasons: Mapping[str, str]) -> list[StopRequest]:
    """Cancels those that have not ended, by their ids; the stops that workers are to get after the commit.

    All in one call: whoever locks jobs does so in the order of their ids, and a second call would begin that anew.
    """
    found = [job for job in (await jobs.lock(tx, reasons)).values() if not job.ended]
    moved = [rules.cancelled(job, reasons[job.id], tx.now()) for job in found]
    changed = [(job.version, one.job) for job, one in zip(found, moved, strict=True) if one.job.version != job.version]
    await step_results.store_with_results(tx, changed, [one.attempt for one in moved if one.attempt is not None])
    return [StopRequest(one.job, one.stop, reasons[one.job.id]) for one in moved if one.stop is not None]
