"""Does a saga that a person holds stand still, and go on as if nothing had been?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import COMPLETED, FAILED
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.state import InstanceProgress
from tests.unit.sagas.builders import FIRST, FOR_GOOD, SECOND, THIRD
from tests.unit.sagas.runs import AGAIN, TRIP, Run

BACK = "COMPENSATING"


def paused(*done: str) -> Run:
    """A trip that is held four seconds after its step was sent."""
    run = Run(TRIP, *done)
    run.passes(3)
    run.asks(SagaAction.PAUSE)
    return run


def test_pause_takes_the_wake_up_and_withdraws_the_command() -> None:
    run = Run()
    run.passes(3)
    acted = run.asks(SagaAction.PAUSE)
    one = run.instance
    assert run.rows[1:] == [("FLYING", "FLYING", "pause: because")]
    assert (one.blocker, one.wake_at, one.wake_reason, one.wait_ms) == ("paused", None, None, 6000)
    assert (acted.withdrawn, acted.command, one.command_id) == (FIRST, None, FIRST)


def test_resume_sends_the_same_command_and_gives_back_the_rest_of_the_wait() -> None:
    run = paused()
    run.passes(86_400)
    acted = run.asks(SagaAction.RESUME)
    one = run.instance
    assert run.rows[2:] == [("FLYING", "FLYING", "resume: because")]
    assert acted.command is not None
    assert (acted.command.id, acted.command.attempt) == (FIRST, 1)
    assert (one.blocker, one.wake_reason, run.wait, one.wait_ms) == (None, "deadline", 6.0, 6000)
    assert one.progress.to_json() == {"unanswered": True}, "an earlier copy of the command may have been worked on"


def test_success_moves_a_held_saga_and_sends_nothing() -> None:
    run = paused("flight", "notice")
    result = len(run.sent)
    run.done("hotel")
    one = run.instance
    assert run.rows[-1] == ("SLEEPING", "DRIVING", "evt.hotelDone")
    assert (one.blocker, one.wake_at, one.progress.resume, one.wait_ms) == ("paused", None, "unsent", 10_000)
    assert len(run.sent) == result
    assert one.command_id not in {command.id for command in run.sent}
    acted = run.asks(SagaAction.RESUME)
    assert acted.command is not None
    assert (acted.command.id, acted.command.type, run.wait) == (one.command_id, "cmd.car", 10.0)


def test_the_last_step_of_a_held_saga_completes_it() -> None:
    run = paused("flight", "notice", "hotel")
    run.done("car")
    assert (run.state, run.instance.blocker, run.instance.wake_at) == (COMPLETED, None, None)
    assert run.instance.progress.to_json() is None


def test_failure_is_kept_and_judged_at_the_end_of_the_pause() -> None:
    run = paused()
    run.fails(replace(AGAIN, retry_after_ms=7000))
    assert run.rows[2:] == [("FLYING", "FLYING", "held: evt.stepFailed: Busy: come back later")]
    assert (run.instance.blocker, run.instance.wake_at, run.instance.command_id) == ("paused", None, FIRST)
    assert run.fails(FOR_GOOD) == "repeated"
    acted = run.asks(SagaAction.RESUME)
    assert [(row.reason, row.actor) for row in acted.history] == [
        ("resume: because", "ada"),
        ("retry 2: evt.stepFailed: Busy: come back later", "orchestrator"),
    ]
    assert acted.history[-1].caused_by == "event-1"
    one = run.instance
    assert (acted.command, one.blocker, one.wake_reason, run.wait) == (None, None, "retry", 7.0)
    assert (one.progress.held, one.progress.unanswered, one.progress.sent) == (None, False, (FIRST,))


def test_failure_for_good_that_was_kept_begins_the_undo_at_resume() -> None:
    run = paused("flight", "notice")
    run.fails()
    acted = run.asks(SagaAction.RESUME)
    assert (run.state, run.instance.progress.todo, acted.undo) == (BACK, ("flight",), ("flight",))
    assert acted.command is not None
    assert acted.command.type == "cmd.drop-flight"


def test_success_beats_a_failure_that_is_kept() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.asks(SagaAction.PAUSE)
    run.fails()
    run.done("flight", causation_id=FIRST)
    assert (run.state, run.instance.progress.held) == ("NOTICING", None)
    run.asks(SagaAction.RESUME)
    assert run.types == ["flight", "flight", "notice"]


def test_a_retry_that_is_held_waits_its_rest_and_is_not_sent_before() -> None:
    run = Run()
    run.fails(replace(AGAIN, retry_after_ms=9000))
    run.passes(3)
    run.asks(SagaAction.PAUSE)
    assert (run.instance.progress.resume, run.instance.wait_ms) == ("retry", 5000)
    run.passes(1000)
    acted = run.asks(SagaAction.RESUME)
    assert (acted.command, run.instance.wake_reason, run.wait) == (None, "retry", 5.0)
    run.expires()
    assert run.types == ["flight", "flight"]


@pytest.mark.parametrize("around", [{"unsent": True}, {"unheard": True}])
def test_excuses_are_forgotten_over_a_pause(around: dict[str, bool]) -> None:
    run = Run()
    run.expires(**around)  # type: ignore[arg-type]
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.RESUME)
    assert (run.instance.wake_reason, run.wait) == ("deadline", 9.0)


def test_a_pause_costs_a_run_none_of_its_time() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=60)))
    run.passes(3)
    run.asks(SagaAction.PAUSE)
    run.passes(5000)
    run.done("flight")
    run.asks(SagaAction.RESUME)
    assert run.instance.deadline_at == run.now + timedelta(seconds=56)
    assert run.wait == 56.0, "the notice has 60 seconds"
    assert run.instance.progress.run_ms is None


def test_a_run_that_was_over_before_its_pause_is_over_behind_it() -> None:
    run = Run(replace(TRIP, timeout=timedelta(seconds=60)))
    run.passes(90)
    run.asks(SagaAction.PAUSE)
    run.instance = replace(run.instance, progress=InstanceProgress.from_json(run.instance.progress.to_json()))
    run.done("flight")
    run.asks(SagaAction.RESUME)
    assert (run.wait, run.instance.deadline_at) == (0.0, run.now)
    run.expires()
    assert (run.state, run.rows[-1][2]) == (BACK, "deadline")


def test_a_cancelled_deadline_stays_cancelled_over_a_pause() -> None:
    run = Run()
    run.asks(SagaAction.CANCEL_DEADLINE)
    before = run.instance.wake_at
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.RESUME)
    assert run.instance.wake_at == before


# While it is undone.


def test_an_undo_is_held_like_a_step() -> None:
    run = Run(TRIP, "flight", "notice", "hotel")
    run.fails()
    acted = run.asks(SagaAction.PAUSE)
    assert acted.withdrawn == run.instance.command_id
    sent = len(run.sent)
    run.undone("hotel")
    assert (run.state, run.instance.blocker, len(run.sent)) == (BACK, "paused", sent)
    assert run.done("flight", causation_id=FIRST) == "will-be-undone"
    run.asks(SagaAction.RESUME)
    assert run.sent[-1].type == "cmd.drop-flight"
    run.asks(SagaAction.PAUSE)
    run.undone("flight")
    assert (run.state, run.instance.blocker) == (FAILED, None)


def test_a_failed_undo_is_judged_at_resume() -> None:
    run = Run(TRIP, "flight")
    run.fails()
    run.asks(SagaAction.PAUSE)
    run.fails()
    assert run.state == BACK
    run.asks(SagaAction.RESUME)
    assert (run.state, run.instance.blocker) == ("COMPENSATION_FAILED", "undo_failed")


# Cancel and terminate work meanwhile.


def test_cancel_of_a_held_saga_waits_for_what_is_in_flight() -> None:
    run = paused("flight", "notice")
    run.passes(100)
    acted = run.asks(SagaAction.CANCEL)
    assert (run.state, run.instance.blocker, run.instance.progress.awaited) == (BACK, None, "hotel")
    assert (run.wait, acted.command, acted.withdrawn) == (6.0, None, THIRD)


def test_cancel_of_a_held_saga_whose_step_has_failed_waits_for_nothing() -> None:
    run = paused("flight", "notice")
    run.fails()
    run.asks(SagaAction.CANCEL)
    assert (run.state, run.instance.progress.todo, run.sent[-1].type) == (BACK, ("flight",), "cmd.drop-flight")


def test_cancel_of_a_held_saga_whose_step_never_left_waits_for_nothing() -> None:
    run = paused("flight", "notice")
    run.done("hotel")
    run.asks(SagaAction.CANCEL)
    assert run.instance.progress.todo == ("hotel", "flight")
    assert (run.instance.blocker, run.sent[-1].type) == (None, "cmd.drop-hotel")


def test_terminate_of_a_held_saga() -> None:
    run = paused("flight")
    run.asks(SagaAction.TERMINATE)
    assert (run.state, run.instance.blocker, run.instance.progress.resume) == (FAILED, None, None)


# What is edited meanwhile.


def test_edited_data_goes_out_as_another_attempt_and_both_may_answer() -> None:
    run = Run()
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.EDIT, patch={"amount": 9})
    assert run.instance.command_id == SECOND
    assert (run.instance.attempt, run.instance.tries) == (2, 1)
    assert run.history[-1].command_id == SECOND
    run.asks(SagaAction.RESUME)
    assert [(one.id, one.attempt, one.data.get("amount")) for one in run.sent] == [(FIRST, 1, None), (SECOND, 2, 9)]
    assert run.done("flight", causation_id=None) == "ambiguous"
    assert run.done("flight", causation_id=FIRST) is None
    assert run.state == "NOTICING"


def test_an_edit_keeps_the_attempt_that_has_not_left() -> None:
    run = Run()
    run.fails(AGAIN)
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.EDIT, patch={"amount": 9})
    assert (run.instance.command_id, run.instance.attempt) == (SECOND, 2)


def test_an_edit_leaves_the_failure_that_is_kept_to_be_judged() -> None:
    run = Run()
    run.asks(SagaAction.PAUSE)
    run.fails(AGAIN)
    run.asks(SagaAction.EDIT, patch={"amount": 9})
    run.asks(SagaAction.RESUME)
    assert run.rows[-1] == ("FLYING", "FLYING", "retry 2: evt.stepFailed: Busy: come back later")


def test_who_was_late_before_the_pause_has_the_step_s_time_after_it() -> None:
    run = Run()
    run.passes(99)
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.RESUME)
    assert (run.instance.wake_reason, run.wait) == ("deadline", 10)


def test_what_another_version_remembers_beside_is_passed_over() -> None:
    stored = {"attempts": {"a": 2}, "sent": ["c-1"], "of_another_version": [1]}
    assert InstanceProgress.from_json(stored) == InstanceProgress(attempts={"a": 2}, sent=("c-1",))
    assert InstanceProgress.from_json({"of_another_version": 1}) == InstanceProgress()
