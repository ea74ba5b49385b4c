"""Does a history of a run that went wrong tell of every message, and of each once?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from orchestrix.api.instances.message_history import commands, events
from orchestrix.saga.actions.apply import apply_action
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.advance import advance
from orchestrix.saga.commands import SagaTransition, TransitionInputs
from orchestrix.saga.messages import Event, StepError
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.transition import SagaStart, numbered, start
from sagas.app_provisioning import APP_PROVISIONING as APP

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
DO, UNDO = "cmd.createGitRepo", "cmd.deleteGitRepo"
THEN, UNTHEN = "cmd.registerApp", "cmd.unregisterApp"
FAILED = "evt.stepFailed"


class Run:
    """One app, and all that happened to it."""

    def __init__(self) -> None:
        self._ids = (f"id-{n}" for n in count(1))
        begun = numbered(APP, start(APP, SagaStart("billing", "ada", "c-1", {}), next(self._ids), NOW), 7)
        self.instance: Instance = begun.instance
        self.changes: list[StateChange] = [*begun.history]

    def hears(self, *kinds: str) -> Run:
        """Successes, one after the other."""
        for kind in kinds:
            self.happened(self._event(kind, None))
        return self

    def fails(self, retryable: bool = False, times: int = 1) -> Run:
        """What is out fails, as its worker says."""
        for _ in range(times):
            self.happened(self._event(FAILED, StepError("Full", "disk: full", retryable)))
        return self

    def asked(self, verb: SagaAction) -> Run:
        """A person does something."""
        acted = apply_action(
            APP, self.instance, ActionRequest(verb, "ada", "evt.gitRepoCreated"), TransitionInputs(NOW, next(self._ids))
        )
        self.instance = acted.instance
        self.changes += acted.history
        return self

    @property
    def sent(self) -> list[str]:
        """The types of the commands."""
        return [told.type for told in commands(APP, self.instance, self.changes)]

    @property
    def heard(self) -> list[tuple[str, str | None]]:
        """The types of the events, and what they said."""
        return [(told.type, told.detail) for told in events(APP, self.changes)]

    def _event(self, kind: str, error: StepError | None) -> Event:
        known = self.instance.command_id
        return Event(kind, 7, "c-1", None, next(self._ids), known, {}, error)

    def happened(self, event: Event) -> None:
        """The event comes."""
        moved = advance(APP, self.instance, event, TransitionInputs(NOW, next(self._ids)))
        assert isinstance(moved, SagaTransition), moved
        self.instance = moved.instance
        self.changes += moved.history


def kinds(run: Run) -> Iterator[str]:
    return (kind for kind, _ in run.heard)


def test_a_good_run() -> None:
    run = Run().hears("evt.gitRepoCreated", "evt.appRegistered")
    assert run.sent == [DO, THEN]
    assert run.heard == [("evt.gitRepoCreated", None), ("evt.appRegistered", None)]


def test_every_try_is_a_command_of_its_own() -> None:
    run = Run().fails(retryable=True, times=2).hears("evt.gitRepoCreated")
    assert run.sent == [DO, DO, DO, THEN]
    assert run.heard == [(FAILED, "Full: disk: full")] * 2 + [("evt.gitRepoCreated", None)]


def test_an_undo_and_its_answer() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().hears("evt.gitRepoDeleted")
    assert run.instance.state == "FAILED"
    assert run.sent == [DO, THEN, UNDO]
    assert list(kinds(run)) == ["evt.gitRepoCreated", FAILED, "evt.gitRepoDeleted"]


def test_an_undo_that_is_still_out() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().fails(retryable=True)
    assert run.sent == [DO, THEN, UNDO, UNDO]


def test_a_cancel_undoes_what_was_out_too() -> None:
    run = Run().hears("evt.gitRepoCreated").asked(SagaAction.CANCEL).hears("evt.appRegistered")
    assert run.sent == [DO, THEN, UNTHEN]
    run.hears("evt.appUnregistered", "evt.gitRepoDeleted")
    assert run.sent == [DO, THEN, UNTHEN, UNDO]
    assert list(kinds(run)) == ["evt.gitRepoCreated", "evt.appRegistered", "evt.appUnregistered", "evt.gitRepoDeleted"]


def test_an_undo_that_a_person_skipped_is_known_by_its_neighbour() -> None:
    run = Run().hears("evt.gitRepoCreated").asked(SagaAction.CANCEL).hears("evt.appRegistered")
    run.fails().asked(SagaAction.SKIP)
    assert run.sent == [DO, THEN, UNTHEN, UNDO]
    run.hears("evt.gitRepoDeleted")
    assert run.sent == [DO, THEN, UNTHEN, UNDO]


def test_an_undo_that_a_person_skipped_alone() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().fails().asked(SagaAction.SKIP)
    assert run.instance.state == "FAILED"
    assert run.sent == [DO, THEN, UNDO]


def test_an_undo_that_was_given_up() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().asked(SagaAction.TERMINATE)
    assert run.instance.state == "FAILED"
    assert run.sent == [DO, THEN, UNDO]


def test_a_second_run_begins_anew() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().hears("evt.gitRepoDeleted").asked(SagaAction.RETRY)
    assert run.sent == [DO, THEN, UNDO, DO]
    run.hears("evt.gitRepoCreated").fails().hears("evt.gitRepoDeleted")
    assert run.sent == [DO, THEN, UNDO, DO, THEN, UNDO]


def test_a_failure_that_a_pause_held_back_is_told_once() -> None:
    run = Run().asked(SagaAction.PAUSE).fails(retryable=True)
    assert run.heard == [(FAILED, "Full: disk: full")]
    run.asked(SagaAction.RESUME)
    assert run.heard == [(FAILED, "Full: disk: full")]
    assert run.sent == [DO, DO]


def test_what_a_person_says_is_no_event() -> None:
    assert Run().asked(SagaAction.PAUSE).asked(SagaAction.RESUME).heard == []


def test_an_undo_during_which_another_step_succeeded_late() -> None:
    run = Run().hears("evt.gitRepoCreated")
    late = run.instance.command_id
    run.fails().happened(Event("evt.appRegistered", 7, "c-1", None, "late", late, {}, None))
    assert run.sent == [DO, THEN, UNDO]
    run.hears("evt.gitRepoDeleted", "evt.appUnregistered")
    assert run.sent == [DO, THEN, UNDO, UNTHEN]


def by_an_earlier_release(run: Run) -> Run:
    """The same, written by a node that knew fewer columns."""
    names = ("kind", "step", "message_type", "message_id", "error_type", "error", "trace_id")
    empty: dict[str, Any] = dict.fromkeys(names)
    run.changes = [replace(change, **empty) for change in run.changes]
    return run


def test_rows_of_an_earlier_release_show_the_events_that_their_moves_show() -> None:
    run = by_an_earlier_release(Run().fails(retryable=True).hears("evt.gitRepoCreated").fails())
    assert run.heard == [(FAILED, None), ("evt.gitRepoCreated", None), (FAILED, None)]
    assert run.sent == [DO, DO, THEN, UNDO]


def test_a_success_without_an_id_and_a_skip_in_rows_of_an_earlier_release() -> None:
    run = by_an_earlier_release(Run().hears("evt.gitRepoCreated").asked(SagaAction.SKIP))
    run.changes = [replace(change, caused_by=None) for change in run.changes]
    assert run.heard == [("evt.gitRepoCreated", None)]


def test_rows_of_an_earlier_release_before_those_of_this_one() -> None:
    run = by_an_earlier_release(Run().hears("evt.gitRepoCreated").asked(SagaAction.PAUSE).fails(retryable=True))
    run.asked(SagaAction.RESUME)
    assert run.heard == [("evt.gitRepoCreated", None), (FAILED, None)]
    run.fails().fails().asked(SagaAction.SKIP)
    assert run.sent == [DO, THEN, THEN, UNDO]


def test_an_undone_step_whose_message_was_not_known_when_old_rows_were_filled() -> None:
    run = Run().hears("evt.gitRepoCreated").fails().hears("evt.gitRepoDeleted")
    run.changes = [replace(one, message_type=None) if one.kind == "step_undone" else one for one in run.changes]
    assert list(kinds(run)) == ["evt.gitRepoCreated", FAILED, "evt.gitRepoDeleted"]


def test_a_long_failure_that_a_pause_held_back_is_told_once_where_old_rows_were_filled_with_it_twice() -> None:
    run = Run().asked(SagaAction.PAUSE).fails(retryable=True).asked(SagaAction.RESUME)
    first = next(change for change in run.changes if change.message_type == FAILED)
    run.changes[-1] = replace(run.changes[-1], message_type=FAILED, message_id=first.message_id, error="Full: disk: fu")
    assert run.heard == [(FAILED, "Full: disk: full")]
    run.fails(retryable=True)
    assert run.heard == [(FAILED, "Full: disk: full")] * 2
