"""Does each row of history say for programs what it says for people?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from orchestrix.saga.actions.clone import blocked_clone
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError
from orchestrix.saga.messages import event as read_event
from orchestrix.saga.timeouts import begin
from orchestrix.saga.trace_context import trace_id
from orchestrix.saga.transition import SagaStart, start
from tests.unit.sagas.builders import FOR_GOOD, NOW, failure, success
from tests.unit.sagas.runs import AGAIN, TRIP, Run

FAILED = "evt.stepFailed"
HOLD = StepError("Hold", "look at it", retryable=False, hold=True)
BUSY, DISK = ("Busy", "Busy: come back later"), ("OutOfDisk", "OutOfDisk: no space left")
NOTHING = (None, None)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def said(run: Run, rows: int = 1) -> list[tuple[str | None, str | None, str | None]]:
    """(kind, step, message type) of the last rows."""
    return [(row.kind, row.step, row.message_type) for row in run.history[-rows:]]


def errors(run: Run, rows: int = 1) -> list[tuple[str | None, str | None]]:
    """(type, text) of the failures of the last rows."""
    return [(row.error_type, row.error) for row in run.history[-rows:]]


def test_a_start_and_a_success_with_what_follows_at_once() -> None:
    run = Run()
    assert said(run) == [("created", None, None)]
    event = success(TRIP.steps[0].event)
    run.hears(replace(event, causation_id=run.instance.command_id))
    assert said(run, 2) == [("step_succeeded", "flight", event.type), ("immediate", None, None)]
    assert [row.message_id for row in run.history[-2:]] == [event.id, None]
    assert errors(run, 2) == [NOTHING, NOTHING]


def test_failures_that_are_tried_again_and_one_that_is_not() -> None:
    run = Run(TRIP, "flight", "notice")
    run.fails(AGAIN)
    assert (said(run), errors(run)) == ([("attempt_failed", "hotel", FAILED)], [BUSY])
    run.expires()  # sends the next try
    run.expires()
    assert (said(run), errors(run)) == ([("attempt_failed", "hotel", None)], [("Deadline", "deadline")])
    run.expires()
    run.fails()
    assert (said(run), errors(run)) == ([("step_failed", "hotel", FAILED)], [DISK])
    assert run.state == "COMPENSATING"


def test_undos() -> None:
    run = Run(TRIP, "flight", "notice", "hotel")
    run.fails()
    run.fails(AGAIN)
    assert (said(run), errors(run)) == ([("attempt_failed", "hotel", FAILED)], [BUSY])
    run.expires()
    run.fails()
    assert (said(run), errors(run)) == ([("step_failed", "hotel", FAILED)], [DISK])
    run.asks(SagaAction.RETRY)
    assert said(run) == [("retry", "hotel", None)]
    run.undone("hotel")
    assert said(run) == [("step_undone", "hotel", "evt.hotelDropped")]
    run.undone("flight")
    assert said(run, 2) == [("step_undone", "flight", "evt.flightDropped"), ("compensated", None, None)]


def test_an_undo_that_is_skipped_and_one_that_is_terminated() -> None:
    run = Run(TRIP, "flight", "notice", "hotel")
    run.fails()
    run.fails()
    run.asks(SagaAction.SKIP)
    assert said(run) == [("skip", "hotel", None)]
    run.asks(SagaAction.TERMINATE)
    assert said(run) == [("terminate", "flight", None)]


def test_a_cancel_and_the_answer_that_it_waits_for() -> None:
    run = Run(TRIP, "flight", "notice")
    run.asks(SagaAction.CANCEL)
    assert said(run) == [("cancel", "hotel", None)]
    run.done("hotel")
    assert said(run) == [("step_succeeded", "hotel", TRIP.steps[2].event)]
    other = Run(TRIP, "flight", "notice")
    other.asks(SagaAction.CANCEL)
    other.fails()
    assert (said(other), errors(other)) == ([("step_failed", "hotel", FAILED)], [DISK])


def test_a_success_after_its_undo_was_begun_is_of_its_own_step() -> None:
    run = Run(TRIP, "flight", "notice")
    late = run.instance.command_id
    while run.state == "SLEEPING":
        run.expires()
    assert run.state == "COMPENSATING"
    run.undone("hotel")
    run.done("hotel", causation_id=late)
    assert said(run) == [("step_succeeded", "hotel", TRIP.steps[2].event)]


def test_a_failure_during_a_pause_names_its_message_once() -> None:
    run = Run()
    run.asks(SagaAction.PAUSE)
    run.fails(AGAIN)
    assert (said(run), errors(run)) == ([("failure_deferred", "flight", FAILED)], [BUSY])
    run.asks(SagaAction.RESUME)
    assert said(run, 2) == [("resume", "flight", None), ("attempt_failed", "flight", None)]
    assert errors(run, 2) == [NOTHING, BUSY]
    assert run.history[-1].caused_by == run.history[-3].message_id


def test_a_step_that_waits_for_a_person() -> None:
    run = Run()
    run.fails(HOLD)
    assert (said(run), errors(run)) == ([("step_held", "flight", FAILED)], [("Hold", "look at it")])
    run.asks(SagaAction.SKIP)
    assert said(run, 2)[0] == ("skip", "flight", None)


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        (SagaAction.PAUSE, {}),
        (SagaAction.SET_DEADLINE, {"at": NOW.replace(year=2030)}),
        (SagaAction.CANCEL_DEADLINE, {}),
        (SagaAction.TERMINATE, {}),
    ],
)
def test_an_action_is_known_by_its_verb(verb: SagaAction, more: dict[str, object]) -> None:
    run = Run()
    run.asks(verb, **more)
    assert said(run) == [(verb.value, "flight", None)]


def blocked(run: Run) -> str | None:
    run.cannot_be_sent()
    return run.history[-1].kind


def cloned(run: Run) -> str | None:
    return blocked_clone(run.instance, NOW).history[0].kind


@pytest.mark.parametrize(("how", "kind"), [(blocked, "unsendable"), (cloned, "cloned")])
def test_a_blocker_is_a_kind(how: Callable[[Run], str | None], kind: str) -> None:
    assert how(Run()) == kind


def test_all_rows_of_an_event_name_its_trace() -> None:
    run = Run()
    run.hears(replace(success(TRIP.steps[0].event), causation_id=run.instance.command_id, trace_id=TRACE))
    assert [row.trace_id for row in run.history] == [None, TRACE, TRACE]
    run.hears(replace(failure(run.instance.command_id or "", FOR_GOOD), trace_id=TRACE))
    assert [row.trace_id for row in run.history[3:]] == [TRACE]


def test_a_start_names_the_trace_of_its_request() -> None:
    asked = SagaStart("trip", "ada", "c-1", {"team": "blue"}, traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    assert start(TRIP, asked, "command-1", NOW).history[0].trace_id == TRACE


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"cc-{TRACE}-b7ad6b7169203331-01-what-comes-later", TRACE),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
        (f"00-{TRACE}", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_trace_id_is_that_of_a_traceparent(header: object, trace: str | None) -> None:
    assert trace_id(header) == trace


# When the work of a try began.


def says(run: Run, ms: int | None, command: str | None = None) -> datetime | None:
    """What the row of a success says that tells how long its work took."""
    cause = run.instance.command_id if command is None else command
    run.hears(replace(success(TRIP.steps[0].event), causation_id=cause, began_ms_ago=ms))
    return run.history[-2].begun_at


def test_an_event_says_when_the_work_began_that_it_ends() -> None:
    run = Run()
    run.passes(30)
    assert says(run, 12_000) == run.now - timedelta(seconds=12)
    assert run.history[-1].begun_at is None, "what follows at once ends no try"


def test_no_work_began_before_its_command_or_after_its_end() -> None:
    run, other = Run(), Run()
    began = run.now
    run.passes(30)
    assert says(run, 3_600_000) == began
    assert says(other, -5) == other.now


def test_without_a_word_of_the_event_the_report_of_the_begin_counts() -> None:
    run = Run()
    run.passes(9)
    begun = begin(TRIP, run.instance, 4_000, run.now)
    assert begun is not None
    run.instance = begun
    assert begun.begun_at == run.now - timedelta(seconds=4)
    late = Run()
    late.instance = begun
    assert says(late, None) == begun.begun_at
    run.expires()
    assert (said(run), run.history[-1].begun_at) == ([("attempt_failed", "flight", None)], begun.begun_at)
    run.expires()
    run.fails()
    assert run.history[-1].begun_at is None, "that was the try before"


def test_without_any_word_it_is_unknown() -> None:
    assert says(Run(), None) is None


def test_the_success_of_an_earlier_try_says_nothing_of_the_begin_of_the_present_one() -> None:
    run = Run()
    first = run.instance.command_id
    run.fails(AGAIN)
    run.expires()
    begun = begin(TRIP, run.instance, 0, run.now)
    assert begun is not None
    run.instance = begun
    assert says(run, None, first) is None


@pytest.mark.parametrize(
    ("given", "read"), [("1200", 1200), ("0.9", 0), ("-3", 0), ('"soon"', None), ("true", None), ("null", None)]
)
def test_what_an_event_says_of_its_work_is_read_or_ignored(given: str, read: int | None) -> None:
    body = b'{"appId": 7, "correlationId": "c", "beganMsAgo": %s}' % given.encode()
    assert read_event("evt.x", body).began_ms_ago == read
