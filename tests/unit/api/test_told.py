"""Does a history of a run that went wrong tell of every message, and of each once?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

from orchestrix.api.instances.message_history import commands, events
from orchestrix.saga.actions.control import act
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
            self._happened(self._event(kind, None))
        return self

    def fails(self, retryable: bool = False, times: int = 1) -> Run:
        """What is out fails, as its worker says."""
        for _ in range(times):
            self._happened(self._event(FAILED, StepError("Full", "disk: full", retryable)))
        return self

    def asked(self, verb: SagaAction) -> Run:
        """A person does something."""
        acted = act(
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
        return [(told.type, told.said) for told in events(APP, self.changes)]

    def _event(self, kind: str, error: StepError | None) -> Event:
        known = self.instance.command_id
        return Event(kind, 7, "c-1", None, next(self._ids), known, {}, error)

    def _happened(self, event: Event) -> None:
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
