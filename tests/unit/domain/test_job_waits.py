"""Does a job say what it waits for, and what helps?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import DiagnosisContext, QueueWorkers, timeout_ending, unserved, waits_for
from orchestrix.domain.jobs import FAILED, PENDING, RUNNING, TIMED_OUT, JobRow
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.quantities import duration

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=6)
NOBODY = QueueWorkers()


def around(crew: QueueWorkers = NOBODY, led: timedelta | None = timedelta(hours=1), **more: Any) -> DiagnosisContext:
    """What is known where a node leads, at `NOW` for so long."""
    return DiagnosisContext(crew, 30.0, None if led is None else NOW - led, **more)


def pending(**more: Any) -> JobRow:
    """A job that nobody has touched."""
    fields = {"created_by": "ada", "correlation_id": "c", "created_at": NOW, "updated_at": NOW, "wake_at": NOW}
    return JobRow(**{"id": "j", "queue": "reports", "handler": "h", **fields, **more})


DISPATCHED = rules.dispatched(pending(timeout_ms=5000), "h1", NOW).job


CREWS = [
    (QueueWorkers(stopping=1), "queue reports: the last worker is stopping: start another with "),
    (QueueWorkers(0, 1, stopping=2), "queue reports: the last 2 workers are stopping: start another with "),
    (QueueWorkers(), "no worker serves queue reports: start one with "),
    (
        QueueWorkers(1, 2, 12.7),
        "queue reports: its only worker (last heartbeat 12 s ago) is busy, hangs or does not receive it: start more"
        " with ",
    ),
    (
        QueueWorkers(3, 0, 0.5),
        "queue reports: each of its 3 workers (last heartbeat 0 s ago) is busy, hangs or does not receive it: start"
        " more with ",
    ),
    (QueueWorkers(0, 1), "queue reports: the only worker sends no heartbeats any more: start one with "),
    (
        QueueWorkers(0, 2),
        "queue reports: all 2 workers send no heartbeats any more: start one with ",
    ),
]


@pytest.mark.parametrize(("crew", "says"), CREWS)
def test_a_queue_and_a_job_of_it_tell_the_same(crew: QueueWorkers, says: str) -> None:
    known = around(crew)
    cause, fix = unserved("reports", NOW, known)
    assert says.startswith(f"{cause}: start ")
    assert fix == "orchestrix worker --job-queue reports"


def test_of_a_queue_nothing_is_told_that_no_leader_knows() -> None:
    unled = "no leader elected (worker heartbeats are not recorded)"
    assert unserved("reports", NOW, around(QueueWorkers(), None)) == (unled, "orchestrix serve")
    cause, fix = unserved("reports", NOW, around(QueueWorkers(), timedelta(seconds=3)))
    assert cause == "the leader started 3 s ago and has not received worker heartbeats yet"
    assert fix.startswith("wait")


@pytest.mark.parametrize(("crew", "says"), CREWS)
def test_one_that_nobody_begins_names_its_queue_and_what_helps(crew: QueueWorkers, says: str) -> None:
    sentence = f"{says}`orchestrix worker --job-queue reports`"
    assert waits_for(DISPATCHED, LATER, around(crew)) == sentence
    ending = timeout_ending(DISPATCHED, crew)
    message = f"timed out before a worker started it: {sentence}"
    assert (ending.state, ending.error, ending.counts) == (TIMED_OUT, {"type": "Timeout", "message": message}, True)


def test_one_that_was_begun_ends_as_any_other() -> None:
    begun = replace(DISPATCHED, state=RUNNING)
    ending = replace(rules.ATTEMPT_TIMED_OUT, error={"type": "Timeout", "message": "timed out after 5 s"})
    assert timeout_ending(begun, QueueWorkers()) == ending
    assert timeout_ending(replace(begun, timeout_ms=None), QueueWorkers()) == rules.ATTEMPT_TIMED_OUT
    assert waits_for(begun, LATER, around()) is None


BEGUN = replace(DISPATCHED, state=RUNNING, worker_id="w-1", worker_beat_at=NOW, retries=1)


@pytest.mark.parametrize(
    ("job", "seconds", "crew", "says"),
    [
        (BEGUN, 15, QueueWorkers(), None),
        (BEGUN, 16, QueueWorkers(1), "at 12:00:30 UTC this attempt counts as lost and is retried"),
        (
            BEGUN,
            16,
            QueueWorkers(0, 1),
            "at 12:00:30 UTC this attempt counts as lost and is retried, but queue reports: the only worker sends"
            " no heartbeats any more: start one with `orchestrix worker --job-queue reports`",
        ),
        (
            replace(BEGUN, retries=0),
            34,
            QueueWorkers(1),
            "at 12:00:30 UTC this attempt counts as lost and the job fails (no retries left)",
        ),
        (
            BEGUN,
            36,
            QueueWorkers(1),
            "once a live node has listened for 30 s, this attempt counts as lost and is retried",
        ),
        (
            replace(BEGUN, taken_at=NOW + timedelta(seconds=45)),
            60,
            QueueWorkers(1),
            "at 12:01:15 UTC this attempt counts as lost and is retried",
        ),
        (
            replace(BEGUN, cancel_reason="unwanted"),
            20,
            QueueWorkers(1),
            "at 12:00:30 UTC this attempt counts as lost and the job is CANCELLED",
        ),
    ],
)
def test_one_whose_worker_is_silent_says_since_when_and_what_follows(
    job: JobRow, seconds: int, crew: QueueWorkers, says: str | None
) -> None:
    found = waits_for(job, NOW + timedelta(seconds=seconds), around(crew))
    silent = f"no heartbeat from its worker w-1 for {duration(seconds)}: "
    assert found == (None if says is None else silent + says)


@pytest.mark.parametrize(
    ("more", "when"),
    [
        ({"is_read": False}, "once a live node has listened for 30 s,"),
        ({"led": timedelta(seconds=-15)}, "at 12:00:45 UTC"),
    ],
    ids=["its owner is gone too", "the leader is new"],
)
def test_no_silence_counts_that_nobody_could_have_heard(more: dict[str, Any], when: str) -> None:
    found = waits_for(BEGUN, NOW + timedelta(seconds=20), around(QueueWorkers(1), **more))
    silent = "no heartbeat from its worker w-1 for 20 s"
    assert found == f"{silent}: {when} this attempt counts as lost and is retried"


@pytest.mark.parametrize(
    ("crew", "says"),
    [
        (QueueWorkers(1), "its owner node is gone: wait, another node takes it over"),
        (
            QueueWorkers(),
            "no worker serves queue reports: start one with `orchestrix worker --job-queue reports`",
        ),
    ],
)
def test_no_worker_is_called_busy_that_may_have_said_otherwise(crew: QueueWorkers, says: str) -> None:
    assert waits_for(DISPATCHED, LATER, around(crew, is_read=False)) == says


@pytest.mark.parametrize("job", [pending(), DISPATCHED, BEGUN])
@pytest.mark.parametrize("led", [None, timedelta(hours=1)])
def test_without_a_broker_nothing_else_is_blamed(job: JobRow, led: timedelta | None) -> None:
    found = waits_for(job, NOW + timedelta(seconds=20), around(QueueWorkers(0, 1), led=led), "low on memory")
    assert found == "RabbitMQ is unreachable (low on memory): restart the broker; no data is lost"


@pytest.mark.parametrize("job", [pending(), DISPATCHED, BEGUN])
def test_without_a_leader_nothing_else_is_blamed(job: JobRow) -> None:
    found = waits_for(job, NOW + timedelta(seconds=20), around(QueueWorkers(0, 1), led=None))
    assert found is not None
    assert found.startswith("no leader elected (")


@pytest.mark.parametrize(
    ("job", "led", "crew", "says"),
    [
        (pending(), 3, QueueWorkers(), "the leader started 3 s ago and will dispatch it soon"),
        (pending(), 5.1, QueueWorkers(), "not dispatched yet: "),
        (
            DISPATCHED,
            9,
            QueueWorkers(0, 1),
            "the leader started 9 s ago and has not received worker heartbeats yet",
        ),
        (DISPATCHED, 9, QueueWorkers(1), "queue reports: its only worker ("),
        (DISPATCHED, 15, QueueWorkers(), "no worker serves queue reports: "),
        (
            BEGUN,
            9,
            QueueWorkers(0, 1),
            "is retried, but the leader started 9 s ago and has not received",
        ),
    ],
)
def test_a_leader_that_has_only_just_begun_blames_nobody(
    job: JobRow, led: float, crew: QueueWorkers, says: str
) -> None:
    now = NOW + timedelta(seconds=20)
    found = waits_for(job, now, around(crew, led=timedelta(seconds=led - 20)))
    assert says in str(found)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (pending(), "a part of jobs.max_live before workers start its jobs, and no worker serves queue reports"),
        (pending(wake_at=QUEUED_WAKE_AT), "another run of its schedule"),
        (pending(wake_at=LATER), None),
        (pending(state=FAILED, wake_at=None), None),
        (replace(pending(), state=PENDING, wake_at=LATER - timedelta(seconds=5)), None),
    ],
)
def test_what_has_not_been_sent_says_why_if_it_should_have_been(job: JobRow, says: str | None) -> None:
    found = waits_for(job, LATER, around())
    assert found is None if says is None else says in str(found)


def test_a_moment_is_no_wait() -> None:
    assert waits_for(DISPATCHED, NOW + timedelta(seconds=5), around()) is None


def test_what_is_served_waits_for_its_turn() -> None:
    assert "the limit of open jobs (jobs.max_live) is reached" in str(
        waits_for(pending(), LATER, around(QueueWorkers(1)))
    )


def test_an_order_that_is_in_no_queue_is_told() -> None:
    told = str(waits_for(DISPATCHED, NOW + timedelta(minutes=1), around(QueueWorkers(1), is_empty=True)))
    assert "its dispatch is in no queue" in told
    assert "resent within 1 min" in told
