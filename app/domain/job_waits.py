"""What does a job wait for that nobody is at, and what helps?"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from app.domain.jobs import DISPATCHED, OVERDUE, PENDING, TIMEOUT, Ending, Job
from app.domain.schedules import HELD

USUAL: Final = timedelta(seconds=5)
"""So long may a job that is due be without a worker before that needs a word."""


def overdue(job: Job, workers: int) -> Ending:
    """How the attempt ends whose time is over; `workers` are known to serve its queue."""
    if job.state != DISPATCHED:
        return OVERDUE
    message = f"its time was over before any worker had begun it: {_unworked(job, workers)}"
    return replace(OVERDUE, error={"type": TIMEOUT, "message": message})


def stirs(job: Job) -> bool:
    """Whether the leader may have something to do now: another attempt, or a run that has waited for this one's end."""
    return job.state == PENDING or (job.ended and job.schedule_id is not None)


def waits_for(job: Job, now: datetime, workers: int) -> str | None:
    """What keeps a job from going on, in a sentence that says what helps; None for one that is as it should be.

    `workers` are known to serve its queue.
    """
    if job.state == DISPATCHED and job.dispatched_at is not None and now - job.dispatched_at > USUAL:
        return _unworked(job, workers)
    if job.state != PENDING or job.wake_at is None:
        return None
    if job.wake_at == HELD:
        return "another run of its schedule has to end first"
    if now - job.wake_at > USUAL:
        return "it has not been sent yet: either no node leads, or as many jobs are open as may be (jobs.max_live)"
    return None


def _unworked(job: Job, workers: int) -> str:
    command = f"`orchestrix worker --job-queue {job.queue}`"
    if workers:
        known = "the one worker" if workers == 1 else f"each of the {workers} workers"
        return f"{known} of queue {job.queue} is busy, or does not get it: start more with {command}"
    return f"no worker that serves queue {job.queue} is heard of: start one with {command}"
