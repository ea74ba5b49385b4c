"""Is a saga that fails brought back to nothing, step by step?"""

from __future__ import annotations

import pytest

from orchestrix import FAILED, Saga
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.definition import COMPENSATING
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import StateChange
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import CORRELATION, FIRST, FOR_GOOD, SECOND, THIRD, step
from tests.unit.sagas.runs import AGAIN, TRIP, Run

REASON = "evt.stepFailed: OutOfDisk: no space left"
BACK, LOST = "COMPENSATING", "COMPENSATION_FAILED"


def failing(*done: str) -> Run:
    """A trip that fails for good behind these steps."""
    run = Run(TRIP, *done)
    run.fails()
    return run


# The way back.


@pytest.mark.req("S3-32")
def test_history_of_an_app_whose_registration_fails() -> None:
    run = Run(APP_PROVISIONING, "createGitRepo")
    run.fails()
    run.undone("createGitRepo")
    assert run.rows[3:] == [
        ("REGISTERING", BACK, REASON),
        (BACK, BACK, "undone createGitRepo"),
        (BACK, FAILED, f"undone: {REASON}"),
    ]
    assert [(row.version, row.actor, row.caused_by) for row in run.history[3:]] == [
        (4, "orchestrator", "event-1"),
        (5, "orchestrator", "event-1"),
        (6, "orchestrator", "event-1"),
    ]
    assert run.types == ["createGitRepo", "registerApp", "deleteGitRepo"]
    one = run.instance
    assert (one.command_id, one.wake_at, one.wake_reason, one.blocker, one.wait_ms) == (None, None, None, None, 0)


def test_the_command_of_an_undo() -> None:
    run = failing("flight")
    command = run.sent[-1]
    assert (command.id, command.type, command.step) == (THIRD, "cmd.drop-flight", "flight")
    assert (command.expected_state, command.idempotency_key) == (BACK, "trip:7:flight:undo")
    assert (command.attempt, command.undoes_attempt, command.timeout_ms) == (1, 1, 20_000)
    assert (run.instance.command_id, run.instance.wake_reason, run.wait) == (THIRD, "deadline", 20.0)
    assert run.history[-1] == StateChange(
        4, "NOTICING", BACK, REASON, "orchestrator", CORRELATION, "event-1", THIRD, run.now,
        "step_failed", "notice", "evt.stepFailed", "event-1", "OutOfDisk", "OutOfDisk: no space left",
    )  # fmt: skip


def test_undo_goes_backwards_and_leaves_out_what_leaves_nothing() -> None:
    run = failing("flight", "notice", "hotel")
    version, before = run.instance.version, run.instance.progress
    run.undone("hotel")
    run.undone("flight")
    assert run.types[4:] == ["drop-hotel", "drop-flight"]
    assert run.rows_since(version) == [
        (BACK, BACK, "undone hotel"),
        (BACK, BACK, "undone flight"),
        (BACK, FAILED, f"undone: {REASON}"),
    ]
    after = run.instance.progress
    assert (before.todo, after.todo) == (("hotel", "flight"), ())
    assert (before.undone, after.undone) == ((), ("hotel", "flight"))


def test_where_nothing_is_to_undo_it_has_failed_at_once() -> None:
    assert failing().rows[1:] == [("FLYING", FAILED, REASON)]
    leaves_nothing = Run(Saga("x", (step("one", "A", "B"), step("two", "B"))), "one")
    leaves_nothing.fails()
    assert leaves_nothing.rows[2:] == [("B", FAILED, REASON)]


# The step that is out.


def test_the_step_in_flight_is_left_alone_if_each_attempt_was_answered() -> None:
    run = Run(TRIP, "flight", "notice")
    run.fails(AGAIN)
    run.expires()
    run.fails()
    assert run.instance.progress.todo == ("flight",)


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_the_step_in_flight_is_undone_if_any_attempt_was_not_answered(silent: int) -> None:
    run = Run(TRIP, "flight", "notice")
    for attempt in (1, 2, 3):
        if attempt == silent:
            run.expires()
        else:
            run.fails(AGAIN)
        if attempt < 3:
            run.expires()
    assert run.state == BACK
    assert run.instance.progress.todo == ("hotel", "flight")
    assert run.sent[-1].undoes_attempt == 3


def test_undo_names_the_highest_attempt_that_may_come_late() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.done("flight", causation_id=FIRST)
    run.done("notice")
    run.fails()
    assert (run.sent[-1].type, run.sent[-1].undoes_attempt) == ("cmd.drop-flight", 2)


def test_undo_of_a_later_run_names_the_highest_attempt_of_all_runs() -> None:
    run = failing("flight")
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.fails()
    last = run.sent[-1]
    assert (last.type, last.attempt, last.undoes_attempt) == ("cmd.drop-flight", 2, 2)


# An undo that fails.


def test_undo_has_tries_of_its_own() -> None:
    run = failing("flight")
    version = run.instance.version
    run.fails(AGAIN)
    assert run.rows_since(version) == [(BACK, BACK, "retry 2: evt.stepFailed: Busy: come back later")]
    assert (run.instance.wake_reason, run.instance.attempt, run.instance.tries) == ("retry", 2, 2)
    run.expires()
    assert [(command.type, command.attempt, command.undoes_attempt) for command in run.sent[-2:]] == [
        ("cmd.drop-flight", 1, 1),
        ("cmd.drop-flight", 2, 1),
    ]
    run.undone("flight")
    assert run.state == FAILED


def lost(*done: str) -> Run:
    """A trip that could not be undone."""
    run = failing(*done)
    run.fails()
    return run


def test_an_undo_that_fails_for_good_waits_for_a_person() -> None:
    run = failing("flight")
    version = run.instance.version
    run.fails(AGAIN)
    run.expires()
    run.fails(AGAIN)
    assert run.rows_since(version)[1:] == [(BACK, LOST, "evt.stepFailed: Busy: come back later")]
    one = run.instance
    assert (one.blocker, one.wake_at, one.wake_reason, one.wait_ms) == ("undo_failed", None, None, 0)
    assert one.progress.error == "evt.stepFailed: Busy: come back later"


def test_an_undo_that_nobody_answers_waits_for_a_person_too() -> None:
    run = failing("flight")
    run.expires()
    run.expires()
    run.expires()
    assert (run.state, run.rows[-1][2]) == (LOST, "deadline")


def test_a_person_tries_an_undo_again() -> None:
    run = lost("flight", "notice", "hotel")
    version = run.instance.version
    run.asks(SagaAction.EDIT, patch={"amount": 5})
    run.asks(SagaAction.RETRY)
    assert run.rows_since(version) == [(LOST, LOST, "edit: because"), (LOST, BACK, "retry: because")]
    last = run.sent[-1]
    assert (last.type, last.attempt, last.data, last.expected_state) == ("cmd.drop-hotel", 2, {"amount": 5}, BACK)
    assert (run.instance.tries, run.instance.blocker, run.instance.wake_reason) == (1, None, "deadline")
    run.undone("hotel")
    run.undone("flight")
    assert run.state == FAILED


def test_a_person_does_without_an_undo() -> None:
    run = lost("flight", "notice", "hotel")
    version = run.instance.version
    run.asks(SagaAction.SKIP)
    assert (run.state, run.sent[-1].type, run.instance.blocker) == (BACK, "cmd.drop-flight", None)
    run.fails()
    run.asks(SagaAction.SKIP)
    assert run.rows_since(version) == [
        (LOST, BACK, "skip: because"),
        (BACK, LOST, REASON),
        (LOST, FAILED, "skip: because"),
    ]
    assert run.history[-1].actor == "ada"
    assert run.instance.progress.undone == ()


def test_a_late_answer_helps_an_undo_that_had_failed() -> None:
    run = lost("flight", "notice", "hotel")
    assert run.fails() == "failure-of-another-attempt"
    run.undone("hotel")
    assert (run.state, run.instance.blocker, run.sent[-1].type) == (BACK, None, "cmd.drop-flight")


# Undo overtakes do.


def test_what_succeeds_while_it_is_undone_is_undone_once_more() -> None:
    run = Run()
    for _ in range(5):
        run.expires()
    assert (run.state, run.instance.progress.todo) == (BACK, ("flight",))
    version = run.instance.version
    run.done("flight", causation_id=FIRST)
    assert run.instance.progress.todo == ("flight", "flight")
    assert run.done("flight", causation_id=FIRST) == "will-be-undone"
    run.undone("flight")
    assert run.state == BACK
    run.undone("flight")
    assert run.rows_since(version) == [
        (BACK, BACK, "evt.flightDone"),
        (BACK, BACK, "undone flight"),
        (BACK, BACK, "undone flight"),
        (BACK, FAILED, "undone: deadline"),
    ]
    undos = [command for command in run.sent if command.undoes_attempt]
    assert [(command.attempt, command.undoes_attempt) for command in undos] == [(1, 3), (2, 3)]
    assert run.instance.progress.undone == ("flight",)


def test_what_waits_to_be_undone_is_undone_once() -> None:
    run = failing("flight", "notice", "hotel")
    assert run.done("flight") == "will-be-undone"
    run.fails(AGAIN)
    assert run.done("hotel") == "will-be-undone", "its undo waits for its next try, which finds it"
    assert run.done("notice") == "nothing-to-undo"


def test_what_succeeds_after_its_failure_was_told_is_undone_all_the_same() -> None:
    run = failing("flight", "notice")
    run.done("hotel", causation_id=THIRD)
    assert run.instance.progress.todo == ("flight", "hotel")
    run.undone("flight")
    run.undone("hotel")
    assert (run.state, run.instance.progress.undone) == (FAILED, ("flight", "hotel"))


@pytest.mark.parametrize("held", ["retry", "undo failed"])
def test_what_succeeds_late_does_not_push_the_present_undo_aside(held: str) -> None:
    run = failing("flight", "notice")
    run.fails(AGAIN if held == "retry" else FOR_GOOD)
    run.done("hotel", causation_id=THIRD)
    assert run.instance.progress.todo == ("flight", "hotel")
    run.asks(SagaAction.RETRY)
    assert (run.sent[-1].type, run.sent[-1].attempt) == ("cmd.drop-flight", 2)
    run.undone("flight")
    assert (run.sent[-1].type, run.sent[-1].attempt) == ("cmd.drop-hotel", 1)


def test_what_succeeds_after_the_end_is_undone_once_more() -> None:
    run = failing("flight")
    run.undone("flight")
    version = run.instance.version
    run.done("flight", causation_id=FIRST)
    last, one = run.sent[-1], run.instance
    assert (last.type, last.attempt, last.expected_state, last.id) == ("cmd.drop-flight", 2, FAILED, one.command_id)
    assert (one.state, one.wake_at, one.wake_reason, one.blocker, one.wait_ms) == (FAILED, None, None, None, 0)
    run.undone("flight")
    assert run.rows_since(version) == [(FAILED, FAILED, "evt.flightDone"), (FAILED, FAILED, "undone flight")]
    assert (run.instance.command_id, run.instance.progress.todo) == (None, ())
    assert run.instance.progress.undone == ("flight",)
    assert run.undone("flight", causation_id=last.id) == "repeated"


def test_late_successes_after_the_end_are_undone_one_after_the_other() -> None:
    run = failing("flight", "notice", "hotel")
    run.undone("hotel")
    run.undone("flight")
    run.done("flight", causation_id=FIRST)
    run.done("hotel", causation_id=THIRD)
    assert run.done("hotel", causation_id=THIRD) == "will-be-undone"
    assert run.sent[-1].type == "cmd.drop-flight"
    run.undone("flight")
    assert run.sent[-1].type == "cmd.drop-hotel"
    run.undone("hotel")
    assert (run.state, run.instance.command_id) == (FAILED, None)


def test_a_late_undo_is_sent_anew_for_every_success() -> None:
    run = failing("flight")
    run.undone("flight")
    run.done("flight", causation_id=FIRST)
    former = run.instance.command_id
    assert run.fails() == "late-undo-failed"
    run.done("flight", causation_id=FIRST)
    assert (run.sent[-1].attempt, run.sent[-1].id != former) == (3, True)
    assert run.undone("flight", causation_id=former) == "unknown-causation"
    assert run.undone("flight") is None


def test_a_new_run_keeps_in_mind_what_the_last_one_could_not_undo() -> None:
    run = failing("flight")
    run.undone("flight")
    run.done("flight", causation_id=FIRST)
    run.asks(SagaAction.RETRY)
    assert run.instance.progress.left == ("flight",)
    assert run.undone("flight") == "not-undoing"
    run.fails()
    assert (run.state, run.sent[-1].type) == (BACK, "cmd.drop-flight")


def test_what_was_undone_in_an_earlier_run_is_still_known() -> None:
    run = failing("flight")
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    run.fails()
    assert run.state == FAILED
    run.done("flight", causation_id=FIRST)
    assert run.sent[-1].type == "cmd.drop-flight"


def test_what_a_later_run_did_not_come_to_is_known_from_the_one_before() -> None:
    run = failing("flight", "notice", "hotel")
    run.undone("hotel")
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.fails()
    assert run.instance.progress.undone == ("hotel",), "the flight is there again"
    run.undone("flight")
    run.done("hotel", causation_id=THIRD)
    assert (run.state, run.sent[-1].type) == (FAILED, "cmd.drop-hotel")


def test_what_a_person_left_behind_is_not_undone_for_an_earlier_run_s_sake() -> None:
    run = failing("flight")
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.asks(SagaAction.TERMINATE)
    assert (run.instance.progress.undone, run.instance.progress.left) == ((), ("flight",))
    assert run.done("flight", causation_id=FIRST) == "ended"


def test_what_its_worker_has_refused_and_another_did_is_undone() -> None:
    run = failing()
    assert run.instance.progress.refused == ("flight",)
    run.done("flight")
    assert (run.state, run.sent[-1].type) == (FAILED, "cmd.drop-flight")
    run.undone("flight")
    assert run.state == FAILED


def test_what_a_person_left_behind_is_not_undone_because_it_was_refused_before() -> None:
    run = failing()
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.asks(SagaAction.TERMINATE)
    assert (run.instance.progress.refused, run.instance.progress.left) == ((), ("flight",))
    assert run.done("flight", causation_id=FIRST) == "ended"


def test_what_has_no_undo_stays_ended_whoever_did_it() -> None:
    run = failing("flight")
    run.undone("flight")
    assert (run.state, run.instance.progress.refused) == (FAILED, ())
    assert run.done("notice") == "ended"
    run.done("flight", causation_id=FIRST)
    assert run.sent[-1].type == "cmd.drop-flight"


def test_what_was_never_tried_stays_ended() -> None:
    run = failing()
    assert run.done("hotel") == "ended"


def test_a_failure_of_what_was_sent_again_is_undone_too() -> None:
    run = Run(TRIP)
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.RESUME)
    run.fails(FOR_GOOD)
    assert (run.state, run.sent[-1].type) == (COMPENSATING, "cmd.drop-flight")


def test_a_failure_of_what_left_late_is_not_undone() -> None:
    run = Run(TRIP)
    run.fails(AGAIN)
    run.asks(SagaAction.RETRY)
    run.fails(FOR_GOOD)
    assert run.state == FAILED


@pytest.mark.parametrize("error", [FOR_GOOD, AGAIN])
def test_failures_after_the_end(error: StepError) -> None:
    run = failing()
    assert run.fails(error, causation_id=FIRST) == "ended"


def test_events_of_undo_out_of_turn() -> None:
    run = Run(TRIP, "flight", "notice", "hotel")
    assert run.undone("flight") == "not-undoing"
    run.fails()
    assert run.undone("flight") == "future"
    assert run.undone("car") == "repeated"
    assert run.undone("hotel", causation_id=SECOND) == "unknown-causation"
    run.fails(AGAIN)
    run.expires()
    assert run.undone("hotel", causation_id=None) == "ambiguous"
    run.undone("hotel")
    assert run.undone("hotel") == "repeated"


def test_what_the_undo_has_met_is_not_why_the_saga_failed() -> None:
    run = Run(TRIP, "flight", "notice")
    run.fails(StepError("Nope", "not possible", retryable=False))
    run.fails(StepError("Busy", "no file", retryable=False))
    assert run.instance.progress.error == "evt.stepFailed: Busy: no file"
    run.asks(SagaAction.RETRY)
    run.undone("flight")
    assert run.rows[-1] == ("COMPENSATING", FAILED, "undone: evt.stepFailed: Nope: not possible")
    assert run.instance.progress.error == "evt.stepFailed: Nope: not possible"
