"""Is a step that failed tried again, as often and as late as its policy says?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import FAILED, RetryPolicy, Saga
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.advance import advance
from orchestrix.saga.commands import MAX_REASON, TransitionInputs
from orchestrix.saga.messages import StepError
from orchestrix.saga.retry import MAX_RETRY_AFTER
from orchestrix.saga.state import StateChange
from tests.unit.sagas.builders import CORRELATION, FIRST, FOR_GOOD, NOW, SECOND, THIRD, began, failure, moved, step
from tests.unit.sagas.runs import AGAIN, Run


def error(**changes: object) -> StepError:
    """A retryable failure with `changes`."""
    return replace(AGAIN, **changes)  # type: ignore[arg-type]


# The wait.


@pytest.mark.parametrize(
    ("tries", "chance", "seconds"),
    [(1, 0.0, 0), (1, 0.5, 1), (1, 0.999, 1.998), (2, 0.5, 2), (3, 0.5, 4), (4, 0.5, 5), (9, 1.0, 10), (10**9, 0.1, 1)],
)
def test_waits_are_drawn_from_a_span_that_doubles_up_to_its_cap(tries: int, chance: float, seconds: float) -> None:
    policy = RetryPolicy(base=timedelta(seconds=2), cap=timedelta(seconds=10))
    assert policy.wait(tries, chance) == timedelta(seconds=seconds)


def test_policy_of_who_names_none() -> None:
    assert RetryPolicy() == RetryPolicy(5, timedelta(seconds=1), timedelta(minutes=5), ())
    assert RetryPolicy().wait(10**6, 1.0) == timedelta(minutes=5)


def test_a_policy_without_waits_tries_again_at_once() -> None:
    saga = Saga("x", (step(retry=RetryPolicy(2, timedelta(0), timedelta(0))),))
    result = moved(saga, began(saga).instance, failure(FIRST))
    assert (result.instance.wake_at, result.instance.wait_ms) == (result.instance.updated_at, 0)


# One failure.


@pytest.mark.req("S3-42")
def test_a_retryable_failure_has_its_next_attempt_at_once_and_its_command_later() -> None:
    run = Run()
    run.fails(AGAIN)
    one = run.instance
    row = StateChange(
        2, "FLYING", "FLYING", "retry 2: evt.stepFailed: Busy: come back later", "orchestrator", CORRELATION, "event-1",
        SECOND, run.now, "attempt_failed", "flight", "evt.stepFailed", "event-1", "Busy", "Busy: come back later",
    )  # fmt: skip
    assert run.history[1:] == [row]
    assert (one.state, one.version, one.command_id, one.attempt, one.tries) == ("FLYING", 2, SECOND, 2, 2)
    assert (one.wake_reason, run.wait, one.wait_ms, one.blocker) == ("retry", 1.0, 1000, None)
    assert one.progress.sent == (FIRST,)
    assert one.progress.error == "evt.stepFailed: Busy: come back later"
    assert run.types == ["flight"], "not before its time"
    run.expires()
    assert [(command.id, command.attempt, command.idempotency_key) for command in run.sent] == [
        (FIRST, 1, "trip:7:flight:do"),
        (SECOND, 2, "trip:7:flight:do"),
    ]
    assert (run.instance.wake_reason, run.wait, run.instance.version) == ("deadline", 10.0, 2)


def test_the_wait_depends_on_chance_up_to_its_cap() -> None:
    waits = []
    for chance in (0.0, 0.25, 0.999):
        first = advance(Run().saga, Run().instance, failure(FIRST), TransitionInputs(NOW, SECOND, chance))
        waits.append(first.instance.wait_ms)  # type: ignore[union-attr]
    assert waits == [0, 500, 1998]


@pytest.mark.parametrize(
    ("wish", "wait"),
    [(0, 0), (1, 1), (250, 250), (86_400_000, 86_400_000), (2**53 - 1, MAX_RETRY_AFTER // timedelta(milliseconds=1))],
)
def test_a_worker_says_when_to_come_back_within_a_month(wish: int, wait: int) -> None:
    run = Run()
    run.fails(error(retry_after_ms=wish))
    assert (run.instance.wake_reason, run.instance.wait_ms) == ("retry", wait)


@pytest.mark.parametrize("why", [FOR_GOOD, error(type="SoldOut"), error(type="SoldOut", retry_after_ms=5)])
def test_what_is_not_worth_another_try_ends_the_run(why: StepError) -> None:
    run = Run()
    run.fails(why)
    assert (run.state, run.rows[-1][2]) == (FAILED, f"evt.stepFailed: {why.type}: {why.message}")


def test_reasons_fit_into_history() -> None:
    run = Run()
    run.fails(error(message="é" * 9000))
    assert run.history[-1].reason.startswith("retry 2: evt.stepFailed: Busy: éé")
    assert len(run.history[-1].reason) == MAX_REASON


# The budget.


@pytest.mark.req("S3-32", "S3-42")
def test_a_step_is_tried_as_often_as_its_policy_says() -> None:
    run = Run()
    waits = []
    for _ in range(2):
        run.fails(AGAIN)
        waits.append(run.instance.wait_ms)
        run.expires()
    assert waits == [1000, 1500], "half of 2 s, half of the cap"
    run.fails(AGAIN)
    assert [command.attempt for command in run.sent] == [1, 2, 3]
    assert run.rows[1:] == [
        ("FLYING", "FLYING", "retry 2: evt.stepFailed: Busy: come back later"),
        ("FLYING", "FLYING", "retry 3: evt.stepFailed: Busy: come back later"),
        ("FLYING", FAILED, "evt.stepFailed: Busy: come back later"),
    ]


def test_failures_and_deadlines_share_the_budget() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.fails(AGAIN)
    run.expires()
    run.expires()
    assert [row[2] for row in run.rows[1:3]] == ["retry 2: deadline", "retry 3: evt.stepFailed: Busy: come back later"]
    assert run.state == "COMPENSATING", "an attempt that nobody answered may have done its work"


def test_each_step_has_a_budget_of_its_own() -> None:
    run = Run()
    for name in ("flight", "notice", "hotel"):
        for _ in range(2):
            run.fails(AGAIN)
            run.expires()
        assert run.instance.tries == 3
        run.done(name)
        assert (run.instance.tries, run.instance.attempt) == (1, 1)
    assert (run.state, run.instance.progress.sent, run.instance.progress.unanswered) == ("DRIVING", (), False)
    assert run.instance.progress.attempts == {"flight": 3, "notice": 3, "hotel": 3}


def test_a_good_run_has_nothing_to_remember() -> None:
    run = Run()
    for name in ("flight", "notice", "hotel", "car"):
        run.done(name)
    assert run.state == "COMPLETED"
    assert run.instance.progress.to_json() is None


# Over runs.


def failed_twice() -> Run:
    """A run that has ended after two tries of its first step."""
    run = Run()
    run.fails(AGAIN)
    run.expires()
    run.fails(FOR_GOOD)
    return run


def test_attempts_rise_over_runs_and_the_budget_begins_anew() -> None:
    run = failed_twice()
    run.asks(SagaAction.RETRY)
    assert (run.state, run.instance.attempt, run.instance.tries, run.instance.command_id) == ("FLYING", 3, 1, THIRD)
    for attempt in (4, 5):
        run.fails(AGAIN)
        assert run.instance.attempt == attempt
        run.expires()
    run.fails(AGAIN)
    assert run.state == FAILED
    assert [command.attempt for command in run.sent] == [1, 2, 3, 4, 5]
    assert len({command.id for command in run.sent}) == 5


def test_the_attempts_of_what_was_passed_count_too() -> None:
    run = Run()
    run.fails(AGAIN)
    run.expires()
    run.done("flight")
    run.fails()  # the notice
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    assert run.instance.attempt == 3
    run.done("flight")
    assert run.instance.attempt == 2


# Late answers.


@pytest.mark.parametrize("late", [FIRST, SECOND])
def test_late_success_of_an_earlier_try_counts(late: str) -> None:
    run = Run()
    run.expires()
    run.expires()
    run.expires()
    assert run.instance.command_id == THIRD
    run.done("flight", causation_id=late)
    assert (run.state, run.instance.command_id, run.instance.attempt) == ("NOTICING", "command-4", 1)
    assert run.instance.progress.attempts == {"flight": 3}
    assert not run.instance.progress.unanswered


def test_success_counts_while_the_next_try_waits_for_its_time() -> None:
    run = Run()
    run.expires()
    assert run.instance.wake_reason == "retry"
    run.done("flight", causation_id=FIRST)
    assert (run.state, run.instance.wake_reason) == ("NOTICING", "deadline")


def test_success_that_names_no_command_counts_while_only_one_was_sent() -> None:
    run = Run()
    assert run.done("flight", causation_id=None) is None
    run.fails(AGAIN)
    assert run.done("notice", causation_id=None) == "ambiguous"


def test_late_success_of_an_earlier_run_does_not_count() -> None:
    run = failed_twice()
    run.asks(SagaAction.RETRY)
    assert [run.done("flight", causation_id=former) for former in (FIRST, SECOND)] == ["unknown-causation"] * 2
    assert run.done("flight", causation_id=THIRD) is None


def test_late_and_repeated_failures_do_not_count() -> None:
    run = Run()
    run.fails(AGAIN)
    assert run.fails(AGAIN, causation_id=FIRST) == "failure-of-another-attempt"
    run.expires()
    assert run.fails(FOR_GOOD, causation_id=FIRST) == "failure-of-another-attempt"
    assert run.fails(FOR_GOOD, causation_id=None) == "failure-without-causation"
    assert run.instance.tries == 2
