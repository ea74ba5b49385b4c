"""What becomes of due times: those that come in time, those that nobody saw, and those that find a run at work?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.cron import Cron
from orchestrix.domain.schedules import (
    QUEUED_RUNS_LIMIT,
    QUEUED_WAKE_AT,
    DueTimes,
    Firing,
    FiringOutcome,
    Interval,
    Misfire,
    Overlap,
    Schedule,
    ScheduledRun,
    ScheduleState,
    UnfinishedRuns,
    after_firing,
    awaiting,
    faults,
    fire,
    in_turn,
    job_of,
    moment_of,
    released,
    times_of,
)
from orchestrix.errors import Invalid
from orchestrix.saga.commands import NEVER

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
FREE = UnfinishedRuns()
WORKING = UnfinishedRuns(running=1)


def schedule(**more: Any) -> Schedule:
    """One that is due every hour since noon."""
    fields: dict[str, Any] = {
        "id": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
        "name": "nightly",
        "interval_ms": 3_600_000,
        "job": {"queue": "reports", "handler": "report", "payload": {"day": 1}},
        "created_by": "ada",
        "created_at": NOON,
        "updated_at": NOON,
        "due_at": NOON,
        "next_at": NOON,
    }
    return Schedule(**{**fields, **more})


def fired(late: timedelta, busy: UnfinishedRuns = FREE, **more: Any) -> Firing:
    """What becomes of noon if somebody looks so much later."""
    one = schedule(**more)
    return fire(one, times_of(one, UTC), NOON + late, busy)


def test_a_due_time_gets_its_run() -> None:
    assert fired(timedelta(0)) == Firing(NOON, NOON + HOUR, (ScheduledRun(NOON),))


@pytest.mark.parametrize(
    ("overlap", "busy", "expected"),
    [
        (Overlap.SKIP, WORKING, ((), False, FiringOutcome.SKIPPED)),
        (Overlap.SKIP, UnfinishedRuns(ready=1), ((), False, FiringOutcome.SKIPPED)),
        (Overlap.SKIP, UnfinishedRuns(queued=1), ((), False, FiringOutcome.SKIPPED)),
        (Overlap.QUEUE, WORKING, ((ScheduledRun(NOON, queued=True),), False, FiringOutcome.QUEUED)),
        (Overlap.QUEUE, UnfinishedRuns(ready=1), ((ScheduledRun(NOON, queued=True),), False, FiringOutcome.QUEUED)),
        (Overlap.QUEUE, UnfinishedRuns(queued=1), ((ScheduledRun(NOON, queued=True),), False, FiringOutcome.QUEUED)),
        (Overlap.QUEUE, UnfinishedRuns(1, 0, QUEUED_RUNS_LIMIT), ((), False, FiringOutcome.SKIPPED)),
        (Overlap.CANCEL_PREVIOUS, WORKING, ((ScheduledRun(NOON, queued=True),), True, FiringOutcome.QUEUED)),
        (
            Overlap.CANCEL_PREVIOUS,
            UnfinishedRuns(ready=1, queued=1),
            ((ScheduledRun(NOON),), True, FiringOutcome.STARTED),
        ),
        (Overlap.CANCEL_PREVIOUS, UnfinishedRuns(), ((ScheduledRun(NOON),), False, FiringOutcome.STARTED)),
    ],
)
def test_a_run_that_is_at_work(overlap: Overlap, busy: UnfinishedRuns, expected: tuple[Any, ...]) -> None:
    found = fired(timedelta(0), busy, overlap=overlap)
    assert (found.runs, found.cancel, found.outcome) == expected
    assert found.next_due == NOON + HOUR


def test_late_is_not_missed_before_the_threshold() -> None:
    assert fired(MINUTE).runs == (ScheduledRun(NOON),)
    late = fired(MINUTE + timedelta(seconds=1), misfire=Misfire.IGNORE)
    assert (late.runs, late.missed, late.next_due, late.outcome) == ((), NOON, NOON + HOUR, FiringOutcome.MISSED)
    assert fired(HOUR / 2, misfire=Misfire.IGNORE, missed_after_ms=1_800_000).runs == (ScheduledRun(NOON),)


def test_jitter_does_not_count_as_lateness() -> None:
    assert fired(11 * MINUTE, misfire=Misfire.IGNORE, jitter_ms=600_000).runs == (ScheduledRun(NOON),)
    assert fired(11 * MINUTE + timedelta(seconds=1), misfire=Misfire.IGNORE, jitter_ms=600_000).runs == ()


def test_missed_due_times_are_forgotten() -> None:
    found = fired(5 * HOUR + 2 * MINUTE, misfire=Misfire.IGNORE)
    assert (found.runs, found.missed, found.next_due) == ((), NOON + 5 * HOUR, NOON + 6 * HOUR)


def test_one_that_is_late_but_not_missed_is_still_to_come() -> None:
    found = fired(5 * HOUR + MINUTE / 2, misfire=Misfire.IGNORE)
    assert (found.missed, found.next_due) == (NOON + 4 * HOUR, NOON + 5 * HOUR)


def test_one_run_makes_up_for_all_that_were_missed() -> None:
    found = fired(5 * HOUR + 2 * MINUTE)
    assert (found.runs, found.missed, found.next_due) == (
        (ScheduledRun(NOON + 5 * HOUR),),
        NOON + 5 * HOUR,
        NOON + 6 * HOUR,
    )
    assert fired(5 * HOUR + 2 * MINUTE, WORKING).runs == ()
    assert fired(5 * HOUR + 2 * MINUTE, WORKING, overlap=Overlap.QUEUE).runs == (
        ScheduledRun(NOON + 5 * HOUR, queued=True),
    )


def test_missed_runs_are_caught_up_one_after_another() -> None:
    found = fired(5 * HOUR + 2 * MINUTE, misfire=Misfire.CATCH_UP)
    assert found.runs == tuple(ScheduledRun(NOON + n * HOUR, queued=n > 0) for n in range(6))
    assert found.next_due == NOON + 6 * HOUR
    last = fired(5 * HOUR + 2 * MINUTE, WORKING, misfire=Misfire.CATCH_UP, catch_up=2)
    assert last.runs == (ScheduledRun(NOON + 4 * HOUR, queued=True), ScheduledRun(NOON + 5 * HOUR, queued=True))
    assert fired(5 * HOUR + 2 * MINUTE, UnfinishedRuns(1, 0, QUEUED_RUNS_LIMIT), misfire=Misfire.CATCH_UP).runs == ()


def test_years_of_missed_minutes_take_no_time() -> None:
    one = schedule(cron="* * * * *", interval_ms=None, misfire=Misfire.CATCH_UP, catch_up=3)
    now = NOON + timedelta(days=3650)
    found = fire(one, times_of(one, ZoneInfo("Europe/Berlin")), now, UnfinishedRuns())
    assert [run.due_at for run in found.runs] == [now - n * MINUTE for n in (4, 3, 2)]
    assert found.next_due == now - MINUTE


def test_a_schedule_can_end() -> None:
    assert fired(timedelta(0), ends_at=NOON + MINUTE).next_due is None
    assert fired(timedelta(0), ends_at=NOON + HOUR).next_due == NOON + HOUR
    assert awaiting(schedule(), None).state is ScheduleState.ENDED
    assert (schedule().state, schedule(paused_at=NOON).state) == (ScheduleState.ACTIVE, ScheduleState.PAUSED)


@given(
    st.sampled_from(["* 9 1 1 *", "*/5 * * * *", "0 0 1,15 * *", "30 2 * * *", "0 0 29 2 *"]),
    st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)),
    st.timedeltas(timedelta(0), timedelta(days=40)),
)
def test_the_last_due_time_is_found_as_if_all_were_looked_at(expression: str, end: datetime, span: timedelta) -> None:
    times, moment = DueTimes(Cron(expression, ZoneInfo("Europe/Berlin"))), end.replace(tzinfo=UTC)
    since = moment - span
    found = times.last_before(moment, since)
    first = times.since(since)
    if found is None:
        assert first is None or first >= moment
    else:
        assert since <= found < moment
        following = times.after(found)
        assert following is None or following >= moment


def test_an_interval_keeps_its_grid() -> None:
    every = Interval(timedelta(seconds=90), NOON)
    assert every.after(NOON - HOUR) == NOON
    assert every.after(NOON) == NOON + timedelta(seconds=90)
    assert every.after(NOON + timedelta(seconds=89, microseconds=999999)) == NOON + timedelta(seconds=90)
    assert every.after(NOON + timedelta(days=365)) == NOON + timedelta(days=365, seconds=90 - 31536000 % 90)


def test_an_interval_begins_at_its_start_or_a_step_after_its_making() -> None:
    made = schedule(created_at=NOON.replace(microsecond=5))
    assert times_of(made, UTC).after(made.created_at) == NOON + HOUR
    begins = NOON + timedelta(days=1, minutes=5)
    assert times_of(schedule(starts_at=begins), UTC).after(NOON) == begins


def test_a_start_counts_itself() -> None:
    times = DueTimes(Cron("0 * * * *", UTC), starts_at=NOON + HOUR)
    assert (times.after(NOON), times.since(NOON + HOUR)) == (NOON + HOUR, NOON + HOUR)
    assert list(DueTimes(Cron("0 * * * *", UTC), ends_at=NOON + 2 * HOUR).following(NOON)) == [
        NOON + HOUR,
        NOON + 2 * HOUR,
    ]


def test_jitter_is_the_same_for_everybody_and_differs_between_due_times() -> None:
    one = schedule(jitter_ms=60_000)
    drawn = [moment_of(one, NOON + n * HOUR) - (NOON + n * HOUR) for n in range(50)]
    assert drawn == [moment_of(schedule(jitter_ms=60_000), NOON + n * HOUR) - (NOON + n * HOUR) for n in range(50)]
    assert all(timedelta(0) <= late < MINUTE for late in drawn)
    assert len(set(drawn)) == 50
    assert max(drawn) - min(drawn) > MINUTE / 2
    other = schedule(jitter_ms=60_000, id="another")
    assert moment_of(other, NOON) != moment_of(one, NOON)
    assert moment_of(schedule(), NOON) == NOON
    assert awaiting(one, NOON).next_at == moment_of(one, NOON)


def test_a_run_becomes_a_job() -> None:
    job = job_of(schedule(), ScheduledRun(NOON), "j-1", NOON + MINUTE)
    assert (job.queue, job.handler, job.payload, job.state) == ("reports", "report", {"day": 1}, "PENDING")
    assert (job.schedule_id, job.due_at, job.wake_at, job.created_by) == (schedule().id, NOON, NOON + MINUTE, "ada")
    held = job_of(schedule(), ScheduledRun(None, queued=True), "j-2", NOON, by="bob")
    assert (held.due_at, held.wake_at, held.created_by) == (None, QUEUED_WAKE_AT, "bob")
    assert QUEUED_WAKE_AT == NEVER, "lists show it as no time at all"
    free = released(held, NOON)
    assert (free.wake_at, free.version) == (NOON, held.version + 1)


def test_what_was_fired_is_written_down() -> None:
    one = schedule(misfire=Misfire.CATCH_UP, fired=3, trouble="x")
    firing = fire(one, times_of(one, UTC), NOON + HOUR + 2 * MINUTE, UnfinishedRuns())
    jobs = [job_of(one, run, f"j-{n}", NOON) for n, run in enumerate(firing.runs)]
    after = after_firing(one, firing, jobs, NOON + 2 * HOUR)
    assert (after.fired, after.skipped, after.last_job_id, after.trouble) == (5, 0, "j-1", None)
    assert (after.due_at, after.next_at, after.last_due_at) == (NOON + 2 * HOUR, NOON + 2 * HOUR, NOON + HOUR)
    assert after.last_misfire == {
        "from": NOON.isoformat(),
        "to": (NOON + HOUR).isoformat(),
        "at": (NOON + 2 * HOUR).isoformat(),
        "ran": 2,
    }
    skipped = after_firing(one, fire(one, times_of(one, UTC), NOON, WORKING), [], NOON)
    assert (skipped.skipped, skipped.last_outcome, skipped.last_misfire) == (1, FiringOutcome.SKIPPED, None)


def test_runs_in_turn() -> None:
    times = [NOON, NOON + HOUR]
    assert in_turn(times, UnfinishedRuns()) == (ScheduledRun(NOON), ScheduledRun(NOON + HOUR, queued=True))
    assert in_turn(times, UnfinishedRuns(queued=1)) == (
        ScheduledRun(NOON, queued=True),
        ScheduledRun(NOON + HOUR, queued=True),
    )


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({}, []),
        ({"jitter_ms": 3_600_000}, ["jitter"]),
        ({"missed_after_ms": 9_999}, ["missedAfter"]),
        ({"missed_after_ms": 10_000}, []),
        ({"misfire": Misfire.CATCH_UP, "overlap": Overlap.CANCEL_PREVIOUS}, ["misfire"]),
        ({"ends_at": NOON + MINUTE}, ["endsAt"]),
        ({"starts_at": NOON + HOUR, "ends_at": NOON}, ["endsAt"]),
        ({"cron": "0 0 * * *", "interval_ms": None, "jitter_ms": 3_600_000}, []),
    ],
)
def test_what_does_not_fit_together_is_named(more: dict[str, Any], fields: list[str]) -> None:
    one = schedule(**more)
    assert [field for field, _ in faults(one, times_of(one, UTC), NOON)] == fields


def test_a_schedule_needs_a_time() -> None:
    with pytest.raises(Invalid, match="cron or interval"):
        times_of(schedule(interval_ms=None), UTC)
