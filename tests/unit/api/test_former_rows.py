"""Are messages told alike of rows that a node of an earlier release has written beside this one?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrix.api.instances.message_history import commands, events
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import StateChange
from orchestrix.saga.versions.former_changes import completed
from tests.unit.sagas.runs import AGAIN, TRIP, Run

HOLD = StepError("Hold", "look at it", retryable=False, hold=True)
LATER = ("kind", "step", "message_type", "message_id", "error_type", "error", "trace_id", "sent_at", "begun_at")


def undone() -> Run:
    """A trip that fails; its first undo succeeds at the second try, the second fails twice and is skipped."""
    run = Run(TRIP, "flight", "notice", "hotel")
    run.fails(AGAIN)
    run.expires()
    run.fails()
    run.fails(AGAIN)
    run.expires()
    run.undone("hotel")
    run.fails(AGAIN)
    run.expires()
    run.fails()
    run.asks(SagaAction.SKIP)
    return run


def held() -> Run:
    """A trip that is paused and resumed, late, held and retried, and cancelled."""
    run = Run(TRIP)
    run.asks(SagaAction.PAUSE)
    run.fails(AGAIN)
    run.asks(SagaAction.RESUME)
    run.expires()
    run.expires()
    run.expires()
    run.fails(HOLD)
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.asks(SagaAction.CANCEL)
    run.done("notice")
    run.undone("flight")
    return run


def former(change: StateChange) -> StateChange:
    """The row as the release before writes it."""
    empty: dict[str, Any] = dict.fromkeys(LATER)
    return replace(change, **empty)


def told(run: Run, rows: Sequence[StateChange]) -> list[tuple[str, int]]:
    """The commands, then the events, with the versions of their rows."""
    found = [*commands(TRIP, run.instance, rows), *events(TRIP, rows)]
    return [(one.type, one.change.version) for one in found]


@pytest.mark.parametrize("story", [undone, held])
def test_the_same_messages_are_told_of_former_rows(story: Callable[[], Run]) -> None:
    run = story()
    expected = told(run, run.history)
    assert len(expected) >= 10
    assert told(run, [former(row) for row in run.history]) == expected
    for place in range(len(run.history)):
        rows = [former(row) if number == place else row for number, row in enumerate(run.history)]
        assert told(run, rows) == expected, run.history[place]


@pytest.mark.parametrize("story", [undone, held])
def test_former_rows_have_the_kinds_that_answers_need(story: Callable[[], Run]) -> None:
    for row in story().history:
        found = completed(former(row)).kind
        expected = "failure_deferred" if row.kind == "step_held" else row.kind
        assert found in ({None, expected} if row.kind in ("created", "immediate", "compensated") else {expected})
        assert completed(row) is row


def test_what_a_person_has_said_is_no_event() -> None:
    run = Run(TRIP)
    row = replace(former(run.history[0]), from_state="FLYING", actor="ada", reason="skip: evt.flightDone")
    assert completed(row).kind == "skip"
    assert completed(replace(row, reason="retry 2: deadline")).kind is None
    assert completed(replace(row, reason="evt.flightDone")).message_type is None
