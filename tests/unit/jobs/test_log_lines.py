"""Which of the lines that come by a job's channel are written?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrix.domain.jobs import RUNNING, SUCCEEDED, JobAttempt
from orchestrix.jobs.events import BatchResult, JobEventListener
from orchestrix.persistence.jobs.job_logs import JobLogLine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ATTEMPT = JobAttempt("h-1", "j-1", 1, "w-1", RUNNING, NOW)
LINE = JobLogLine("h-1", 4, "j-1", "w-1", "info", "a line", NOW)


def heard(line: JobLogLine, attempt: JobAttempt = ATTEMPT) -> BatchResult:
    """What is to be written where that is all that is known."""
    written = BatchResult()
    JobEventListener._apply_log_lines([line], {attempt.history_id: attempt}, written)
    return written


def test_a_line_of_the_attempt_is_written() -> None:
    assert heard(LINE).logs == {"j-1": [LINE]}


@pytest.mark.parametrize(
    ("line", "attempt"),
    [
        (replace(LINE, job_id="j-2"), ATTEMPT),
        (replace(LINE, history_id="h-2"), ATTEMPT),
        (replace(LINE, worker_id="w-2"), ATTEMPT),
        (LINE, replace(ATTEMPT, state=SUCCEEDED, last_log_seq=3)),
    ],
    ids=["of another job", "of an attempt that nobody knows", "of another worker", "behind the end"],
)
def test_any_other_line_is_counted_and_not_written(line: JobLogLine, attempt: JobAttempt) -> None:
    written = heard(line, attempt)
    assert (dict(written.logs), dict(written.ignored)) == ({}, {"another-attempt": 1})
