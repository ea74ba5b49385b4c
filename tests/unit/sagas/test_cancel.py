"""Does a cancelled saga wait for the step in flight, and undo what it has to?"""

from __future__ import annotations

import pytest

from orchestrix import FAILED
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import FIRST, FOR_GOOD, ORDER, THIRD
from tests.unit.sagas.runs import AGAIN, TRIP, Run

BACK = "COMPENSATING"


def cancelled(*done: str) -> Run:
    """A trip that was cancelled while a step was in flight."""
    run = Run(TRIP, *done)
    run.passes(3)
    run.asks(SagaAction.CANCEL)
    return run


def test_cancel_sends_no_undo_before_the_step_in_flight_has_ended() -> None:
    run = Run(TRIP, "flight", "notice")
    acted = run.asks(SagaAction.CANCEL)
    one = run.instance
    assert run.rows[-1] == ("SLEEPING", BACK, "cancel: because")
    assert run.history[-1].actor == "ada"
    assert (acted.command, acted.withdrawn, acted.undo) == (None, THIRD, ("hotel", "flight"))
    assert (one.command_id, one.wake_reason, run.wait, one.blocker) == (THIRD, "deadline", 9.0, None)
    assert (one.progress.awaited, one.progress.todo) == ("hotel", ("flight",))


def test_the_step_in_flight_succeeds_and_is_undone_too() -> None:
    run = cancelled("flight", "notice")
    version = run.instance.version
    run.done("hotel")
    assert run.sent[-1].type == "cmd.drop-hotel"
    run.undone("hotel")
    run.undone("flight")
    assert run.rows_since(version) == [
        (BACK, BACK, "evt.hotelDone"),
        (BACK, BACK, "undone hotel"),
        (BACK, BACK, "undone flight"),
        (BACK, FAILED, "undone: cancel: because"),
    ]


@pytest.mark.parametrize("error", [FOR_GOOD, AGAIN])
def test_the_step_in_flight_fails_and_is_neither_undone_nor_tried_again(error: StepError) -> None:
    run = cancelled("flight", "notice")
    run.fails(error)
    assert run.rows[-1][2] == f"evt.stepFailed: {error.type}: {error.message}"
    assert (run.instance.progress.todo, run.sent[-1].type) == (("flight",), "cmd.drop-flight")


def test_the_step_in_flight_never_answers_and_is_undone() -> None:
    run = cancelled("flight", "notice")
    run.expires(unheard=True, unsent=True)
    assert run.rows[-1] == (BACK, BACK, "deadline")
    assert (run.instance.progress.todo, run.sent[-1].type) == (("hotel", "flight"), "cmd.drop-hotel")
    assert run.sent[-1].undoes_attempt == 1


def test_success_of_an_earlier_try_is_an_answer_too() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.asks(SagaAction.CANCEL)
    assert run.done("flight", causation_id=None) == "ambiguous"
    assert run.done("flight", causation_id="of-nobody") == "unknown-causation"
    assert run.fails(causation_id=FIRST) == "failure-of-another-attempt"
    run.done("flight", causation_id=FIRST)
    assert (run.sent[-1].type, run.sent[-1].undoes_attempt) == ("cmd.drop-flight", 2)


def test_a_failure_answers_for_its_own_attempt_alone() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.asks(SagaAction.CANCEL)
    run.fails()
    assert run.sent[-1].type == "cmd.drop-flight"


def test_nothing_was_done_and_so_nothing_is_undone() -> None:
    run = cancelled()
    version = run.instance.version
    assert run.state == BACK
    run.fails()
    assert run.rows_since(version) == [(BACK, FAILED, "evt.stepFailed: OutOfDisk: no space left")]


@pytest.mark.parametrize("answer", ["done", "fails", "expires"])
def test_a_step_that_leaves_nothing_is_waited_for_only_to_keep_the_order(answer: str) -> None:
    run = cancelled("flight")
    assert run.instance.progress.awaited == "notice"
    assert run.sent[-1].type == "cmd.notice"
    run.done("notice") if answer == "done" else run.fails() if answer == "fails" else run.expires()
    assert (run.instance.progress.todo, run.sent[-1].type) == (("flight",), "cmd.drop-flight")


def test_a_saga_that_leaves_nothing_fails_at_once() -> None:
    run = Run(ORDER, "reserve")
    acted = run.asks(SagaAction.CANCEL)
    assert run.rows[-1] == ("PAYING", FAILED, "cancel: because")
    assert (acted.undo, acted.withdrawn) == ((), "command-2")
    assert run.done("pay", causation_id="command-2") == "ended"


def test_a_step_that_waits_for_another_try_is_not_in_flight() -> None:
    run = Run(TRIP, "flight", "notice")
    run.fails(AGAIN)
    run.asks(SagaAction.CANCEL)
    assert (run.instance.progress.todo, run.sent[-1].type) == (("flight",), "cmd.drop-flight")


def test_a_step_that_waits_for_another_try_may_have_done_its_work() -> None:
    run = Run(TRIP, "flight", "notice")
    run.expires()
    run.asks(SagaAction.CANCEL)
    assert (run.instance.progress.todo, run.sent[-1].type) == (("hotel", "flight"), "cmd.drop-hotel")


def test_a_command_that_cannot_be_sent_is_not_waited_for() -> None:
    run = Run(TRIP, "flight", "notice")
    run.cannot_be_sent()
    run.asks(SagaAction.CANCEL)
    assert (run.instance.blocker, run.instance.progress.awaited) == (None, None)
    assert (run.instance.progress.todo, run.sent[-1].type) == (("flight",), "cmd.drop-flight")


def test_what_an_earlier_run_left_is_undone_in_its_place() -> None:
    run = Run(TRIP, "flight", "notice")
    run.asks(SagaAction.TERMINATE)
    run.asks(SagaAction.RETRY)
    run.asks(SagaAction.CANCEL)
    run.done("flight")
    assert run.instance.progress.todo == ("hotel", "flight")


def test_an_undo_that_has_begun_is_not_begun_again() -> None:
    run = cancelled("flight")
    assert run.asks(SagaAction.CANCEL).history == ()
    run.done("notice")
    assert run.asks(SagaAction.CANCEL).history == ()


def test_others_that_report_while_it_waits() -> None:
    run = cancelled("flight", "notice")
    assert run.done("flight", causation_id=FIRST) == "will-be-undone"
    assert run.undone("flight") == "future"
    assert run.done("notice") == "nothing-to-undo"
    assert run.done("car") == "nothing-to-undo"
    assert run.instance.progress.todo == ("flight",)


def test_a_pause_holds_what_follows_the_step_in_flight() -> None:
    run = cancelled("flight", "notice")
    assert run.asks(SagaAction.PAUSE).withdrawn is None
    sent = len(run.sent)
    run.done("hotel")
    assert (run.instance.blocker, len(run.sent)) == ("paused", sent)
    run.asks(SagaAction.RESUME)
    assert run.sent[-1].type == "cmd.drop-hotel"


def test_a_pause_keeps_the_failure_that_is_waited_for() -> None:
    run = cancelled("flight", "notice")
    run.asks(SagaAction.PAUSE)
    run.fails()
    assert run.instance.progress.awaited == "hotel"
    run.asks(SagaAction.RESUME)
    assert (run.instance.progress.todo, run.sent[-1].type) == (("flight",), "cmd.drop-flight")


def test_resume_goes_on_waiting() -> None:
    run = cancelled("flight", "notice")
    run.asks(SagaAction.PAUSE)
    acted = run.asks(SagaAction.RESUME)
    assert (acted.command, run.instance.progress.awaited, run.instance.wake_reason) == (None, "hotel", "deadline")


def test_history_of_an_app_that_is_cancelled_at_its_first_step() -> None:
    run = Run(APP_PROVISIONING)
    run.asks(SagaAction.CANCEL)
    run.done("createGitRepo")
    run.undone("createGitRepo")
    assert run.rows[1:] == [
        ("APP_INITIATED", BACK, "cancel: because"),
        (BACK, BACK, "evt.gitRepoCreated"),
        (BACK, BACK, "undone createGitRepo"),
        (BACK, FAILED, "undone: cancel: because"),
    ]
