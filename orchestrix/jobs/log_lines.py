"""Job log lines: which lines of a job's log are kept, and that they are signs of life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from orchestrix.domain.jobs import LIVE, AttemptStatus, JobRow
from orchestrix.persistence.jobs.job_logs import LOG_MESSAGE_MAX_CHARS, JobLogLine

HEARTBEAT_WRITE_INTERVAL: Final = timedelta(seconds=0.2)
"""A sign of life that follows another one so soon is not written: far less than `jobs.silent` can be."""


@dataclass(frozen=True, slots=True)
class LogLimit:
    """How much of the log of one job is kept, over all its attempts: so many lines, and bytes of their messages."""

    lines: int
    bytes: int


def kept(job: JobRow, lines: Sequence[JobLogLine], limit: LogLimit, now: datetime) -> tuple[JobRow, list[JobLogLine]]:
    """The job from now on, and what is to be kept of these lines, which are its own.

    The first line above the cap is replaced by one that says so; those behind it are dropped, and the job continues.
    """
    count, size, found = job.log_lines, job.log_bytes, list[JobLogLine]()
    if job.log_cut:
        return job, found
    for line in lines:
        count, size = count + 1, size + len(line.message[:LOG_MESSAGE_MAX_CHARS].encode(errors="replace"))
        if count > limit.lines or size > limit.bytes:
            found.append(replace(line, level="warning", message=_truncation_note(limit)))
            cut = replace(job, log_lines=count, log_bytes=min(size, limit.bytes), log_cut=1)
            return replace(cut, version=job.version + 1, updated_at=now), found
        found.append(line)
    return replace(job, log_lines=count, log_bytes=size), found


def _truncation_note(limit: LogLimit) -> str:
    return (
        f"log truncated: at most {limit.lines:,} lines or {limit.bytes:,} bytes are kept per job (jobs.log_lines, "
        "jobs.log_bytes); the job continues"
    )


def alive(job: JobRow, events: Iterable[AttemptStatus | JobLogLine], now: datetime) -> JobRow:
    """The job, whose worker is alive now if any of these lines are of the present attempt."""
    if job.state not in LIVE or job.worker_id is None:
        return job
    if job.worker_beat_at is not None and now - job.worker_beat_at < HEARTBEAT_WRITE_INTERVAL:
        return job
    heard = any(one.history_id == job.history_id and one.worker_id == job.worker_id for one in events)
    return replace(job, worker_beat_at=now) if heard else job
