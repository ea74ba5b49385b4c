"""What becomes of an ended job when a person retries it?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.job_retry import QUEUE_DELETION_GRACE, retried
from orchestrix.domain.jobs import (
    ATTEMPT_TIMED_OUT,
    CANCELLED,
    DISPATCHED,
    FAILED,
    PENDING,
    SUCCEEDED,
    TIMED_OUT,
    JobRow,
    JobTransition,
)
from orchestrix.errors import ConflictError

from .test_jobs import NOW, SECOND, dispatched, moved, pending, running, said

LATER = NOW + 60 * SECOND
ERROR = {"type": "Broken", "message": "no paper"}


def failed(**more: object) -> JobRow:
    """One whose last attempt has failed."""
    return moved(running(**more), said("FAILED", 2, error=ERROR, last_log_seq=1)).job


def cancelled() -> JobRow:
    """One whose worker has reported that it has stopped."""
    asked = rules.cancelled(running(), "not wanted", NOW).job
    return moved(asked, said("CANCELLED", 2, last_log_seq=0)).job


ENDED = {FAILED: failed(), CANCELLED: cancelled(), TIMED_OUT: rules.ended(running(), ATTEMPT_TIMED_OUT, NOW, 0.5).job}


@pytest.mark.parametrize("state", ENDED)
def test_it_waits_for_another_attempt_as_if_it_had_just_come(state: str) -> None:
    before = ENDED[state]
    assert before.state == state
    job = retried(before, LATER)
    assert (job.state, job.version, job.updated_at) == (PENDING, before.version + 1, LATER)
    assert (job.started_at, job.finished_at, job.cancel_reason, job.worker_id, job.worker_beat_at) == (None,) * 5
    assert (job.error, job.result, job.progress) == (None, None, None)
    assert (job.attempt, job.history_id) == (1, "h1"), "what was done is not forgotten"


def test_attempts_are_counted_on_and_tries_anew() -> None:
    again = rules.dispatched(retried(failed(retries=0), LATER), "h2", LATER)
    assert (again.job.state, again.job.attempt, again.job.tries, again.job.history_id) == (DISPATCHED, 2, 1, "h2")
    assert again.attempt is not None
    assert (again.attempt.attempt, again.attempt.error) == (2, None)
    once_more = retried(replace(failed(), retries=1, tries=2), LATER)
    lost = rules.ended(rules.dispatched(once_more, "h2", LATER).job, ATTEMPT_TIMED_OUT, LATER, 0.5).job
    assert lost.state == PENDING, "all its retries are there again"


def test_it_is_due_at_once_unless_its_queues_may_be_just_being_deleted() -> None:
    open, gone = failed(), rules.closed(failed(), NOW)
    assert retried(open, LATER).wake_at == LATER + QUEUE_DELETION_GRACE
    assert retried(gone, LATER).wake_at == LATER


def test_asking_again_changes_nothing_until_the_attempt_is_sent() -> None:
    job = retried(failed(), LATER)
    assert retried(job, LATER) is job
    with pytest.raises(ConflictError, match="the job is DISPATCHED; wait for its end, or cancel it first"):
        retried(rules.dispatched(job, "h2", LATER).job, LATER)


def test_one_that_waits_after_a_failure_is_not_one_that_was_retried() -> None:
    job = failed(retries=1)
    assert job.state == PENDING
    with pytest.raises(ConflictError, match="the job is PENDING; its next attempt begins by itself"):
        retried(job, LATER)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (pending(), "the job is PENDING"),
        (dispatched(), "the job is DISPATCHED"),
        (running(), "the job is RUNNING"),
        (moved(running(), said("SUCCEEDED", 2)).job, f"the job is {SUCCEEDED}"),
        (failed(saga="order", instance_id=3, step="build"), "retry the saga with `orchestrix sagas retry order 3`"),
    ],
)
def test_what_cannot_be_retried(job: JobRow, why: str) -> None:
    with pytest.raises(ConflictError, match=why):
        retried(job, LATER)


def test_what_the_last_attempt_still_reports_changes_nothing() -> None:
    job = retried(rules.ended(running(), ATTEMPT_TIMED_OUT, NOW, 0.5).job, LATER)
    for status in ("SUCCEEDED", "RUNNING"):
        assert not isinstance(rules.reported(job, said(status, 3), LATER, 0.5), JobTransition)
