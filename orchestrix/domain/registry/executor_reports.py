"""Executor report rules: what of an executor's report counts, and when it is to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrix.domain.jobs import JobAttempt, JobRow

UNKNOWN_ATTEMPT: Final = "this attempt is not known"
FOREIGN_ATTEMPT: Final = "this attempt was given to another executor"
ENDED_ATTEMPT: Final = "this attempt has ended"


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """What is to be done with a report: statuses count if it is `open`, lines up to `last_line`, all with None.

    `cancel` is why the executor must not begin, or must stop; None while it is to continue.
    """

    open: bool
    last_line: int | None
    cancel: str | None

    def takes_line(self, seq: int) -> bool:
        """Whether the line of that number counts."""
        return self.last_line is None or seq <= self.last_line


def judge(job: JobRow | None, attempt: JobAttempt | None, job_id: str, worker_id: str) -> ReportVerdict:
    """What a report of `worker_id` about this attempt is worth: `job` and `attempt` are as they are stored now.

    Only the executor that the attempt was given to can report it. After its end its lines still count up to the last
    one that it announced, for they can arrive late.
    """
    if job is None or attempt is None or attempt.job_id != job_id:
        return ReportVerdict(False, 0, UNKNOWN_ATTEMPT)
    if attempt.address is None or attempt.address != worker_id:
        return ReportVerdict(False, 0, FOREIGN_ATTEMPT)
    if attempt.open and job.live and job.history_id == attempt.history_id:
        return ReportVerdict(True, None, job.cancel_reason)
    return ReportVerdict(False, attempt.last_log_seq or 0, job.cancel_reason or ENDED_ATTEMPT)
