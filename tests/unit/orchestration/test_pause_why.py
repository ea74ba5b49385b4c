"""Is it told of a paused saga what the pause does not hold back?"""

from __future__ import annotations

from orchestrix import COMPLETED, Compensation, Job, NothingToUndo, Saga, Step
from orchestrix.engine.explain.pause import in_flight_note
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError
from tests.unit.sagas.builders import FOR_GOOD
from tests.unit.sagas.runs import Run

LAST = NothingToUndo("it is the last step")
BREW = Saga(
    "brew",
    (
        Step("mash", "MASHING", "cmd.mash", "evt.mashed", "BOILING", Compensation("cmd.drain", "evt.drained")),
        Step("boil", "BOILING", job=Job("boil"), event="evt.boiled", then=COMPLETED, undo=LAST),
    ),
)
ON_ITS_WAY = "may be running: a success counts at once"


def paused(*done: str) -> Run:
    run = Run(BREW, *done)
    run.asks(SagaAction.PAUSE)
    return run


def told(run: Run) -> str:
    return in_flight_note(BREW, run.instance)


def test_what_follows_waits() -> None:
    assert told(paused()) == f" The step {ON_ITS_WAY}; the next step waits for `resume`."


def test_the_last_step_completes_a_paused_saga() -> None:
    run = paused("mash")
    there = "a success counts at once and completes the saga (this is its last step)."
    assert told(run) == f" Its job may be running: {there}"
    run.done("boil")
    assert (run.state, run.instance.blocker) == (COMPLETED, None)


def test_so_does_one_behind_which_all_moves_are_made_at_once() -> None:
    step = Step("mash", "MASHING", "cmd.mash", "evt.mashed", "MASHED", LAST)
    saga = Saga("brew", (step,), immediate={"MASHED": "COOLED", "COOLED": COMPLETED})
    run = Run(saga)
    run.asks(SagaAction.PAUSE)
    assert in_flight_note(saga, run.instance).endswith("and completes the saga (this is its last step).")
    run.done("mash")
    assert (run.state, run.instance.blocker) == (COMPLETED, None)


def test_the_last_undo_ends_a_paused_saga() -> None:
    run = Run(BREW, "mash")
    run.fails(FOR_GOOD)
    run.asks(SagaAction.PAUSE)
    assert told(run) == f" The undo {ON_ITS_WAY} and ends the undo; the saga is then FAILED."
    run.undone("mash")
    assert (run.state, run.instance.blocker) == ("FAILED", None)


def test_nothing_comes_of_what_has_failed_or_was_never_sent() -> None:
    run = paused()
    run.fails(StepError("Busy", "503", retryable=True))
    assert told(run) == ""
    run = paused()
    run.done("mash")
    assert (run.state, told(run)) == ("BOILING", "")
