"""What becomes of a step that asks for a person, and what can that person do?"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import HOLD, DefinitionError, Job, Saga
from orchestrix.saga.actions.apply import allowed
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.messages import StepError, event
from orchestrix.saga.state import HELD, InstanceProgress
from tests.unit.sagas.builders import FOR_GOOD, NOW, OrderData, step
from tests.unit.sagas.runs import AGAIN, TRIP, Run

LOOK = StepError("Hold", "the amount is over the limit", retryable=False, hold=True)
ON_FAILURE = replace(TRIP, steps=tuple(replace(one, on_failure=HOLD) for one in TRIP.steps))
TIMED = replace(TRIP, timeout=timedelta(seconds=60))


def held(saga: Saga = TRIP, *done: str, error: StepError = LOOK) -> Run:
    """The next step has asked for a person."""
    run = Run(saga, *done, data={"amount": 1})
    assert run.fails(error) is None
    assert (run.instance.blocker, run.instance.wake_at, run.instance.wake_reason) == (HELD, None, None)
    return run


def test_a_step_that_asks_for_a_person_waits_for_one() -> None:
    run = held()
    assert run.rows[-1] == ("FLYING", "FLYING", "held: the amount is over the limit")
    assert (run.instance.progress.error, run.instance.wait_ms) == ("the amount is over the limit", 0)
    assert run.types == ["flight"]
    stored = json.loads(json.dumps(run.instance.progress.to_json()))
    assert InstanceProgress.from_json(stored) == run.instance.progress


def test_one_that_says_of_which_kind_it_is_is_told_so() -> None:
    run = held(error=replace(LOOK, type="OverLimit"))
    assert run.rows[-1][2] == "held: OverLimit: the amount is over the limit"


def test_the_same_word_again_changes_nothing() -> None:
    run = held()
    assert run.fails(LOOK) == "repeated"
    assert run.fails(AGAIN) == "repeated"
    assert len(run.history) == 2


def test_a_success_of_the_same_command_counts() -> None:
    """Two workers had it, and one of them has done it."""
    run = held(TIMED)
    run.passes(1000)
    run.done("flight")
    assert (run.state, run.instance.blocker, run.instance.progress.run_ms) == ("NOTICING", None, None)
    assert run.instance.deadline_at is not None
    assert run.instance.deadline_at > run.now + timedelta(seconds=50)


# What a person does.


def test_what_can_be_done() -> None:
    run = held()
    verbs = {
        SagaAction.RETRY,
        SagaAction.RESUME,
        SagaAction.SKIP,
        SagaAction.EDIT,
        SagaAction.CANCEL,
        SagaAction.TERMINATE,
    }
    assert set(allowed(run.saga, run.instance)) == verbs
    assert (
        set(run.refused(SagaAction.PAUSE)) == set(run.refused(SagaAction.SET_DEADLINE, extend_by=timedelta(1))) == verbs
    )


@pytest.mark.parametrize("verb", [SagaAction.RETRY, SagaAction.RESUME])
def test_it_is_tried_anew(verb: SagaAction) -> None:
    run = held()
    first = run.instance.command_id
    run.asks(verb)
    assert run.rows[-1] == ("FLYING", "FLYING", f"{verb.value}: because")
    assert (run.instance.blocker, run.instance.wake_reason, run.wait) == (None, "deadline", 10)
    assert (run.instance.attempt, run.instance.tries, run.sent[-1].attempt) == (2, 1, 2)
    assert run.sent[-1].id == run.instance.command_id != first
    assert run.history[-1].command_id == run.instance.command_id
    assert run.fails(LOOK, causation_id=first) == "failure-of-another-attempt"
    assert run.done("flight", causation_id=None) == "ambiguous"
    run.done("flight", causation_id=first)
    assert run.state == "NOTICING", "a success of any try counts"


def test_it_has_all_its_tries_again() -> None:
    run = held()
    run.asks(SagaAction.RETRY)
    for _ in range(2):
        run.fails(AGAIN)
        run.expires()
    assert (run.instance.blocker, run.instance.attempt) == (None, 4)
    run.fails(LOOK)
    assert run.instance.blocker == HELD


def test_with_other_data() -> None:
    run = held()
    run.asks(SagaAction.RETRY, patch={"amount": 7, "by": {"name": "ada"}})
    assert run.instance.data == {"amount": 7, "by": {"name": "ada"}}
    assert run.sent[-1].data == run.instance.data
    assert len(run.history) == 3


def test_data_that_the_model_refuses_change_nothing() -> None:
    run = held()
    with pytest.raises(InvalidDataError, match="amount"):
        run.asks(SagaAction.RETRY, patch={"amount": "many"})
    with pytest.raises(InvalidDataError, match="at most"):
        run.asks(SagaAction.RETRY, patch={"x": "y" * 70_000})
    assert run.instance.blocker == HELD


def test_edited_first() -> None:
    run = held()
    run.asks(SagaAction.EDIT, patch={"amount": 7})
    assert run.instance.blocker == HELD
    run.asks(SagaAction.RETRY)
    assert run.sent[-1].data == {"amount": 7}


def test_skipped() -> None:
    run = held(TIMED)
    run.passes(100)
    run.asks(SagaAction.SKIP, output={"seat": "1A"})
    assert (run.state, run.instance.blocker, run.instance.data["seat"]) == ("NOTICING", None, "1A")
    assert run.types == ["flight", "notice"]
    assert run.wait == 59, "what is left of the run, whose time has stood still"


def test_cancelled_it_is_an_answered_try() -> None:
    run = held(TRIP, "flight", "notice")
    run.asks(SagaAction.CANCEL)
    assert (run.state, run.instance.progress.awaited) == ("COMPENSATING", None)
    assert run.types[3:] == ["drop-flight"], "the hotel has answered that it has done nothing"
    run.undone("flight")
    assert run.state == "FAILED"


def test_cancelled_where_it_may_have_done_something() -> None:
    run = held(TRIP, "flight", "notice", error=replace(LOOK, unsure=True))
    acted = run.asks(SagaAction.CANCEL)
    assert acted.undo == ("hotel", "flight")
    assert run.types[3:] == ["drop-hotel"]


def test_cancelled_with_nothing_to_undo() -> None:
    run = held()
    run.asks(SagaAction.CANCEL)
    assert (run.state, run.instance.blocker) == ("FAILED", None)
    run.done("flight", causation_id="command-1")
    assert run.types == ["flight", "drop-flight"], "it has come to an effect all the same"


def test_terminated() -> None:
    run = held()
    run.asks(SagaAction.TERMINATE)
    assert (run.state, run.instance.progress.left) == ("FAILED", ())
    run = held(error=replace(LOOK, unsure=True))
    run.asks(SagaAction.TERMINATE)
    assert run.instance.progress.left == ("flight",)


def test_the_run_s_own_time_stands_still() -> None:
    run = held(TIMED)
    assert run.instance.progress.run_ms == 59_000
    run.passes(10_000)
    run.asks(SagaAction.RETRY)
    assert run.instance.deadline_at == run.now + timedelta(seconds=59)
    again = run.instance
    assert again.progress.run_ms is None
    assert run.wait == 10


def test_what_a_try_before_has_done_is_not_forgotten() -> None:
    run = Run()
    run.expires()
    run.expires()
    run.fails(LOOK)
    run.asks(SagaAction.RETRY)
    run.fails(LOOK)
    run.asks(SagaAction.CANCEL)
    assert run.types[-1] == "drop-flight", "the first try has never answered"


def test_during_a_pause_it_is_judged_at_its_end() -> None:
    run = Run(TIMED)
    run.asks(SagaAction.PAUSE)
    run.fails(LOOK)
    assert run.instance.blocker == "paused"
    run.asks(SagaAction.RESUME)
    assert (run.instance.blocker, run.instance.progress.held) == (HELD, None)
    assert run.instance.progress.run_ms == 59_000
    run.asks(SagaAction.RETRY)
    assert run.sent[-1].attempt == 2


def test_of_a_cancelled_saga_it_is_an_answer() -> None:
    run = Run(TRIP, "flight", "notice")
    run.asks(SagaAction.CANCEL)
    run.fails(LOOK)
    assert (run.state, run.types[-1]) == ("COMPENSATING", "drop-flight")


def test_in_an_undo_the_undo_has_failed() -> None:
    run = Run(TRIP, "flight")
    run.fails()
    run.fails(LOOK)
    assert (run.state, run.instance.blocker) == ("COMPENSATION_FAILED", "undo_failed")
    run.asks(SagaAction.RETRY, patch={"amount": 3})
    assert (run.state, run.sent[-1].data) == ("COMPENSATING", {"amount": 3})


# Held whenever it has failed for good.


def test_a_step_can_be_held_when_it_has_failed_for_good() -> None:
    run = held(ON_FAILURE, "flight", error=FOR_GOOD)
    assert run.rows[-1][2].startswith("held: evt.stepFailed: ")
    assert run.types == ["flight", "notice"], "nothing is undone"
    run.asks(SagaAction.RETRY)
    run.done("notice")
    assert run.state == "SLEEPING"


def test_only_when_its_tries_are_used_up() -> None:
    run = Run(ON_FAILURE)
    for _ in range(2):
        run.fails(AGAIN)
        assert run.instance.wake_reason == "retry"
        run.expires()
    run.expires()
    assert run.rows[-1] == ("FLYING", "FLYING", "held: deadline")
    run.asks(SagaAction.CANCEL)
    assert run.types[-1] == "drop-flight", "nobody knows what the silent try has done"


def test_the_end_of_the_run_s_own_time_is_no_failure_of_the_step() -> None:
    run = Run(replace(ON_FAILURE, timeout=timedelta(seconds=8)))
    run.expires()
    assert run.state == "COMPENSATING"


def test_a_job_that_fails_holds_its_step_too() -> None:
    job = Saga("x", steps=(step(command="", job=Job("report"), on_failure=HOLD),))
    run = held(job, error=FOR_GOOD)
    acted = run.asks(SagaAction.RETRY)
    assert acted.command is not None
    assert (acted.command.job, acted.command.id) == (Job("report"), run.instance.command_id)
    assert run.instance.wake_reason == "job"


@pytest.mark.parametrize("wrong", ["undo", True, 1, HOLD.upper()])
def test_what_else_cannot_be_meant(wrong: object) -> None:
    with pytest.raises(DefinitionError, match=r"on_failure.*HOLD"):
        Saga("x", steps=(step(on_failure=wrong),))


# Data with other retries.


def test_a_failed_run_begins_again_with_other_data() -> None:
    run = Run(data={"amount": 1})
    run.fails()
    run.asks(SagaAction.RETRY, patch={"amount": 2})
    assert (run.state, run.sent[-1].data) == ("FLYING", {"amount": 2})


def test_what_cannot_be_sent_is_sent_with_other_data() -> None:
    run = Run(data={"amount": 1, "long": "x"})
    run.cannot_be_sent()
    run.asks(SagaAction.RETRY, patch={"long": None})
    assert run.sent[-1].data == {"amount": 1}
    assert run.sent[-1].id == run.sent[0].id, "it has never left"


def test_what_waits_for_its_next_try_is_tried_with_other_data() -> None:
    run = Run(data={"amount": 1})
    run.fails(AGAIN)
    run.asks(SagaAction.RETRY, patch={"amount": 2})
    assert (run.sent[-1].data, run.sent[-1].attempt) == ({"amount": 2}, 2)


def test_what_is_out_has_the_data_that_it_was_sent_with() -> None:
    run = Run(data={"amount": 1})
    assert run.asks(SagaAction.RETRY).history == ()
    assert SagaAction.PAUSE in run.refused(SagaAction.RETRY, patch={"amount": 2})
    assert run.instance.data == {"amount": 1}


# On the wire.


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"type": "Hold", "message": "m", "hold": True}, StepError("Hold", "m", False, None, False, True)),
        ({"message": "m", "hold": True, "retryable": True}, StepError("Hold", "m", False, None, False, True)),
        ({"type": "E", "hold": True, "unsure": True}, StepError("E", "", False, None, True, True)),
        ({"type": "E", "hold": "yes"}, StepError("E", "", True)),
        ({"type": "E", "hold": False}, StepError("E", "", True)),
    ],
)
def test_a_foreign_worker_can_ask_for_a_person(told: dict[str, Any], read: StepError) -> None:
    body = {"appId": 7, "correlationId": "c", "causationId": "m", "error": told}
    assert event("evt.stepFailed", json.dumps(body).encode()).error == read


def test_the_model_is_that_of_the_saga() -> None:
    assert TRIP.data is OrderData
    assert held().now > NOW
