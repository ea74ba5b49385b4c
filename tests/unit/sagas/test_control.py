"""What does each verb do in each situation?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, FAILED, Saga
from orchestrix.saga.actions.apply import InvalidActionError, allowed, unchanged
from orchestrix.saga.actions.merge_patch import merged
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.messages import MAX_DATA, dump
from tests.unit.sagas.builders import CORRELATION, FIRST, SECOND, step
from tests.unit.sagas.runs import AGAIN, TRIP, Run

BACK, LOST, HOTEL = "COMPENSATING", "COMPENSATION_FAILED", "SLEEPING"


def flying() -> Run:
    """The third step is out."""
    return Run(TRIP, "flight", "notice")


def after(*what: Callable[[Run], object]) -> Callable[[], Run]:
    """How to come to a situation from there."""

    def make() -> Run:
        run = flying()
        for one in what:
            one(run)
        return run

    return make


def ask(verb: SagaAction) -> Callable[[Run], object]:
    """A person asks."""
    return lambda run: run.asks(verb)


def fails(run: Run) -> None:
    run.fails()


def retries(run: Run) -> None:
    run.fails(AGAIN)


def completes(run: Run) -> None:
    run.done("hotel")
    run.done("car")


def is_undone(run: Run) -> None:
    run.undone("flight")


SITUATIONS: dict[str, Callable[[], Run]] = {
    "out": flying,
    "late": after(lambda run: run.expires(unheard=True)),
    "retry": after(retries),
    "paused": after(ask(SagaAction.PAUSE)),
    "paused retry": after(retries, ask(SagaAction.PAUSE)),
    "paused, next unsent": after(ask(SagaAction.PAUSE), lambda run: run.done("hotel")),
    "unsendable": after(Run.cannot_be_sent),
    "cancelled": after(ask(SagaAction.CANCEL)),
    "cancelled, paused": after(ask(SagaAction.CANCEL), ask(SagaAction.PAUSE)),
    "undo": after(fails),
    "undo retry": after(fails, retries),
    "undo paused": after(fails, ask(SagaAction.PAUSE)),
    "undo unsendable": after(fails, Run.cannot_be_sent),
    "undo failed": after(fails, fails),
    "completed": after(completes),
    "failed": after(fails, is_undone),
}
IDLE, NO, SAME = "idle", "no", "same"
MOVES: dict[str, tuple[str, ...]] = {
    #                       retry  skip      edit  pause resume cancel terminate set   cancel-deadline
    "out": (                IDLE, "DRIVING", NO,   SAME, IDLE, BACK, FAILED, SAME, SAME),
    "late": (               IDLE, "DRIVING", NO,   SAME, IDLE, BACK, FAILED, SAME, SAME),
    "retry": (              SAME, "DRIVING", NO,   SAME, IDLE, BACK, FAILED, SAME, NO),
    "paused": (             NO,   "DRIVING", SAME, IDLE, SAME, BACK, FAILED, NO,   NO),
    "paused retry": (       NO,   "DRIVING", SAME, IDLE, SAME, BACK, FAILED, NO,   NO),
    "paused, next unsent": (NO,   COMPLETED, SAME, IDLE, SAME, BACK, FAILED, NO,   NO),
    "unsendable": (         SAME, "DRIVING", SAME, NO,   NO,   BACK, FAILED, NO,   NO),
    "cancelled": (          IDLE, NO,        NO,   SAME, IDLE, IDLE, FAILED, SAME, SAME),
    "cancelled, paused": (  NO,   NO,        SAME, IDLE, SAME, IDLE, FAILED, NO,   NO),
    "undo": (               IDLE, NO,        NO,   SAME, IDLE, IDLE, FAILED, SAME, SAME),
    "undo retry": (         SAME, NO,        NO,   SAME, IDLE, IDLE, FAILED, SAME, NO),
    "undo paused": (        NO,   NO,        SAME, IDLE, SAME, IDLE, FAILED, NO,   NO),
    "undo unsendable": (    SAME, NO,        SAME, NO,   NO,   IDLE, FAILED, NO,   NO),
    "undo failed": (        BACK, FAILED,    SAME, NO,   NO,   IDLE, FAILED, NO,   NO),
    "completed": (          NO,   NO,        NO,   NO,   NO,   NO,   NO,     NO,   NO),
    "failed": (         "FLYING", NO,        SAME, NO,   NO,   IDLE, IDLE,   NO,   NO),
}  # fmt: skip
CASES = [(place, verb, to) for place, row in MOVES.items() for verb, to in zip(SagaAction, row, strict=True)]
MORE: dict[SagaAction, dict[str, Any]] = {
    SagaAction.EDIT: {"patch": {"amount": 9}},
    SagaAction.SET_DEADLINE: {"extend_by": timedelta(seconds=1)},
    SagaAction.SKIP: {"output": {"amount": 8}},
}


def more(place: str, verb: SagaAction) -> dict[str, Any]:
    """What goes with the verb; an undo that is skipped has no output."""
    return {} if (place, verb) == ("undo failed", SagaAction.SKIP) else MORE.get(verb, {})


@pytest.mark.parametrize(("place", "verb", "to"), CASES, ids=[f"{verb.value} {place}" for place, verb, _ in CASES])
def test_verb_in_situation(place: str, verb: SagaAction, to: str) -> None:
    run = SITUATIONS[place]()
    before, rows = run.instance, len(run.history)
    if to == NO:
        assert verb not in run.refused(verb, **more(place, verb)) or verb is SagaAction.CANCEL_DEADLINE
    else:
        acted = run.asks(verb, **more(place, verb))
    if to in (NO, IDLE):
        assert (run.instance, len(run.history)) == (before, rows)
        assert verb not in allowed(TRIP, before) or verb is SagaAction.CANCEL_DEADLINE
        return
    assert verb in allowed(TRIP, before)
    assert run.state == (before.state if to == SAME else to)
    row = acted.history[0]
    assert (row.version, row.from_state, row.actor) == (before.version + 1, before.state, "ada")
    assert (row.reason, row.correlation_id, row.caused_by) == (f"{verb.value}: because", CORRELATION, None)


def test_every_situation_is_in_the_table() -> None:
    assert MOVES.keys() == SITUATIONS.keys()


@pytest.mark.parametrize(
    ("verb", "place", "says", "instead"),
    [
        (
            SagaAction.RETRY,
            "paused",
            "cannot retry: saga 7 is SLEEPING and blocked (paused)",
            "skip edit resume",
        ),
        (SagaAction.SKIP, "undo", "cannot skip: saga 7 is COMPENSATING", "pause"),
        (
            SagaAction.PAUSE,
            "undo failed",
            "cannot pause: saga 7 is COMPENSATION_FAILED and blocked (undo_failed)",
            "",
        ),
        (SagaAction.CANCEL, "completed", "cannot cancel: saga 7 is already COMPLETED", ""),
    ],
)
def test_a_refusal_says_what_is_allowed(verb: SagaAction, place: str, says: str, instead: str) -> None:
    run = SITUATIONS[place]()
    with pytest.raises(Exception, match=r"^cannot ") as refused:
        run.asks(verb)
    assert str(refused.value) == says
    assert {SagaAction(word) for word in instead.split()} <= set(run.refused(verb))
    assert run.refused(verb) == allowed(TRIP, run.instance)


def test_a_cancel_after_an_undo_has_failed_says_that_it_changes_nothing_and_what_does() -> None:
    run = SITUATIONS["undo failed"]()
    before = run.instance
    acted = run.asks(SagaAction.CANCEL)
    assert (acted.history, acted.instance) == ((), before)
    told = unchanged(acted.instance, SagaAction.CANCEL)
    assert told == "already being undone, and an undo has failed: retry or skip it, or terminate"
    assert {SagaAction.RETRY, SagaAction.SKIP, SagaAction.TERMINATE} <= set(allowed(TRIP, before))


@pytest.mark.parametrize(
    ("place", "verb", "says"),
    [
        ("undo", SagaAction.CANCEL, "being undone"),
        ("failed", SagaAction.CANCEL, "already ended: retry runs it again"),
        ("failed", SagaAction.TERMINATE, "already ended: retry runs it again"),
        ("paused", SagaAction.PAUSE, "already paused: resume ends the pause"),
        ("retry", SagaAction.RESUME, "not paused"),
        ("undo", SagaAction.RETRY, "nothing to retry: attempt 1 is still running"),
    ],
)
def test_what_changes_nothing_says_why(place: str, verb: SagaAction, says: str) -> None:
    run = SITUATIONS[place]()
    acted = run.asks(verb)
    assert acted.history == ()
    assert says in unchanged(acted.instance, verb)


def test_verbs_are_listed_in_one_order() -> None:
    assert [verb.value for verb in allowed(TRIP, SITUATIONS["retry"]().instance)] == [
        "retry", "skip", "pause", "cancel", "terminate", "set-deadline", "cancel-deadline",
    ]  # fmt: skip


# Retry.


def test_retry_sends_at_once_what_waited_for_its_time() -> None:
    run = SITUATIONS["retry"]()
    acted = run.asks(SagaAction.RETRY)
    assert acted.command is not None
    assert (acted.command.type, acted.command.attempt, acted.withdrawn) == ("cmd.hotel", 2, None)
    assert (run.instance.tries, run.instance.wake_reason, run.wait) == (2, "deadline", 10.0)
    assert acted.history[-1].command_id == acted.command.id


def test_retry_of_what_could_not_be_sent_sends_the_same_command() -> None:
    run = SITUATIONS["unsendable"]()
    id = run.instance.command_id
    run.asks(SagaAction.EDIT, patch={"note": "shorter"})
    acted = run.asks(SagaAction.RETRY)
    assert acted.command is not None
    assert (acted.command.id, acted.command.attempt, acted.command.data) == (id, 1, {"note": "shorter"})
    assert (run.instance.blocker, run.instance.wake_reason) == (None, "deadline")


def test_retry_of_what_has_failed_begins_anew_with_the_data_as_it_is() -> None:
    run = SITUATIONS["failed"]()
    run.asks(SagaAction.EDIT, patch={"amount": 2})
    acted = run.asks(SagaAction.RETRY)
    assert acted.command is not None
    assert (acted.command.type, acted.command.attempt, acted.command.data) == ("cmd.flight", 2, {"amount": 2})
    assert acted.history[-1].command_id == acted.command.id == run.instance.command_id
    for name in ("flight", "notice", "hotel", "car"):
        run.done(name)
    assert run.state == COMPLETED


# Skip.


@pytest.mark.parametrize("place", ["out", "retry", "paused", "unsendable"])
def test_skip_stands_for_the_step_s_success(place: str) -> None:
    run = SITUATIONS[place]()
    id = run.instance.command_id
    acted = run.asks(SagaAction.SKIP, output={"amount": 8})
    assert acted.withdrawn == id
    assert run.instance.data == {"amount": 8}
    assert [(row.from_state, row.to_state) for row in acted.history] == [(HOTEL, "DRIVING")]
    assert (acted.command is None) == (run.instance.blocker is not None) == (place == "paused")
    assert run.instance.attempt == 1


def test_immediate_moves_behind_a_skip_are_the_orchestrator_s() -> None:
    run = Run()
    acted = run.asks(SagaAction.SKIP)
    assert [(row.to_state, row.reason, row.actor) for row in acted.history] == [
        ("BOOKED", "skip: because", "ada"),
        ("NOTICING", "immediate", "orchestrator"),
    ]
    assert run.done("flight", causation_id=FIRST) == "repeated"


def test_skip_of_the_last_step_completes() -> None:
    run = Run(TRIP, "flight", "notice", "hotel")
    run.asks(SagaAction.SKIP)
    assert (run.state, run.instance.wake_at, run.instance.command_id) == (COMPLETED, None, None)


def test_a_skipped_step_is_undone_with_the_others() -> None:
    run = flying()
    run.asks(SagaAction.SKIP)
    run.fails()
    assert run.instance.progress.todo == ("hotel", "flight")


def test_an_undo_that_is_skipped_takes_no_output() -> None:
    run = SITUATIONS["undo failed"]()
    before = run.instance
    with pytest.raises(InvalidActionError) as refused:
        run.asks(SagaAction.SKIP, output={"amount": 8})
    assert refused.value.errors[0]["loc"] == ("output",)
    assert run.instance == before
    run.asks(SagaAction.SKIP, output={})
    assert run.state == FAILED


@pytest.mark.parametrize(
    ("output", "field"),
    [({"amount": "many"}, ("output", "amount")), ({"x": "y" * MAX_DATA}, ("output",))],
)
def test_output_that_cannot_be(output: dict[str, Any], field: tuple[str, ...]) -> None:
    run = flying()
    before = run.instance
    with pytest.raises(InvalidDataError) as refused:
        run.asks(SagaAction.SKIP, output=output)
    assert refused.value.errors[0]["loc"] == field
    assert run.instance == before


# Edit.


@pytest.mark.parametrize(
    ("data", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_patch_is_merged_as_rfc_7396_says(data: Any, patch: Any, result: Any) -> None:
    assert merged(data, patch) == result


def test_a_patch_leaves_what_it_was_given() -> None:
    data, patch = {"a": {"b": 1}}, {"a": {"c": {"d": 2}}}
    after_it = merged(data, patch)
    after_it["a"]["c"]["d"] = 3
    assert (data, patch) == ({"a": {"b": 1}}, {"a": {"c": {"d": 2}}})


def test_edit_changes_the_data_and_nothing_else() -> None:
    run = SITUATIONS["unsendable"]()
    before = run.instance
    acted = run.asks(SagaAction.EDIT, patch={"address": {"city": "Berlin"}, "x": None})
    assert run.rows[-1] == (HOTEL, HOTEL, "edit: because")
    assert run.instance.data == {"address": {"city": "Berlin"}}
    assert (run.instance.blocker, run.instance.wait_ms, run.instance.command_id) == (
        before.blocker, before.wait_ms, before.command_id,
    )  # fmt: skip
    assert (acted.command, acted.withdrawn) == (None, None)


@pytest.mark.parametrize("patch", [{}, None, {"gone": None}, {"amount": 4}])
def test_an_edit_without_effect_leaves_no_trace(patch: dict[str, Any] | None) -> None:
    run = Run(data={"amount": 4})
    run.asks(SagaAction.PAUSE)
    version = run.instance.version
    assert run.asks(SagaAction.EDIT, patch=patch).history == ()
    assert run.instance.version == version


@pytest.mark.parametrize(
    ("patch", "field"), [({"amount": "many"}, "amount"), ({"address": 4}, "address"), ({"x": "y" * MAX_DATA}, "data")]
)
def test_a_patch_that_cannot_be(patch: dict[str, Any], field: str) -> None:
    run = SITUATIONS["paused"]()
    before = run.instance
    with pytest.raises(InvalidDataError) as refused:
        run.asks(SagaAction.EDIT, patch=patch)
    assert [error["loc"][0] for error in refused.value.errors] == [field]
    assert run.instance == before


def test_data_that_has_grown_large_can_still_be_edited() -> None:
    run = Run(data={"a": "x" * (MAX_DATA - 20), "b": "y" * 100})
    assert len(dump(run.instance.data)) > MAX_DATA
    run.asks(SagaAction.PAUSE)
    run.asks(SagaAction.EDIT, patch={"b": None})
    assert "b" not in run.instance.data


# Times that cannot be.


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"extend_by": timedelta(seconds=-60)}, "extendBy"),
        ({"extend_by": timedelta.max}, "extendBy"),
        ({"extend_by": timedelta(days=365 * 8000)}, "extendBy"),
    ],
)
def test_a_deadline_lies_ahead_and_in_this_calendar(more: dict[str, Any], field: str) -> None:
    run = flying()
    with pytest.raises(InvalidDataError, match="must be in the future") as refused:
        run.asks(SagaAction.SET_DEADLINE, **more)
    assert refused.value.errors[0]["loc"] == (field,)


def test_a_deadline_in_the_past_is_refused() -> None:
    run = flying()
    with pytest.raises(InvalidDataError, match="at: must be in the future"):
        run.asks(SagaAction.SET_DEADLINE, at=run.now)


# Terminate.


@pytest.mark.parametrize(
    ("place", "left"),
    [
        ("out", ("hotel", "flight")),
        ("retry", ("flight",)),
        ("paused, next unsent", ("hotel", "flight")),
        ("cancelled", ("hotel", "flight")),
        ("undo", ("flight",)),
        ("undo failed", ("flight",)),
    ],
)
def test_terminate_undoes_nothing_and_knows_what_it_leaves(place: str, left: tuple[str, ...]) -> None:
    run = SITUATIONS[place]()
    before = run.instance
    acted = run.asks(SagaAction.TERMINATE)
    assert (acted.command, acted.undo, acted.withdrawn) == (None, (), before.command_id)
    assert len(acted.history) == 1
    assert (run.instance.state, run.instance.wake_at, run.instance.blocker) == (FAILED, None, None)
    assert run.instance.progress.left == left


def test_what_terminate_left_is_undone_when_a_later_run_fails() -> None:
    run = flying()
    run.asks(SagaAction.TERMINATE)
    assert run.done("hotel", causation_id=SECOND) == "ended"
    run.asks(SagaAction.RETRY)
    run.fails()
    assert (run.state, run.instance.progress.todo) == (BACK, ("hotel", "flight"))
    run.undone("hotel")
    run.undone("flight")
    assert (run.state, run.instance.progress.left) == (FAILED, ())


def test_what_terminate_left_stays_known_while_the_next_run_goes_on() -> None:
    run = flying()
    run.asks(SagaAction.TERMINATE)
    run.asks(SagaAction.RETRY)
    run.done("flight")
    assert run.instance.progress.left == ("hotel", "flight")
    run.fails()
    assert run.instance.progress.todo == ("hotel", "flight"), "each of them once"


def test_a_saga_that_leaves_nothing_ends_at_once() -> None:
    run = Run(Saga("x", (step("one"),)))
    acted = run.asks(SagaAction.TERMINATE)
    assert (run.state, acted.instance.progress.left) == (FAILED, ())


@pytest.mark.parametrize("undo", [False, True], ids=["step", "undo"])
def test_a_state_of_another_version_can_be_ended_and_nothing_else_moves_it(undo: bool) -> None:
    run = flying()
    if undo:
        run.fails()
        run.saga = Saga("trip", (step("walk", "WALKING", COMPLETED),))
    else:
        run.instance = replace(run.instance, state="SWIMMING")
    may = set(run.refused(SagaAction.SKIP))
    assert SagaAction.TERMINATE in may
    assert not may & {SagaAction.CANCEL, SagaAction.RETRY}
    run.asks(SagaAction.TERMINATE)
    assert (run.state, run.instance.wake_at, run.instance.blocker) == (FAILED, None, None)
