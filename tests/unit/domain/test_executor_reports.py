"""Which reports of executors count, and which executor is to stop?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrix.domain.jobs import FAILED, LOST, PENDING, RUNNING, JobAttempt, JobRow
from orchestrix.domain.registry.executor_reports import (
    ENDED_ATTEMPT,
    FOREIGN_ATTEMPT,
    UNKNOWN_ATTEMPT,
    ReportVerdict,
    judge,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HERE = "http://10.0.0.7:9999"
JOB = JobRow(
    id="j",
    queue=None,
    executor_group="shop",
    handler="h",
    state=RUNNING,
    history_id="h-1",
    attempt=1,
    address=HERE,
    created_by="ada",
    correlation_id="c",
    created_at=NOW,
    updated_at=NOW,
)
ATTEMPT = JobAttempt("h-1", "j", 1, HERE, RUNNING, NOW, address=HERE, called_at=NOW)
NOTHING = ReportVerdict(False, 0, UNKNOWN_ATTEMPT)


def test_the_executor_that_was_called_is_heard_and_learns_of_a_cancel() -> None:
    assert judge(JOB, ATTEMPT, "j", HERE) == ReportVerdict(True, None, None)
    assert judge(replace(JOB, cancel_reason="stop"), ATTEMPT, "j", HERE) == ReportVerdict(True, None, "stop")


@pytest.mark.parametrize(
    ("job", "attempt", "path"), [(None, None, "j"), (JOB, None, "j"), (None, ATTEMPT, "j"), (JOB, ATTEMPT, "other")]
)
def test_what_is_not_known_publishes_nothing(job: JobRow | None, attempt: JobAttempt | None, path: str) -> None:
    assert judge(job, attempt, path, HERE) == NOTHING


@pytest.mark.parametrize("called", [None, "http://10.0.0.8:9999"])
def test_another_executor_must_not_begin(called: str | None) -> None:
    assert judge(JOB, replace(ATTEMPT, address=called), "j", HERE) == ReportVerdict(False, 0, FOREIGN_ATTEMPT)


def test_after_the_end_the_announced_lines_still_count() -> None:
    ended = replace(ATTEMPT, state=FAILED, last_log_seq=4)
    verdict = judge(replace(JOB, state=FAILED), ended, "j", HERE)
    assert verdict == ReportVerdict(False, 4, ENDED_ATTEMPT)
    assert [verdict.takes_line(seq) for seq in (3, 4, 5)] == [True, True, False]


def test_an_attempt_that_another_one_follows_is_over() -> None:
    lost = replace(ATTEMPT, state=LOST)
    assert judge(replace(JOB, state=PENDING), lost, "j", HERE) == ReportVerdict(False, 0, ENDED_ATTEMPT)
    again = replace(JOB, history_id="h-2")
    assert judge(again, ATTEMPT, "j", HERE).open is False
