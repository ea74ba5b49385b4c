"""What does a wake-up do, and what is no saga's fault?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import FAILED, Saga
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.commands import SagaTransition
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import Instance
from orchestrix.saga.timeouts import TimerRescheduled, begin
from tests.unit.sagas.builders import FIRST, NOW, SECOND, began
from tests.unit.sagas.runs import AGAIN, TRIP, Run

HURRIED = replace(TRIP, timeout=timedelta(seconds=25))
BACK = "COMPENSATING"


# A deadline that passes.


def test_a_deadline_is_a_failure_that_is_worth_another_try() -> None:
    run = Run()
    result = run.expires()
    assert isinstance(result, SagaTransition)
    assert result.command is None
    assert run.rows[1:] == [("FLYING", "FLYING", "retry 2: deadline")]
    one = run.instance
    assert (one.wake_reason, one.attempt, one.command_id, one.progress.unanswered) == ("retry", 2, SECOND, True)
    assert run.history[-1].caused_by is None
    assert run.history[-1].actor == "orchestrator"


def test_a_deadline_ends_a_run_whose_tries_are_used_up() -> None:
    run = Run(TRIP, "flight")
    for _ in range(5):
        run.expires()
    assert run.rows[3:] == [
        ("NOTICING", "NOTICING", "retry 2: deadline"),
        ("NOTICING", "NOTICING", "retry 3: deadline"),
        ("NOTICING", BACK, "deadline"),
    ]


def test_a_due_retry_is_sent_and_history_is_silent() -> None:
    run = Run()
    run.fails(AGAIN)
    before = run.instance
    result = run.expires()
    assert isinstance(result, TimerRescheduled)
    assert result.instance == replace(
        before, wake_reason="deadline", wake_at=run.now + timedelta(seconds=10), wait_ms=10_000
    )
    assert result.command is not None
    assert (result.command.id, result.command.attempt) == (SECOND, 2)


@pytest.mark.parametrize("around", [{"unsent": True}, {"unheard": True}, {"since": NOW + timedelta(days=1)}])
def test_a_due_retry_is_sent_whatever_is_around(around: dict[str, bool]) -> None:
    run = Run()
    run.fails(AGAIN)
    result = run.expires(**around)  # type: ignore[arg-type]
    assert isinstance(result, TimerRescheduled)
    assert result.command is not None


# What explains a delay.


@pytest.mark.parametrize(
    ("around", "reason", "seconds"),
    [
        ({"unsent": True}, "unsent", 10),
        ({"unheard": True}, "no_consumer", 10),
        ({"unsent": True, "unheard": True}, "unsent", 10),
    ],
)
def test_what_no_worker_could_do_extends_the_wait(around: dict[str, bool], reason: str, seconds: float) -> None:
    run = Run()
    before = run.instance
    for _ in range(3):
        result = run.expires(**around)  # type: ignore[arg-type]
        assert isinstance(result, TimerRescheduled)
        assert result.command is None
        assert (run.instance.wake_reason, run.wait, run.instance.wait_ms) == (reason, seconds, seconds * 1000)
    assert run.instance.hindered_by == reason
    kept: dict[str, Any] = {"wake_at": None, "wake_reason": None, "sent_at": None, "hindered_by": None}
    assert replace(run.instance, **kept) == replace(before, **kept)
    assert len(run.history) == 1


@pytest.mark.parametrize(("around", "reason"), [("since", "broker_down"), ("served", "no_consumer")])
@pytest.mark.parametrize(("ago", "wait"), [(0, 10), (4, 6), (9.5, 0.5)])
def test_what_began_late_gives_the_step_s_time_from_then(around: str, reason: str, ago: float, wait: float) -> None:
    """Of hearing answers, or of having a consumer."""
    run = Run()
    run.now = NOW + timedelta(seconds=99)
    late: dict[str, Any] = {around: NOW + timedelta(seconds=100 - ago)}
    run.expires(**late)
    assert (run.instance.wake_reason, run.wait, run.instance.wait_ms) == (reason, wait, wait * 1000)


def test_the_later_of_both_excuses_counts() -> None:
    run = Run()
    run.now = NOW + timedelta(seconds=99)
    run.expires(since=NOW + timedelta(seconds=95), served=NOW + timedelta(seconds=97))
    assert (run.instance.wake_reason, run.wait) == ("broker_down", 5)
    run.expires(since=NOW + timedelta(seconds=95), served=NOW + timedelta(seconds=97))
    assert (run.instance.wake_reason, run.wait) == ("no_consumer", 2)
    result = run.expires(since=NOW + timedelta(seconds=95), served=NOW + timedelta(seconds=97))
    assert isinstance(result, SagaTransition)


def test_who_has_listened_for_the_step_s_time_may_judge() -> None:
    run = Run()
    result = run.expires(since=NOW, served=NOW)
    assert isinstance(result, SagaTransition)


def test_the_excuse_ends_when_its_reason_ends() -> None:
    run = Run()
    run.expires(unheard=True)
    run.expires()
    assert run.rows[1:] == [("FLYING", "FLYING", "retry 2: deadline")]


def test_undo_has_the_same_excuses() -> None:
    run = Run(TRIP, "flight")
    run.fails()
    run.expires(unheard=True)
    assert (run.state, run.instance.wake_reason, run.wait) == (BACK, "no_consumer", 20.0)
    run.expires()
    assert run.rows[-1][2] == "retry 2: deadline"


def test_an_undo_waits_for_no_answer_longer_than_its_deadline() -> None:
    run = Run(TRIP, "flight")
    run.done("notice")
    run.asks(SagaAction.CANCEL)
    run.passes(100)
    assert isinstance(run.expires(since=run.now), SagaTransition)
    assert run.types[-1] == "drop-hotel"


# The time of the whole run.


def test_no_wait_reaches_beyond_the_run_s_time() -> None:
    short = Saga("x", TRIP.steps, TRIP.immediate, timeout=timedelta(seconds=4))
    one = began(short).instance
    assert one.deadline_at == one.wake_at == NOW + timedelta(seconds=4)
    assert one.wait_ms == 4000
    assert began(HURRIED).instance.wake_at == NOW + timedelta(seconds=10)
    run = Run(HURRIED, "flight")
    run.passes(10)
    run.done("notice")
    run.passes(6)
    run.fails(AGAIN)
    assert run.instance.wake_reason == "retry"
    run.expires()
    assert (run.instance.wake_at, run.instance.wait_ms < 10_000) == (NOW + timedelta(seconds=25), True)


def over() -> Run:
    """A run whose own time is over while its second step is out."""
    run = Run(HURRIED, "flight")
    run.passes(22)
    return run


def test_the_end_of_the_run_s_time_is_final() -> None:
    run = over()
    run.expires()
    assert run.instance.deadline_at is None, "undo is not hurried"
    assert run.rows[3:] == [("NOTICING", BACK, "deadline")]
    assert run.instance.wake_at == run.now + timedelta(seconds=20)


def test_the_end_of_the_run_s_time_overtakes_a_retry() -> None:
    run = Run(HURRIED)
    run.fails(replace(AGAIN, retry_after_ms=60_000))
    assert (run.instance.wake_reason, run.instance.wake_at) == ("retry", NOW + timedelta(seconds=25))
    run.expires()
    assert run.rows[-1] == ("FLYING", FAILED, "deadline")


@pytest.mark.parametrize("around", [{"unsent": True}, {"unheard": True}, {"since": NOW + timedelta(days=1)}])
def test_an_outage_does_not_end_a_run(around: dict[str, bool]) -> None:
    run = over()
    assert isinstance(run.expires(**around), TimerRescheduled)  # type: ignore[arg-type]
    run.done("notice")
    assert run.state == "SLEEPING"


def test_a_new_run_has_its_whole_time() -> None:
    run = Run(HURRIED)
    run.fails()
    assert run.instance.deadline_at is None
    run.passes(1000)
    run.asks(SagaAction.RETRY)
    assert run.instance.deadline_at == run.now + timedelta(seconds=25)


def test_a_run_without_end_has_no_deadline() -> None:
    assert began(TRIP).instance.deadline_at is None


# Deadlines by hand.


@pytest.mark.parametrize(
    ("more", "wait"),
    [
        ({"at": NOW + timedelta(seconds=31)}, 30),
        ({"extend_by": timedelta(seconds=60)}, 69),
        ({"extend_by": timedelta(seconds=-4)}, 5),
        ({"at": NOW + timedelta(seconds=1)}, 0),
    ],
)
def test_a_person_moves_a_deadline(more: dict[str, object], wait: float) -> None:
    run = Run()
    acted = run.asks(SagaAction.SET_DEADLINE, **more)
    assert run.rows[1:] == [("FLYING", "FLYING", "set-deadline: because")]
    assert (run.instance.wake_reason, run.wait, run.instance.wait_ms) == ("deadline", wait, 0)  # it began at no sending
    assert (acted.command, acted.withdrawn) == (None, None)


def test_a_person_moves_a_retry() -> None:
    run = Run()
    run.fails(AGAIN)
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(hours=1))
    assert (run.instance.wake_reason, run.wait, run.instance.wait_ms) == ("retry", 3600.0, 3_600_000)


def test_the_same_time_again_changes_nothing() -> None:
    run = Run()
    assert run.asks(SagaAction.SET_DEADLINE, at=run.instance.wake_at).history == ()
    assert run.asks(SagaAction.SET_DEADLINE).history == ()
    assert run.instance.version == 1


def test_a_deadline_moved_beyond_the_run_s_time_moves_that_too() -> None:
    run = Run(HURRIED)
    run.asks(SagaAction.SET_DEADLINE, at=NOW + timedelta(seconds=15))
    assert run.instance.deadline_at == NOW + timedelta(seconds=25)
    run.asks(SagaAction.SET_DEADLINE, at=NOW + timedelta(seconds=99))
    assert run.instance.wake_at == run.instance.deadline_at == NOW + timedelta(seconds=99)


def test_a_cancelled_deadline_never_comes() -> None:
    run = Run(HURRIED)
    run.asks(SagaAction.CANCEL_DEADLINE)
    assert run.rows[1:] == [("FLYING", "FLYING", "cancel-deadline: because")]
    one: Instance = run.instance
    assert one.wake_at is not None
    assert (one.wake_at.year, one.wake_reason, one.deadline_at) == (9999, "deadline", None)
    assert run.asks(SagaAction.CANCEL_DEADLINE).history == ()
    run.done("flight", causation_id=FIRST)
    assert run.wait == 60.0, "it was this step's alone"


def test_a_cancelled_deadline_can_be_set_again() -> None:
    run = Run()
    run.asks(SagaAction.CANCEL_DEADLINE)
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(seconds=5))
    assert run.wait == 5.0


def test_a_deadline_that_has_passed_is_extended_from_now() -> None:
    run = Run()
    run.passes(500)
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(seconds=5))
    assert run.wait == 5.0


def test_a_retry_is_no_deadline_that_could_be_cancelled() -> None:
    run = Run()
    run.fails(AGAIN)
    assert SagaAction.PAUSE in run.refused(SagaAction.CANCEL_DEADLINE)


def hindered() -> Run:
    """A run whose command waits behind others, of which its row says so."""
    run = Run()
    run.expires(waiting=run.now + timedelta(days=1))
    assert run.instance.hindered_by == "backlog"
    return run


@pytest.mark.parametrize(
    "what",
    [
        lambda run: run.done("flight"),
        lambda run: run.fails(AGAIN),
        lambda run: run.fails(),
        lambda run: run.fails(StepError("Hold", "look", retryable=False, hold=True)),
        lambda run: run.expires(),
        lambda run: run.cannot_be_sent(),
        lambda run: run.asks(SagaAction.PAUSE),
        lambda run: run.asks(SagaAction.TERMINATE),
    ],
    ids=["success", "retry", "failure", "held", "deadline", "unsendable", "pause", "terminate"],
)
def test_what_moves_or_blocks_an_instance_ends_what_hindered_it(what: Callable[[Run], object]) -> None:
    run = hindered()
    what(run)
    assert run.instance.hindered_by is None


def test_a_begun_command_is_not_hindered() -> None:
    begun = begin(TRIP, hindered().instance, 0, NOW + timedelta(minutes=5))
    assert begun is not None
    assert (begun.wake_reason, begun.hindered_by) == ("deadline", None)


def test_a_deadline_that_a_person_sets_leaves_it_hindered() -> None:
    run = hindered()
    run.asks(SagaAction.SET_DEADLINE, extend_by=timedelta(minutes=5))
    assert run.instance.hindered_by == "backlog"
