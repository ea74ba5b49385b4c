"""Are the effects of a step keyed alike over tries and for the undo, and otherwise in each run?"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrix import Saga
from orchestrix.saga import messages
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.effect_keys import effect_key, former_key, step_key
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import InstanceProgress
from tests.unit.sagas.runs import AGAIN, TRIP, Run

HERE = "0b6f7a52-7d0a-4b0e-9c56-1f2d3c4b5a69"
BEGIN = f"{HERE}:trip:7:1769860800123456"
UNSURE = StepError("Broken", "no word", retryable=False, unsure=True)


def trip(*done: str, saga: Saga = TRIP) -> Run:
    """A trip in a database that has an id."""
    run = Run(saga)
    run.instance = replace(run.instance, installation=HERE)
    for name in done:
        run.done(name)
    return run


def keys(run: Run, begin: int = 0) -> list[str]:
    """The keys of the commands that left, with their types, without what all have in common."""
    return [f"{one.type[4:]} {one.effect_key.removeprefix(BEGIN)}" for one in run.sent[begin:]]


def again(run: Run) -> int:
    """Another run begins; how many commands had left before."""
    before = len(run.sent)
    run.asks(SagaAction.RETRY)
    return before


def test_the_form_of_a_key() -> None:
    run = trip("flight")
    assert run.sent[-1].effect_key == f"{BEGIN}:notice"
    assert json.loads(run.sent[-1].body())["effectKey"] == f"{BEGIN}:notice"
    assert messages.command(run.sent[-1].body()).effect_key == f"{BEGIN}:notice"


def test_an_instance_from_before_has_the_former_key_in_all_runs() -> None:
    run = Run(TRIP, "flight")
    run.fails()
    assert run.sent[-1].effect_key == former_key("trip", 7, "flight") == "trip:7:flight:do"
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    assert (run.sent[-1].effect_key, run.instance.progress.run) == ("trip:7:flight:do", 1)


def test_the_key_is_the_same_over_all_tries_and_for_the_undo() -> None:
    run = trip()
    run.fails(AGAIN)
    run.expires()
    run.done("flight")
    run.done("notice")
    run.fails()
    assert keys(run, 1) == ["flight :flight", "notice :notice", "hotel :hotel", "drop-flight :flight"]


def test_the_first_run_costs_nothing() -> None:
    run = trip("flight", "notice", "hotel")
    assert run.instance.progress.to_json() is None


def test_another_run_has_keys_of_its_own_and_its_undo_too() -> None:
    run = trip("flight", "notice")
    run.fails()
    run.undone("flight")
    before = again(run)
    for name in ("flight", "notice"):
        run.done(name)
    run.fails(UNSURE)
    for name in ("hotel", "flight"):
        run.undone(name)
    third = again(run)
    assert keys(run, before)[: third - before] == [
        "flight :flight:run2",
        "notice :notice:run2",
        "hotel :hotel:run2",
        "drop-hotel :hotel:run2",
        "drop-flight :flight:run2",
    ]
    assert keys(run, third) == ["flight :flight:run3"]


def left_by_the_first_run() -> Run:
    """The second run of a trip whose first was terminated behind its flight."""
    run = trip("flight", "notice")
    run.asks(SagaAction.TERMINATE)
    again(run)
    return run


def test_what_an_earlier_run_has_left_is_undone_under_its_own_key() -> None:
    run = left_by_the_first_run()
    before = len(run.sent)
    run.fails()  # the flight is refused: nothing of this run is there
    run.undone("hotel")
    run.undone("flight")
    assert (run.state, keys(run, before)) == ("FAILED", ["drop-hotel :hotel", "drop-flight :flight"])
    assert run.instance.progress.undone == ("hotel", "flight")


def test_what_two_runs_have_done_is_undone_for_both() -> None:
    run = left_by_the_first_run()
    run.done("flight")
    run.done("notice")
    before = len(run.sent)
    run.fails(UNSURE)
    for name in ("hotel", "hotel", "flight", "flight"):
        assert run.undone(name) is None
    assert keys(run, before) == [
        "drop-hotel :hotel:run2",
        "drop-hotel :hotel",
        "drop-flight :flight:run2",
        "drop-flight :flight",
    ]
    assert (run.state, run.instance.progress.runs, run.instance.progress.undone) == ("FAILED", {}, ("hotel", "flight"))
    assert [one.attempt for one in run.sent[before:]] == [1, 2, 1, 2]


def test_a_cancelled_run_that_waits_for_its_step_undoes_that_of_both_runs() -> None:
    run = left_by_the_first_run()
    run.asks(SagaAction.CANCEL)
    before = len(run.sent)
    run.done("flight")
    for name in ("hotel", "flight", "flight"):
        assert run.undone(name) is None
    assert keys(run, before) == ["drop-hotel :hotel", "drop-flight :flight:run2", "drop-flight :flight"]


def test_what_is_left_twice_is_undone_of_all_runs() -> None:
    run = left_by_the_first_run()
    run.done("flight")
    run.asks(SagaAction.TERMINATE)
    before = again(run)
    run.fails(UNSURE)
    for name in ("hotel", "flight", "flight", "flight"):
        assert run.undone(name) is None
    undone = [key for key in keys(run, before) if key.startswith("drop-flight")]
    assert undone == ["drop-flight :flight:run3", "drop-flight :flight:run2", "drop-flight :flight"]


def test_who_skips_an_undo_means_it_of_all_runs() -> None:
    run = left_by_the_first_run()
    run.done("flight")
    run.asks(SagaAction.CANCEL)
    run.fails()
    run.undone("hotel")
    for _ in range(2):
        run.fails()
        if run.instance.blocker is None:
            run.expires()
    run.asks(SagaAction.SKIP)
    assert (run.state, run.instance.progress.runs) == ("FAILED", {})


def test_a_success_that_comes_late_is_undone_of_every_run_that_it_can_be_of() -> None:
    run = trip("flight")
    run.fails()
    run.undone("flight")
    again(run)
    run.done("flight")
    run.fails()
    run.undone("flight")
    before = len(run.sent)
    assert (run.state, run.done("flight", causation_id="long-ago")) == ("FAILED", None)
    assert (run.undone("flight"), run.undone("flight"), run.state) == (None, None, "FAILED")
    assert keys(run, before) == ["drop-flight :flight:run2", "drop-flight :flight"]
    assert run.instance.command_id is None


def test_a_late_success_leaves_the_key_of_the_undo_that_is_out() -> None:
    run = trip("flight")
    run.fails()
    run.undone("flight")
    again(run)
    run.done("flight")
    run.fails()
    out = run.sent[-1].effect_key
    run.done("flight", causation_id="long-ago")
    assert effect_key(run.instance, "flight", undoes=True) == out == f"{BEGIN}:flight:run2"
    before = len(run.sent)
    while run.state != "FAILED":
        assert run.undone("flight") is None
    assert "drop-flight :flight" in keys(run, before)


def test_the_runs_are_stored_and_read_again() -> None:
    progress = InstanceProgress(run=2, runs={"flight": (1, 2)})
    stored = json.loads(json.dumps(progress.to_json()))
    assert stored == {"run": 2, "runs": {"flight": [1, 2]}}
    assert InstanceProgress.from_json(stored) == progress


@pytest.mark.parametrize("key", [f"{BEGIN}:flight", f"{BEGIN}:flight:run2", f"{BEGIN}:flight:run12"])
def test_the_key_of_a_step_is_the_same_in_all_runs(key: str) -> None:
    assert step_key(key) == f"{BEGIN}:flight"
    assert step_key("trip:7:flight:do") == "trip:7:flight:do"
