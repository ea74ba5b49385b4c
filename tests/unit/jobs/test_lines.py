"""How much of a job's log is kept, and is what a worker says a sign of life?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING, AttemptStatus, JobRow
from orchestrix.jobs.log_lines import LogLimit, alive, kept
from orchestrix.persistence.jobs.job_logs import JobLogLine

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(seconds=20)
JOB = JobRow(
    id="j",
    queue="q",
    handler="h",
    state=RUNNING,
    history_id="h1",
    worker_id="w",
    worker_beat_at=LONG_AGO,
    created_by="ada",
    correlation_id="c",
    created_at=NOW,
    updated_at=LONG_AGO,
)
LINES = [JobLogLine("h1", seq, "j", "w", "info", "four", NOW, 1) for seq in range(2, 8)]


def test_all_is_kept_up_to_the_cap() -> None:
    job, found = kept(JOB, LINES, LogLimit(6, 24), NOW)
    assert found == LINES
    assert job == replace(JOB, log_lines=6, log_bytes=24)


@pytest.mark.parametrize("cap", [LogLimit(4, 1000), LogLimit(1000, 17)], ids=["lines", "bytes"])
def test_the_first_line_above_it_says_so_and_the_rest_is_dropped(cap: LogLimit) -> None:
    job, found = kept(JOB, LINES, cap, NOW)
    assert [(one.seq, one.level) for one in found] == [*[(seq, "info") for seq in range(2, 6)], (6, "warning")]
    assert "log truncated" in found[-1].message
    assert (job.log_cut, job.version, job.state, job.updated_at) == (1, JOB.version + 1, RUNNING, NOW)
    assert kept(job, LINES, cap, NOW) == (job, []), "it is said once, and the job goes on"


def test_what_is_kept_counts_over_many_batches_and_attempts() -> None:
    job, first = kept(JOB, LINES[:3], LogLimit(5, 1000), NOW)
    lines = [replace(one, history_id="h2") for one in LINES]
    job, second = kept(replace(job, history_id="h2"), lines, LogLimit(5, 1000), NOW)
    assert (len(first), len(second), job.log_cut) == (3, 3, 1)


def test_a_message_counts_by_its_bytes_as_far_as_it_is_stored() -> None:
    job, _ = kept(JOB, [replace(LINES[0], message="ü" * 20_000)], LogLimit(10, 10**6), NOW)
    assert job.log_bytes == 32_000


STATUS = AttemptStatus("j", "h1", "w", 1, RUNNING)


@pytest.mark.parametrize("said", [LINES[0], STATUS], ids=["line", "status"])
def test_what_the_worker_says_of_this_attempt_is_a_sign_of_life(said: JobLogLine | AttemptStatus) -> None:
    assert alive(JOB, [said], NOW) == replace(JOB, worker_beat_at=NOW)
    waiting = replace(JOB, state=DISPATCHED, worker_beat_at=None)
    assert alive(waiting, [said], NOW).worker_beat_at == NOW


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (JOB, replace(LINES[0], history_id="h0")),
        (JOB, replace(LINES[0], worker_id="another")),
        (replace(JOB, state=PENDING), LINES[0]),
        (replace(JOB, worker_id=None), LINES[0]),
        (replace(JOB, worker_beat_at=NOW - timedelta(seconds=0.1)), LINES[0]),
    ],
    ids=["another attempt", "another worker", "over", "nobody's", "just heard"],
)
def test_nothing_else_is_one(job: JobRow, said: JobLogLine) -> None:
    assert alive(job, [said], NOW) is job
