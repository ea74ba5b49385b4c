"""Does a job say what it waits for, and what helps?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.domain import jobs as rules
from app.domain.job_waits import overdue, waits_for
from app.domain.jobs import FAILED, PENDING, RUNNING, TIMED_OUT, Job
from app.domain.schedules import HELD

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=6)


def pending(**more: Any) -> Job:
    """A job that nobody has touched."""
    fields = {"created_by": "ada", "correlation_id": "c", "created_at": NOW, "updated_at": NOW, "wake_at": NOW}
    return Job(**{"id": "j", "queue": "reports", "handler": "h", **fields, **more})


DISPATCHED = rules.dispatched(pending(timeout_ms=5000), "h1", NOW).job


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        (0, "no worker that serves queue reports is heard of: start one with "),
        (1, "the one worker of queue reports is busy, or does not get it: start more with "),
        (3, "each of the 3 workers of queue reports is busy, or does not get it: start more with "),
    ],
)
def test_one_that_nobody_begins_names_its_queue_and_what_helps(workers: int, says: str) -> None:
    sentence = f"{says}`orchestrix worker --job-queue reports`"
    assert waits_for(DISPATCHED, LATER, workers) == sentence
    ending = overdue(DISPATCHED, workers)
    message = f"its time was over before any worker had begun it: {sentence}"
    assert (ending.state, ending.error, ending.counts) == (TIMED_OUT, {"type": "Timeout", "message": message}, True)


def test_one_that_was_begun_ends_as_any_other() -> None:
    begun = replace(DISPATCHED, state=RUNNING)
    assert overdue(begun, 0) == rules.OVERDUE
    assert waits_for(begun, LATER, 0) is None


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (pending(), "no node leads"),
        (pending(wake_at=HELD), "another run of its schedule"),
        (pending(wake_at=LATER), None),
        (pending(state=FAILED, wake_at=None), None),
        (replace(pending(), state=PENDING, wake_at=LATER - timedelta(seconds=5)), None),
    ],
)
def test_what_has_not_been_sent_says_why_if_it_should_have_been(job: Job, says: str | None) -> None:
    found = waits_for(job, LATER, 0)
    assert found is None if says is None else says in str(found)


def test_a_moment_is_no_wait() -> None:
    assert waits_for(DISPATCHED, NOW + timedelta(seconds=5), 0) is None
