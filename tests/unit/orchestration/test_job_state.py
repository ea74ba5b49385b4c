"""What is said of a job, wherever it is, and of what helps?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import DiagnosisContext, QueueWorkers
from orchestrix.domain.job_retry import retried
from orchestrix.domain.jobs import (
    ATTEMPT_TIMED_OUT,
    HANDING_OFF,
    ORPHAN_PENDING,
    AttemptEnding,
    AttemptStatus,
    JobRow,
    JobTransition,
)
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.engine.explain.job_state import JobStateFacts, explain
from orchestrix.persistence.audit import AuditRow

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
AGAIN = "run it again with `orchestrix jobs retry j`"
OR_STOP = "Wait, or stop it with `orchestrix jobs cancel j`."
FIX = f"See `orchestrix jobs logs j`, fix the cause, then {AGAIN}."


def pending(**more: Any) -> JobRow:
    """A job that was submitted."""
    fields = {"created_by": "ada", "correlation_id": "c", "created_at": NOW, "updated_at": NOW, "wake_at": NOW}
    return JobRow(**{"id": "j", "queue": "reports", "handler": "h", **fields, **more})


def dispatched(**more: Any) -> JobRow:
    """One that was sent."""
    return rules.dispatched(pending(**more), "h1", NOW).job


def running(**more: Any) -> JobRow:
    """One that a worker has begun."""
    return said(dispatched(**more), "RUNNING", 1)


def said(job: JobRow, status: str, seq: int = 2, **more: Any) -> JobRow:
    """What has become of it by its worker's report."""
    found = rules.reported(job, AttemptStatus("j", "h1", "w-1", seq, status, **more), NOW, 0.0)
    assert isinstance(found, JobTransition)
    return found.job


def failed(retryable: bool = True, **more: Any) -> JobRow:
    """One whose attempt has failed."""
    error = {"type": "Broken", "message": "no paper.", "retryable": retryable}
    return said(running(**more), "FAILED", error=error, last_log_seq=0)


def timed_out(job: JobRow, message: str) -> JobRow:
    """One whose last attempt has taken too long."""
    ending: AttemptEnding = replace(ATTEMPT_TIMED_OUT, error={"type": "Timeout", "message": message})
    return rules.ended(job, ending, NOW, 0.5).job


def by(who: str, verb: str, reason: str) -> AuditRow:
    """What somebody did."""
    return AuditRow(at=NOW, actor=who, verb=verb, reason=reason, detail={"job": "j"})


def around(known: int = 0, **more: Any) -> DiagnosisContext:
    """What is known where a node has led for an hour, and so many workers serve the queue."""
    return DiagnosisContext(QueueWorkers(known), 30.0, NOW - timedelta(hours=1), **more)


@pytest.mark.parametrize(
    ("job", "blocker", "sentence", "helps"),
    [
        (said(running(), "SUCCEEDED"), "succeeded", "Succeeded in attempt 1.", "Nothing to do."),
        (failed(), "failed", "Failed in attempt 1 (it has no retries): Broken: no paper.", FIX),
        (
            failed(retryable=False, retries=3),
            "failed",
            "Failed in attempt 1 (the error is permanent): Broken: no paper.",
            FIX,
        ),
        (
            replace(failed(), attempt=3, tries=3, retries=2),
            "failed",
            "Failed in attempt 3 (no retries left of 2): Broken: no paper.",
            FIX,
        ),
        (
            failed(saga="order", instance_id=7, step="build"),
            "failed",
            "Failed in attempt 1 (it has no retries): Broken: no paper.",
            "See `orchestrix jobs logs j`, fix the cause, then retry the saga with `orchestrix sagas retry order 7`.",
        ),
        (
            timed_out(running(), "timed out after 4 s"),
            "timed_out",
            "Timed out in attempt 1 (it has no retries): timed out after 4 s.",
            FIX,
        ),
        (
            timed_out(dispatched(), "timed out before a worker started it"),
            "timed_out",
            "Timed out in attempt 1 (it has no retries): timed out before a worker started it.",
            f"Start a worker with `orchestrix worker --job-queue reports`, then {AGAIN}.",
        ),
        (
            rules.cancelled(pending(), "its schedule was deleted", NOW).job,
            "cancelled",
            "Cancelled: its schedule was deleted.",
            f"Nothing to do; if that was a mistake, {AGAIN}.",
        ),
    ],
)
def test_one_that_has_ended(job: JobRow, blocker: str, sentence: str, helps: str) -> None:
    found = explain(JobStateFacts(job, NOW + SECOND))
    assert (found.blocker, found.sentence, found.next_action) == (blocker, sentence, helps)
    assert (found.since, found.next_at) == (NOW, None)


def test_one_that_its_worker_cancelled_by_itself() -> None:
    found = explain(JobStateFacts(said(running(), "CANCELLED", last_log_seq=0), NOW))
    assert found.sentence == "Reported as cancelled by its worker w-1, without a request to cancel it."


def test_who_has_cancelled_it_and_why() -> None:
    action = by("ada", "cancel-job", "not wanted")
    found = explain(JobStateFacts(rules.cancelled(pending(), "not wanted", NOW).job, NOW, action))
    assert found.sentence == "Cancelled by ada at 2026-01-31T12:00:00Z (not wanted)."
    stopping = explain(JobStateFacts(rules.cancelled(running(), "not wanted", NOW).job, NOW, action))
    assert (stopping.blocker, stopping.next_action) == ("stopping", "Wait.")
    assert stopping.sentence == (
        "Cancelled by ada at 2026-01-31T12:00:00Z (not wanted); its worker w-1 has not reported its end yet."
    )


@pytest.mark.parametrize(
    ("job", "blocker", "sentence"),
    [
        (pending(), "pending", "Not dispatched yet; attempt 1 begins now."),
        (pending(wake_at=NOW + 90 * SECOND), "pending", "Not dispatched yet; attempt 1 begins in 1 min 30 s."),
        (
            replace(failed(retries=2), wake_at=NOW + 4 * SECOND),
            "retry",
            "Attempt 1 failed: Broken: no paper. Attempt 2 begins in 4 s.",
        ),
        (
            replace(failed(retries=1), wake_at=NOW + 4 * SECOND),
            "retry",
            "Attempt 1 failed: Broken: no paper. Attempt 2 begins in 4 s; it is the last one.",
        ),
        (retried(failed(), NOW), "pending", "Retried by hand; attempt 2 begins in 2 s."),
        (
            dispatched(timeout_ms=5000),
            "dispatched",
            "Attempt 1 was sent to queue reports; no worker has started it yet; it times out in 5 s.",
        ),
    ],
)
def test_one_that_waits_as_it_should(job: JobRow, blocker: str, sentence: str) -> None:
    found = explain(JobStateFacts(job, NOW))
    assert (found.blocker, found.sentence, found.next_action) == (blocker, sentence, OR_STOP)
    assert (found.since, found.next_at) == (NOW, job.wake_at)


def test_who_has_retried_it() -> None:
    found = explain(JobStateFacts(retried(failed(), NOW), NOW, by("ada", "retry-job", "there is paper")))
    assert found.sentence == "Retried by ada at 2026-01-31T12:00:00Z (there is paper); attempt 2 begins in 2 s."


def test_one_that_runs() -> None:
    job = replace(running(timeout_ms=600_000), progress={"percent": 40})
    found = explain(JobStateFacts(job, NOW + 10 * SECOND))
    assert found.sentence == "Worker w-1 is processing attempt 1, 40 %; it times out in 9 min 50 s."
    assert (found.blocker, found.next_action) == ("in_progress", "Wait, or follow it with `orchestrix jobs logs j -f`.")


@pytest.mark.parametrize(
    ("ownership", "more"),
    [
        (HANDING_OFF, "Its owner node-1 is handing it off to another node (Shutdown)."),
        (ORPHAN_PENDING, "Its owner node-1 is gone; another node takes it over."),
    ],
)
def test_one_that_is_handed_off(ownership: str, more: str) -> None:
    job = replace(running(), owner="node-1", ownership=ownership, handoff_reason="Shutdown")
    assert explain(JobStateFacts(job, NOW)).sentence == f"Worker w-1 is processing attempt 1. {more}"


@pytest.mark.parametrize(
    ("job", "context", "problem", "blocker", "sentence", "helps"),
    [
        (
            dispatched(),
            around(),
            None,
            "no_worker",
            "The job is DISPATCHED: no worker serves queue reports.",
            "Start one with `orchestrix worker --job-queue reports`.",
        ),
        (
            dispatched(),
            around(1),
            None,
            "busy_workers",
            "The job is DISPATCHED: queue reports: its only worker",
            "Start",
        ),
        (
            dispatched(),
            around(1, is_read=False),
            None,
            "owner_gone",
            "The job is DISPATCHED: its owner node",
            "Wait, an",
        ),
        (
            dispatched(),
            around(1, is_empty=True),
            None,
            "lost_dispatch",
            "The job is DISPATCHED: no worker has",
            "A wor",
        ),
        (
            pending(),
            around(1),
            None,
            "max_live",
            "The job is PENDING: not dispatched yet: the limit of open jobs",
            OR_STOP,
        ),
        (
            pending(wake_at=QUEUED_WAKE_AT),
            around(),
            None,
            "held",
            "The job is PENDING: waiting for another run",
            OR_STOP,
        ),
        (dispatched(), around(), "blocked", "broker_down", "The job is DISPATCHED: RabbitMQ is unreachable", "Restart"),
        (
            dispatched(),
            replace(around(), led_since=None),
            None,
            "no_leader",
            "The job is DISPATCHED: no leader elected",
            "Start a node with `orchestrix serve`.",
        ),
        (running(), around(1), None, "silent_worker", "The job is RUNNING: no heartbeat from its worker w-1", OR_STOP),
        (
            dispatched(),
            replace(around(), led_since=NOW),
            None,
            "leader_is_new",
            "The job is DISPATCHED: the leader started",
            OR_STOP,
        ),
    ],
)
def test_one_that_does_not_continue(
    job: JobRow, context: DiagnosisContext, problem: str | None, blocker: str, sentence: str, helps: str
) -> None:
    now = NOW + (8 if blocker == "leader_is_new" else 20) * SECOND
    found = explain(JobStateFacts(job, now, None, context, problem))
    assert found.blocker == blocker
    assert found.sentence.startswith(sentence)
    assert found.next_action.startswith(helps)


def test_one_that_is_to_stop_and_whose_worker_is_silent() -> None:
    job = rules.cancelled(running(), "not wanted", NOW).job
    found = explain(JobStateFacts(job, NOW + 20 * SECOND, None, around(1)))
    assert found.blocker == "stopping"
    assert found.sentence.startswith(
        "Cancelled: not wanted; its worker w-1 has not reported its end yet. The job is RUNNING"
    )
