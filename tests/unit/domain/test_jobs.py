"""What becomes of a job when something happens to it?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import (
    ATTEMPT_TIMED_OUT,
    BROKER_LOST,
    CANCELLED,
    DISPATCHED,
    FAILED,
    LOST,
    OWNED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TIMED_OUT,
    WORKER_SILENT,
    AttemptEnding,
    AttemptStatus,
    IgnoredStatus,
    JobAttempt,
    JobRow,
    JobTransition,
)
from orchestrix.errors import ConflictError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def pending(**more: Any) -> JobRow:
    """A job that nobody has touched."""
    fields = {"created_by": "ada", "correlation_id": "c", "created_at": NOW, "updated_at": NOW, "wake_at": NOW}
    return JobRow(**{"id": "j", "queue": "q", "handler": "h", **fields, **more})


def dispatched(**more: Any) -> JobRow:
    """One whose first attempt, `h1`, is out."""
    return rules.dispatched(pending(**more), "h1", NOW).job


def running(**more: Any) -> JobRow:
    """One that a worker is at."""
    return moved(dispatched(**more), said("RUNNING")).job


def said(status: str, seq: int = 1, history_id: str = "h1", worker: str = "w", **more: Any) -> AttemptStatus:
    """What a worker says."""
    return AttemptStatus("j", history_id, worker, seq, status, **more)


def moved(job: JobRow, status: AttemptStatus, now: datetime = NOW, chance: float = 0.5) -> JobTransition:
    """What that does, which is something."""
    found = rules.reported(job, status, now, chance)
    assert isinstance(found, JobTransition), found
    return found


def ignored(job: JobRow, status: AttemptStatus) -> IgnoredStatus:
    """What that does, which is nothing."""
    found = rules.reported(job, status, NOW, 0.5)
    assert isinstance(found, IgnoredStatus), found
    return found


def test_a_dispatch_is_a_new_attempt() -> None:
    out = rules.dispatched(pending(timeout_ms=5000, error={"type": "Old"}), "h1", NOW)
    job, attempt = out.job, out.attempt
    assert (job.state, job.attempt, job.tries, job.history_id, job.channels, job.seq) == (DISPATCHED, 1, 1, "h1", 1, 0)
    assert (job.wake_at, job.version) == (NOW + 5 * SECOND, 2)
    assert attempt == JobAttempt("h1", "j", 1, None, DISPATCHED, NOW)


def test_its_time_counts_anew_from_its_beginning() -> None:
    later = NOW + 3 * SECOND
    out = moved(dispatched(timeout_ms=5000), said("RUNNING"), later)
    assert (out.job.state, out.job.wake_at, out.job.started_at, out.job.worker_beat_at) == (
        RUNNING,
        later + 5 * SECOND,
        later,
        later,
    )
    assert out.attempt == JobAttempt("h1", "j", 1, "w", RUNNING, NOW, later)
    more = moved(out.job, said("RUNNING", 2, progress={"percent": 5}), later + SECOND)
    assert (more.job.progress, more.job.wake_at, more.attempt) == ({"percent": 5}, later + 5 * SECOND, None)


def test_without_a_time_out_it_may_take_any_time() -> None:
    assert running().wake_at is None


def test_statuses_are_applied_once_and_in_order() -> None:
    job = moved(running(), said("RUNNING", 5, progress=50)).job
    assert ignored(job, said("RUNNING", 5, progress=10)) == IgnoredStatus("repeated")
    assert ignored(job, said("RUNNING", 3, progress=10)) == IgnoredStatus("repeated")
    done = moved(job, said("SUCCEEDED", 9, result={"pages": 7}, last_log_seq=8))
    assert (done.job.state, done.job.result, done.job.last_log_seq, done.job.progress) == (
        SUCCEEDED,
        {"pages": 7},
        8,
        50,
    )
    assert (done.job.wake_at, done.job.finished_at) == (None, NOW)
    assert done.attempt is not None
    assert (done.attempt.state, done.attempt.last_log_seq, done.attempt.finished_at) == (SUCCEEDED, 8, NOW)
    assert ignored(done.job, said("SUCCEEDED", 9)) == IgnoredStatus("repeated")


def test_a_worker_may_end_without_having_begun() -> None:
    out = moved(dispatched(), said("FAILED", error={"type": "UnknownJob", "retryable": False}, last_log_seq=0))
    assert (out.job.state, out.job.started_at, out.job.worker_id) == (FAILED, NOW, "w")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [(None, "Error", ""), ({"type": 5, "message": None}, "5", ""), ({"message": ["a"]}, "Error", "['a']")],
)
def test_an_error_has_a_type_and_a_message_whatever_the_worker_sent(error: Any, kind: str, message: str) -> None:
    out = moved(dispatched(), said("FAILED", error=error, last_log_seq=0))
    assert out.job.error == {"type": kind, "message": message}


@pytest.mark.parametrize("status", ["RUNNING", "SUCCEEDED", "FAILED"])
def test_what_another_attempt_says_is_ignored_and_it_is_told_to_stop(status: str) -> None:
    told = "old" if status == "RUNNING" else None
    assert ignored(running(), said(status, 7, "old")) == IgnoredStatus("another-attempt", told)


def test_a_worker_that_does_not_know_that_its_attempt_is_over_is_told_so() -> None:
    over = rules.ended(running(), ATTEMPT_TIMED_OUT, NOW, 0.5).job
    assert ignored(over, said("RUNNING", 2)) == IgnoredStatus("another-attempt", "h1")


def test_a_try_that_was_begun_twice_is_given_up_for_another() -> None:
    out = moved(running(retries=0), said("RUNNING", 1, worker="other"))
    assert (out.job.state, out.job.tries, out.job.wake_at, out.stop) == (PENDING, 0, NOW, "h1")
    assert out.attempt is not None
    assert out.attempt.state == LOST
    again = rules.dispatched(out.job, "h2", NOW).job
    assert (again.attempt, again.tries, again.worker_id) == (2, 1, None)


def test_another_attempt_does_not_begin_with_the_progress_of_the_lost_one() -> None:
    lost = replace(moved(running(retries=1), said("RUNNING", 1, worker="other")).job, progress={"percent": 40})
    begun = moved(rules.dispatched(lost, "h2", NOW).job, said("RUNNING", history_id="h2")).job
    assert (begun.history_id, begun.progress) == ("h2", None)


@pytest.mark.parametrize(
    ("ending", "retries", "state", "counted"),
    [
        (WORKER_SILENT, 0, FAILED, True),
        (WORKER_SILENT, 1, PENDING, True),
        (ATTEMPT_TIMED_OUT, 0, TIMED_OUT, True),
        (ATTEMPT_TIMED_OUT, 1, PENDING, True),
        (BROKER_LOST, 0, PENDING, False),
        (AttemptEnding(FAILED, {}, retryable=False), 1, FAILED, True),
    ],
)
def test_an_attempt_that_ends_badly(ending: AttemptEnding, retries: int, state: str, counted: bool) -> None:
    out = rules.ended(running(retries=retries), ending, NOW, 0.5)
    assert (out.job.state, out.job.tries, out.stop) == (state, 1 if counted else 0, "h1")
    assert out.attempt is not None
    assert (out.attempt.state, out.attempt.finished_at, out.attempt.history_id) == (ending.state, NOW, "h1")
    assert (out.job.finished_at is None) == (state == PENDING)


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "CANCELLED"])
def test_how_it_ended_is_said_by_the_worker_that_began_it(status: str) -> None:
    assert ignored(running(), said(status, 9, worker="other")) == IgnoredStatus("another-worker")


def test_the_waits_grow_and_are_drawn() -> None:
    job, waits = pending(retries=4), []
    for number in range(1, 5):
        job = rules.dispatched(job, f"h{number}", NOW).job
        job = moved(job, said("FAILED", history_id=f"h{number}"), chance=0.5).job
        assert job.wake_at is not None
        waits.append((job.wake_at - NOW).total_seconds())
    assert waits == [0.5, 1.0, 2.0, 4.0]
    last = moved(rules.dispatched(job, "h5", NOW).job, said("FAILED", history_id="h5")).job
    assert (last.state, last.attempt) == (FAILED, 5)


def test_a_failure_that_cannot_be_mended_is_not_tried_again() -> None:
    out = moved(running(retries=5), said("FAILED", 2, error={"type": "Bad", "retryable": False}, last_log_seq=0))
    assert (out.job.state, out.job.error, out.stop) == (FAILED, {"type": "Bad", "retryable": False}, None)


def failed(job: JobRow, **error: Any) -> JobTransition:
    """What a failure of such a kind does."""
    return moved(job, said("FAILED", 2, error={"type": "Broken", "message": "", **error}, last_log_seq=0))


def test_the_next_attempt_waits_as_long_as_the_worker_wishes() -> None:
    assert failed(running(retries=1), retryAfterMs=90_500).job.wake_at == NOW + 90.5 * SECOND
    assert failed(running(retries=1), retryAfterMs=0).job.wake_at == NOW
    assert failed(running(), retryAfterMs=90_500).job.state == FAILED, "a wish is no retry"


@pytest.mark.parametrize("wish", ["soon", -1, True, 1.5, None])
def test_what_is_no_wish_is_none(wish: Any) -> None:
    assert failed(running(retries=1), retryAfterMs=wish).job.wake_at == NOW + 0.5 * SECOND


def test_a_wish_without_measure_is_cut_to_what_a_calendar_has() -> None:
    wake_at = failed(running(retries=1), retryAfterMs=2**60).job.wake_at
    assert wake_at is not None
    assert NOW.year + 30 < wake_at.year < 2100


def test_an_attempt_whose_worker_stops_is_followed_at_once_and_uses_up_no_try() -> None:
    job = running(retries=0)
    for number in range(2, 5):
        out = failed(job, type="WorkerStopped", retryable=True)
        assert (out.job.state, out.job.tries, out.job.wake_at, out.stop) == (PENDING, 0, NOW, None)
        assert out.attempt is not None
        assert (out.attempt.state, out.attempt.error["type"]) == (FAILED, "WorkerStopped")
        job = moved(rules.dispatched(out.job, "h1", NOW).job, said("RUNNING")).job
        assert (job.attempt, job.tries) == (number, 1)
    assert failed(job).job.state == FAILED


def test_a_worker_that_always_stops_does_not_make_it_go_round_ever_faster() -> None:
    job, waits = running(), []
    for _ in range(6):
        job = failed(job, type="WorkerStopped").job
        assert job.wake_at is not None
        waits.append((job.wake_at - NOW).total_seconds())
        job = moved(rules.dispatched(job, "h1", NOW).job, said("RUNNING")).job
    assert waits == [0, 0, 0, 0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("retries", "retryable", "state"), [(0, True, TIMED_OUT), (1, True, PENDING), (1, False, TIMED_OUT)]
)
def test_a_time_out_that_the_worker_has_found_is_one(retries: int, retryable: bool, state: str) -> None:
    out = failed(running(retries=retries), type="Timeout", retryable=retryable)
    assert (out.job.state, out.job.tries, out.stop) == (state, 1, None)
    assert out.attempt is not None
    assert (out.attempt.state, out.attempt.last_log_seq) == (TIMED_OUT, 0)


@pytest.mark.parametrize("type", ["Timeout", "WorkerStopped"])
def test_who_was_only_stopped_has_not_failed_if_he_was_to_stop_anyway(type: str) -> None:
    asked = rules.cancelled(running(retries=3), "not wanted", NOW).job
    out = failed(asked, type=type, retryable=True)
    assert (out.job.state, out.stop) == (CANCELLED, None)


def test_one_that_waits_is_cancelled_at_once() -> None:
    out = rules.cancelled(pending(), "not wanted", NOW)
    assert (out.job.state, out.job.cancel_reason, out.job.wake_at, out.attempt, out.stop) == (
        CANCELLED,
        "not wanted",
        None,
        None,
        None,
    )


def test_one_that_no_worker_has_begun_is_cancelled_at_once_and_its_worker_told() -> None:
    out = rules.cancelled(dispatched(), "not wanted", NOW)
    assert (out.job.state, out.stop) == (CANCELLED, "h1")
    assert out.attempt is not None
    assert out.attempt.state == CANCELLED
    assert ignored(out.job, said("RUNNING")) == IgnoredStatus("another-attempt", "h1")


def test_one_that_runs_is_cancelled_by_its_worker() -> None:
    asked = rules.cancelled(running(retries=3), "not wanted", NOW)
    assert (asked.job.state, asked.job.cancel_reason, asked.stop, asked.attempt) == (RUNNING, "not wanted", "h1", None)
    again = rules.cancelled(asked.job, "still not", NOW)
    assert (again.job, again.stop) == (asked.job, "h1")
    assert moved(asked.job, said("CANCELLED", 2, last_log_seq=0)).job.state == CANCELLED


@pytest.mark.parametrize(("status", "state"), [("SUCCEEDED", SUCCEEDED), ("FAILED", FAILED), ("CANCELLED", CANCELLED)])
def test_what_the_worker_says_counts_after_a_cancel(status: str, state: str) -> None:
    asked = rules.cancelled(running(retries=3), "not wanted", NOW).job
    assert moved(asked, said(status, 2, last_log_seq=0)).job.state == state


@pytest.mark.parametrize("ending", [WORKER_SILENT, ATTEMPT_TIMED_OUT, BROKER_LOST])
def test_a_worker_that_cannot_hear_of_the_cancel_does_not_hold_it_up_for_ever(ending: AttemptEnding) -> None:
    asked = rules.cancelled(running(retries=3), "not wanted", NOW).job
    out = rules.ended(asked, ending, NOW, 0.5)
    assert (out.job.state, out.stop) == (CANCELLED, "h1")


def test_what_has_ended_is_not_cancelled() -> None:
    with pytest.raises(ConflictError, match="SUCCEEDED"):
        rules.cancelled(moved(running(), said("SUCCEEDED", 2)).job, "late", NOW)
    gone = rules.cancelled(pending(), "not wanted", NOW).job
    assert rules.cancelled(gone, "again", NOW) == JobTransition(gone)


def test_lines_behind_the_end_of_an_attempt_are_its_own_up_to_the_last_one() -> None:
    ended = moved(running(retries=1), said("FAILED", 9, last_log_seq=8)).attempt
    assert ended is not None
    assert (ended.owns_log_line(8, "w"), ended.owns_log_line(9, "w"), ended.owns_log_line(8, "other")) == (
        True,
        False,
        False,
    )
    lost = rules.ended(running(), WORKER_SILENT, NOW, 0.5).attempt
    assert lost is not None
    assert not lost.owns_log_line(1, "w")
    assert JobAttempt("h", "j", 1, "w", RUNNING, NOW).owns_log_line(10**6, "w")
    assert JobAttempt("h", "j", 1, None, DISPATCHED, NOW).owns_log_line(1, "w"), "its first word is still on its way"


def test_a_new_owner_is_a_new_epoch() -> None:
    first = rules.taken(running(), "a", NOW)
    assert (first.owner, first.owner_epoch, first.ownership) == ("a", 1, OWNED)
    offered = rules.offered(first, "Shutdown", rules.HANDING_OFF, NOW)
    assert (offered.owner, offered.owner_epoch, offered.ownership, offered.handoff_tries) == ("a", 1, "HANDING_OFF", 1)
    second = rules.taken(offered, "b", NOW + SECOND)
    assert (second.owner, second.owner_epoch, second.handoff_reason, second.handoff_at) == ("b", 2, None, None)
    assert (second.taken_at, second.worker_beat_at) == (NOW + SECOND, running().worker_beat_at)
    kept = rules.kept(offered, NOW)
    assert (kept.owner, kept.owner_epoch, kept.ownership, kept.handoff_tries) == ("a", 1, OWNED, 0)


def test_a_new_owner_has_time_to_hear_what_was_said_to_the_last_one() -> None:
    first = rules.taken(running(timeout_ms=1000), "a", NOW)
    assert first.wake_at == running(timeout_ms=1000).wake_at, "nobody was there before"
    late = rules.taken(first, "b", NOW + 60 * SECOND)
    assert late.wake_at == NOW + 65 * SECOND
    assert rules.taken(replace(late, wake_at=NOW + 900 * SECOND), "c", NOW).wake_at == NOW + 900 * SECOND


def test_an_attempt_follows_another_under_the_same_owner() -> None:
    owned = rules.taken(running(retries=1), "a", NOW)
    again = rules.dispatched(moved(owned, said("FAILED", 2)).job, "h2", NOW).job
    assert (again.owner, again.owner_epoch, again.seq, again.worker_id) == ("a", 1, 0, None)


def test_every_change_is_a_new_version() -> None:
    job = running()
    changed = [
        rules.taken(job, "a", NOW),
        rules.offered(job, "Shutdown", None, NOW),
        rules.kept(job, NOW),
        rules.closed(job, NOW),
        rules.reopened(job, NOW),
        rules.ended(job, WORKER_SILENT, NOW, 0).job,
        rules.cancelled(job, "x", NOW).job,
        moved(job, said("RUNNING", 2)).job,
    ]
    assert [one.version for one in changed] == [job.version + 1] * len(changed)
    assert replace(rules.closed(job, NOW), version=0, updated_at=NOW).owner is None
