"""Does the time of a step count from when its work begins, however long its command waits in its queue?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrix import COMPLETED, HOLD, Compensation, DefinitionError, Job, Saga, Step
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.commands import NEVER, SagaTransition, command_for, sent_exactly
from orchestrix.saga.messages import MAX_ID, StepStarted, UnreadableMessage, started
from orchestrix.saga.state import Instance
from orchestrix.saga.timeouts import PREFETCH_ALLOWANCE, SENT_ORDER_TOLERANCE, TimerRescheduled, begin
from tests.unit.sagas.builders import NOW, step
from tests.unit.sagas.runs import AGAIN, TRIP, Run

TEN = timedelta(seconds=10)
FAR = datetime(2099, 1, 1, tzinfo=UTC)
"""A queue that has messages whenever it is looked at."""


def limited(queue_timeout: float, **more: object) -> Saga:
    """The trip, whose flight may wait so many seconds in its queue."""
    wait = timedelta(seconds=queue_timeout)
    return replace(TRIP, steps=(replace(TRIP.steps[0], queue_timeout=wait, **more), *TRIP.steps[1:]))  # type: ignore[arg-type]


def waits(run: Run, seconds: float = 10) -> None:
    """The instance has been given more time, and nothing else has changed."""
    assert (run.instance.wake_reason, run.wait, run.instance.sent_at) == ("backlog", seconds, NOW)
    assert (run.instance.version, run.instance.attempt, len(run.sent)) == (1, 1, 1)


def test_a_command_behind_others_waits_however_long_that_takes() -> None:
    run = Run()
    for _ in range(100):
        assert isinstance(run.expires(waiting=FAR), TimerRescheduled)
        waits(run)
    run.done("flight")
    assert run.state == "NOTICING"


def test_one_that_has_begun_expires() -> None:
    run = Run()
    run.instance = replace(run.instance, begun_id=run.instance.command_id)
    run.expires(waiting=FAR)
    assert run.rows[-1][2] == "retry 2: deadline"


def test_the_begin_of_an_earlier_command_says_nothing() -> None:
    run = Run()
    run.instance = replace(run.instance, begun_id="an-earlier-one")
    run.expires(waiting=FAR)
    waits(run)


@pytest.mark.parametrize("begun", [False, True])
def test_one_that_was_set_aside_since_its_workers_died_waits_behind_later_ones(begun: bool) -> None:
    run = Run()
    run.instance = replace(run.instance, begun_id=run.instance.command_id if begun else None)
    for _ in range(3):
        assert run.instance.wake_at is not None
        run.expires(begun=NOW + timedelta(hours=1), aside=run.instance.wake_at - timedelta(seconds=9))
        waits(run)
    assert run.instance.wake_at is not None
    run.expires(begun=NOW + timedelta(hours=1), aside=run.instance.wake_at - timedelta(seconds=11))
    assert run.rows[-1][2] == "retry 2: deadline", "that was noted too long ago"


@pytest.mark.parametrize(
    ("later", "waited"), [(timedelta(0), True), (SENT_ORDER_TOLERANCE, True), (SENT_ORDER_TOLERANCE * 1.01, False)]
)
def test_one_that_was_overtaken_has_left_its_queue(later: timedelta, waited: bool) -> None:
    """Whatever was sent at about the same time may stand before it or behind it."""
    run = Run()
    run.expires(waiting=FAR, begun=NOW + later)
    assert (run.instance.wake_reason == "backlog") is waited
    run = Run()
    for _ in range(3):
        run.expires(waiting=FAR)
    run.expires(waiting=FAR, begun=NOW + later)
    assert (run.instance.wake_reason == "backlog") is waited, "when it was sent is kept over the waits"


def test_one_whose_queue_is_empty_expires() -> None:
    run = Run()
    run.expires(waiting=None)
    assert run.rows[-1][2] == "retry 2: deadline"
    run = Run()
    run.expires(waiting=NOW - PREFETCH_ALLOWANCE)
    assert run.rows[-1][2] == "retry 2: deadline"


def test_one_that_was_taken_a_moment_ago_can_still_say_that_it_begins() -> None:
    run = Run()
    run.expires(waiting=NOW + timedelta(seconds=7))
    waits(run, 7)
    run.expires(waiting=NOW + timedelta(seconds=7))
    assert run.rows[-1][2] == "retry 2: deadline"


def test_a_short_step_may_be_held_ahead_for_longer_than_it_takes() -> None:
    """A worker of one place holds a second's worth of commands: the last of them begins after its own time."""
    quick = replace(TRIP, steps=(replace(TRIP.steps[0], timeout=timedelta(seconds=1)), *TRIP.steps[1:]))
    run = Run(quick)
    run.expires(waiting=NOW)
    waits(run, 2)
    run.expires(waiting=NOW)
    assert run.rows[-1][2] == "retry 2: deadline"


def test_a_retry_counts_from_its_own_sending() -> None:
    """Its id is older: it was made when the failure was accepted."""
    run = Run()
    run.fails(AGAIN)
    made = run.now
    run.passes(3600)
    run.expires()
    sent = run.now
    assert run.instance.sending == sent > made
    run.expires(waiting=FAR, begun=sent - timedelta(seconds=60))
    assert (run.instance.wake_reason, run.instance.sent_at) == ("backlog", sent)
    assert run.instance.command_id == run.sent[-1].id


@pytest.mark.parametrize("how", ["unsent", "unheard"])
def test_an_outage_is_told_before_the_queue(how: str) -> None:
    run = Run()
    run.expires(waiting=FAR, **{how: True})  # type: ignore[arg-type]
    assert run.instance.wake_reason in ("unsent", "no_consumer")


def test_when_a_command_was_sent_outlasts_other_reasons() -> None:
    run = Run()
    run.expires(unheard=True)
    run.expires(waiting=FAR)
    waits(run)


# How long it may wait.


def test_a_wait_can_have_a_limit_of_its_own() -> None:
    run = Run(limited(25), data={"amount": 1})
    run.expires(waiting=FAR)
    waits(run)
    run.expires(waiting=FAR)
    waits(run, 5)
    run.expires(waiting=FAR)
    assert run.rows[-1] == ("FLYING", "FAILED", "QueueTimeout: no worker started cmd.flight within 25 s")
    assert run.types == ["flight"], "it is not tried again, and there is nothing to undo"
    assert run.instance.progress.refused == ("flight",)


def test_the_limit_is_looked_at_when_the_step_s_time_has_passed() -> None:
    run = Run(limited(1))
    assert run.wait == 10
    run.expires(waiting=FAR)
    assert run.state == "FAILED"


def test_what_succeeds_after_all_is_undone() -> None:
    run = Run(limited(1))
    command = run.instance.command_id
    run.expires(waiting=FAR)
    run.done("flight", causation_id=command)
    assert run.types == ["flight", "drop-flight"]


def test_a_try_before_it_may_have_done_something() -> None:
    run = Run(limited(1))
    run.expires()
    run.expires()
    run.expires(waiting=FAR)
    assert (run.state, run.types) == ("COMPENSATING", ["flight", "flight", "drop-flight"])


def test_the_limit_is_none_of_the_work() -> None:
    run = Run(limited(1))
    run.instance = replace(run.instance, begun_id=run.instance.command_id)
    run.expires(waiting=FAR)
    assert run.rows[-1][2] == "retry 2: deadline"


def test_a_step_that_is_held_when_it_fails_is_held_then_too() -> None:
    run = Run(limited(1, on_failure=HOLD))
    run.expires(waiting=FAR)
    assert (run.state, run.instance.blocker) == ("FLYING", "held")


def test_an_undo_has_such_a_limit_too() -> None:
    undo = Compensation("cmd.drop-flight", "evt.flightDropped", timeout=TEN, queue_timeout=timedelta(seconds=15))
    run = Run(replace(TRIP, steps=(replace(TRIP.steps[0], undo=undo), *TRIP.steps[1:])), "flight")
    run.fails()
    run.expires(waiting=FAR)
    run.expires(waiting=FAR)
    assert (run.state, run.instance.blocker) == ("COMPENSATION_FAILED", "undo_failed")
    assert run.rows[-1][2] == "QueueTimeout: no worker started cmd.drop-flight within 15 s"


def test_the_run_s_own_time_ends_the_wait() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=25)))
    run.expires(waiting=FAR)
    run.expires(waiting=FAR)
    assert run.wait == 5
    run.expires(waiting=FAR)
    assert run.rows[-1] == ("FLYING", "COMPENSATING", "deadline")


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(days=5000), 3, "5m"])
def test_a_limit_that_cannot_be(wrong: object) -> None:
    with pytest.raises(DefinitionError, match="queue_timeout"):
        Saga("x", steps=(step(queue_timeout=wrong),))
    with pytest.raises(DefinitionError, match="queue_timeout"):
        Saga("x", steps=(step(undo=Compensation("cmd.undo", "evt.undone", queue_timeout=wrong)),))  # type: ignore[arg-type]


def test_a_job_waits_in_a_queue_of_its_own() -> None:
    with pytest.raises(DefinitionError, match="leave queue_timeout= out"):
        Saga("x", steps=(step(command="", job=Job("report"), queue_timeout=TEN),))


def test_the_begin_of_every_step_is_no_success() -> None:
    with pytest.raises(DefinitionError, match=r"evt\.stepStarted is the start of every step"):
        Saga("x", steps=(step(event="evt.stepStarted"),))


# The begin.


def begun(run: Run, ago_ms: int = 0, wait_ms: int = 10_000) -> Instance:
    """The instance once its work has begun."""
    found = begin(run.saga, run.instance, ago_ms, run.now)
    assert found is not None
    assert (found.begun, found.wake_reason, found.wait_ms) == (True, "deadline", wait_ms)
    assert (found.version, found.state, found.progress) == (run.instance.version, run.state, run.instance.progress)
    return found


def test_the_time_counts_from_the_begin() -> None:
    run = Run()
    for _ in range(6):
        run.expires(waiting=FAR)
    assert begun(run, 4000).wake_at == run.now + timedelta(seconds=6)


@pytest.mark.parametrize("ago", [60_000, MAX_ID])
def test_nothing_begins_before_it_was_made(ago: int) -> None:
    run = Run()
    run.passes(5)
    assert begun(run, ago).wake_at == NOW + TEN


def test_nor_where_its_wait_was_put_off() -> None:
    run = Run()
    run.expires(waiting=FAR)
    assert begun(run, MAX_ID).wake_at == NOW + TEN


def test_a_second_worker_that_begins_has_the_whole_time() -> None:
    run = Run()
    run.instance = begun(run)
    run.passes(9)
    assert begun(run).wake_at == run.now + TEN


def test_more_time_that_a_person_has_given_stays() -> None:
    run = Run()
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(hours=1))
    assert begun(run, wait_ms=0).wake_at == run.instance.wake_at, "a time that a person named has no length"
    run.asks(SagaAction.CANCEL_DEADLINE)
    assert begun(run, wait_ms=0).wake_at == NEVER


def test_so_does_that_which_was_given_while_it_waited_behind_others() -> None:
    run = Run()
    run.expires(waiting=FAR)
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(hours=1))
    assert (run.instance.wake_reason, run.instance.wait_ms) == ("backlog", 0)
    assert begun(run, wait_ms=0).wake_at == run.instance.wake_at


def test_the_run_s_own_time_stays() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=15)))
    run.passes(9)
    assert begun(run).wake_at == NOW + timedelta(seconds=15)


def test_a_cancelled_saga_outlives_the_work_that_has_begun() -> None:
    run = Run()
    run.passes(8)
    run.asks(SagaAction.CANCEL)
    assert run.instance.progress.awaited == "flight"
    assert begun(run).wake_at == run.now + TEN


def test_what_is_held_does_not_begin() -> None:
    run = Run()
    run.asks(SagaAction.PAUSE)
    assert begin(run.saga, run.instance, 0, run.now) is None
    run = Run()
    run.fails(AGAIN)
    assert begin(run.saga, run.instance, 0, run.now) is None, "it waits for its next try"
    run = Run()
    run.fails()
    assert run.state == "FAILED"
    assert begin(run.saga, run.instance, 0, run.now) is None
    job = Saga("x", steps=(step(command="", job=Job("report")),))
    run = Run(job)
    assert begin(run.saga, run.instance, 0, run.now) is None


# What is known for sure of when a command was sent.


def test_of_a_command_that_was_sent_once_it_is_known_when() -> None:
    run = Run()
    assert sent_exactly(run.saga, run.instance) == ("cmd.flight", NOW)
    run.expires(waiting=FAR)
    assert sent_exactly(run.saga, run.instance) == ("cmd.flight", NOW)


def test_of_others_it_is_not() -> None:
    run = Run()
    run.instance = begun(run)
    assert sent_exactly(run.saga, run.instance) is None, "that is when it began"
    run = Run()
    run.asks(SagaAction.SET_DEADLINE, extend_by=TEN)
    assert sent_exactly(run.saga, run.instance) is None
    run = Run()
    run.asks(SagaAction.CANCEL_DEADLINE)
    assert sent_exactly(run.saga, run.instance) is None
    run = Run()
    run.asks(SagaAction.PAUSE)
    assert sent_exactly(run.saga, run.instance) is None
    run.asks(SagaAction.RESUME)
    assert sent_exactly(run.saga, run.instance) is None, "there may be two copies"
    run = Run()
    run.fails(AGAIN)
    assert sent_exactly(run.saga, run.instance) is None, "it has not been sent"


# On the wire.


def test_a_command_has_no_more_time_than_the_run() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=15)))
    assert run.sent[0].timeout_ms == 10_000
    run.passes(8)
    run.done("flight")
    assert (run.sent[-1].timeout_ms, run.wait) == (6000, 6)
    again = command_for(run.saga, run.instance, run.now + timedelta(seconds=4))
    assert again is not None
    assert again.timeout_ms == 2000, "sent again it has what is left then"
    late = command_for(run.saga, run.instance, run.now + timedelta(hours=4))
    assert late is not None
    assert late.timeout_ms == 1


def test_a_first_command_has_no_more_time_than_the_run() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=3)))
    assert (run.sent[0].timeout_ms, run.wait) == (3000, 3)


def test_a_retry_has_no_more_time_than_the_run() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=14)))
    run.passes(7)
    run.fails(AGAIN)
    run.expires()
    assert run.sent[-1].attempt == 2
    assert run.sent[-1].timeout_ms == (NOW + timedelta(seconds=14) - run.now) // timedelta(milliseconds=1) < 10_000


def test_a_begin_is_read() -> None:
    body = b'{"appId": 7, "correlationId": "c", "causationId": "m", "beganMsAgo": 1200, "type": "x", "more": 1}'
    assert started(body) == StepStarted(7, "c", "m", None, 1200)
    assert started(b'{"appId": "7", "causationId": "m", "saga": "trip"}', "c") == StepStarted(7, "c", "m", "trip", 0)
    for ago, read in (("-5", 0), ("2.9", 2), ("1e300", MAX_ID)):
        assert started(b'{"appId": 7, "correlationId": "c", "causationId": "m", "beganMsAgo": %s}' % ago.encode()) == (
            StepStarted(7, "c", "m", None, read)
        )


@pytest.mark.parametrize(
    "body",
    [
        b'{"appId": 7, "correlationId": "c"}',
        b'{"appId": 7, "causationId": "m"}',
        b'{"correlationId": "c", "causationId": "m"}',
        b'{"appId": 7, "correlationId": "c", "causationId": "m", "beganMsAgo": "now"}',
        b'{"appId": 7, "correlationId": "c", "causationId": "m", "beganMsAgo": true}',
        b"[]",
    ],
)
def test_a_begin_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        started(body)


def test_what_is_moved_on_by_a_stranger_s_row_is_no_sending() -> None:
    """A row of before these columns were there."""
    run = Run()
    run.instance = replace(run.instance, wake_reason="no_consumer")
    assert run.instance.sending is None
    assert isinstance(run.expires(waiting=FAR), TimerRescheduled)
    assert run.instance.sent_at == run.now, "at the latest now"
    assert Step("a", "A", "cmd.a", "evt.a", COMPLETED, undo=TRIP.steps[1].undo).queue_timeout is None
    assert isinstance(run.expires(), SagaTransition)
