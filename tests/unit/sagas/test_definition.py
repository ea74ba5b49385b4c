"""Is a wrong saga refused when its module is imported, with a sentence that says what to change?"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from orchestrix import (
    COMPLETED,
    FAILED,
    Compensation,
    DefinitionError,
    FreeData,
    NothingToUndo,
    RetryPolicy,
    Saga,
    Step,
)
from orchestrix.saga.definition import InvalidDataError
from sagas.app_provisioning import APP_PROVISIONING, AppData
from tests.unit.sagas.builders import LEAVES_NOTHING, ORDER, step

UNDO = Compensation(command="cmd.undo", event="evt.undone")


def two(first: dict[str, Any], second: dict[str, Any]) -> Saga:
    """A saga of two steps with one thing wrong."""
    return Saga("x", (step(**({"name": "one", "then": "B"} | first)), step(**({"name": "two", "state": "B"} | second))))


def undone(**changes: Any) -> Saga:
    """A saga of one step whose undo has one thing wrong."""
    return Saga("x", (step(undo=dataclasses.replace(UNDO, **changes)),))


WRONG: dict[str, tuple[Callable[[], Saga], str]] = {
    "no step": (lambda: Saga("x", ()), "saga 'x': has no step"),
    "empty name": (lambda: Saga("", (step(),)), "a name must be [a-z]"),
    "name in capitals": (lambda: Saga("Order", (step(),)), "saga 'Order': a name must be [a-z][a-z0-9_-]*"),
    "name with a line break": (lambda: Saga("order\n", (step(),)), "a name must be [a-z]"),
    "name too long": (lambda: Saga("x" * 41, (step(),)), "at most 40 characters"),
    "step name": (
        lambda: Saga("x", (step("a b", command="cmd.a", event="evt.a"),)),
        "step 'a b': a step's name must be",
    ),
    "step name with a colon": (
        lambda: Saga("x", (step("a:b", command="cmd.a", event="evt.a"),)),
        "a step's name must be",
    ),
    "state in small letters": (lambda: Saga("x", (step(state="new"),)), "state 'new' must be [A-Z]"),
    "state too long": (lambda: Saga("x", (step(state="S" * 41),)), "at most 40 characters"),
    "reserved first state": (lambda: Saga("x", (step(state="COMPENSATING"),)), "state COMPENSATING is reserved"),
    "begins completed": (lambda: Saga("x", (step(state=COMPLETED),)), "state COMPLETED is reserved"),
    "begins failed": (lambda: Saga("x", (step(state=FAILED),)), "state FAILED is reserved"),
    "leads to failed": (lambda: Saga("x", (step(then=FAILED),)), "state FAILED is reserved"),
    "leads to undo": (lambda: Saga("x", (step(then="COMPENSATION_FAILED"),)), "COMPENSATION_FAILED is reserved"),
    "command without prefix": (lambda: Saga("x", (step(command="work"),)), "command 'work' must be cmd. and a name"),
    "command with a space": (
        lambda: Saga("x", (step(command="cmd.a b"),)),
        "command 'cmd.a b' must be cmd. and a name: a letter, then letters, digits, ., - and _, at most 100 in all",
    ),
    "event with a space": (lambda: Saga("x", (step(event="evt.a b"),)), "and a name: a letter, then letters, digits"),
    "command is an event": (lambda: Saga("x", (step(command="evt.work"),)), "must be cmd. and a name"),
    "command is a pattern": (lambda: Saga("x", (step(command="cmd.*"),)), "must be cmd. and a name"),
    "command too long": (lambda: Saga("x", (step(command="cmd." + "a" * 101),)), "must be cmd. and a name"),
    "command of dead letters": (lambda: Saga("x", (step(command="cmd.a.dead"),)), "named like a dead-letter queue"),
    "event of dead letters": (lambda: Saga("x", (step(event="evt.a.dead"),)), "named like a dead-letter queue"),
    "event without prefix": (lambda: Saga("x", (step(event="done"),)), "event 'done' must be evt. and a name"),
    "event of failure": (lambda: Saga("x", (step(event="evt.stepFailed"),)), "cannot be a success"),
    "no undo": (lambda: Saga("x", (step(undo=None),)), "undo=Compensation(...) or NothingToUndo('why')"),
    "undo command": (lambda: undone(command="undo"), "step 'one', undo: command 'undo' must be cmd."),
    "undo event": (lambda: undone(event="evt."), "step 'one', undo: event 'evt.' must be evt."),
    "undo event of failure": (lambda: undone(event="evt.stepFailed"), "cannot be a success"),
    "undo command is the step's": (lambda: undone(command="cmd.one"), "command cmd.one belongs to more than one"),
    "undo event is the step's": (lambda: undone(event="evt.oneDone"), "event evt.oneDone belongs to more than one"),
    "undo without time": (lambda: undone(timeout=timedelta(0)), "undo: the timeout must be from 1 ms to ten years"),
    "no time": (lambda: Saga("x", (step(timeout=timedelta(0)),)), "timeout must be from 1 ms to ten years"),
    "negative time": (lambda: Saga("x", (step(timeout=timedelta(seconds=-1)),)), "timeout must be from 1 ms"),
    "less than the wire can say": (lambda: Saga("x", (step(timeout=timedelta(microseconds=999)),)), "from 1 ms"),
    "more than a calendar holds": (lambda: Saga("x", (step(timeout=timedelta.max),)), "to ten years"),
    "never tried": (lambda: Saga("x", (step(retry=RetryPolicy(attempts=0)),)), "use 1 to 1000"),
    "retry waits backwards": (
        lambda: Saga("x", (step(retry=RetryPolicy(base=timedelta(-1))),)),
        "base must not exceed cap",
    ),
    "cap of a century": (
        lambda: Saga("x", (step(retry=RetryPolicy(cap=timedelta(days=36500))),)),
        "from 0 to ten years",
    ),
    "undo never tried": (lambda: undone(retry=RetryPolicy(attempts=0)), "the first attempt counts"),
    "undo's cap under base": (
        lambda: undone(retry=RetryPolicy(cap=timedelta(0))),
        "base must not exceed cap",
    ),
    "no time for the run": (lambda: Saga("x", (step(),), timeout=timedelta(0)), "saga 'x': the timeout must be from"),
    "too much for the run": (lambda: Saga("x", (step(),), timeout=timedelta.max), "from 1 ms to ten years"),
    "cap under base": (lambda: Saga("x", (step(retry=RetryPolicy(cap=timedelta(0))),)), "base must not exceed cap"),
    "two steps of one name": (
        lambda: two({}, {"name": "one", "command": "cmd.b", "event": "evt.b"}),
        "name one belongs",
    ),
    "two steps in one state": (lambda: two({}, {"state": "A"}), "state A belongs to more than one step"),
    "command owned twice": (lambda: two({}, {"command": "cmd.one"}), "command cmd.one belongs to more than one step"),
    "event owned twice": (lambda: two({}, {"event": "evt.oneDone"}), "event evt.oneDone belongs to more than one step"),
    "undo owned twice": (lambda: two({"undo": UNDO}, {"undo": UNDO}), "command cmd.undo belongs to more than one step"),
    "unreachable step": (lambda: two({"then": COMPLETED}, {}), "saga 'x': no transition leads to B"),
    "unreachable immediate": (lambda: Saga("x", (step(),), {"LOST": "A"}), "no transition leads to LOST"),
    "dead end": (lambda: Saga("x", (step(then="B"),)), "B has no transition: add a step or an immediate one"),
    "cycle of steps": (lambda: two({}, {"then": "A"}), "A is reached twice, so the saga would never end"),
    "step to itself": (lambda: Saga("x", (step(then="A"),)), "A is reached twice"),
    "cycle of immediate moves": (lambda: Saga("x", (step(then="B"),), {"B": "C", "C": "B"}), "B is reached twice"),
    "waits and moves on": (
        lambda: Saga("x", (step(),), {"A": "B"}),
        "A cannot both wait for a step and move on immediately",
    ),
    "immediate from an end": (lambda: Saga("x", (step(),), {COMPLETED: "A"}), "state COMPLETED is reserved"),
    "immediate to failed": (lambda: Saga("x", (step(then="B"),), {"B": FAILED}), "state FAILED is reserved"),
    "immediate misspelt": (lambda: Saga("x", (step(then="B"),), {"B": "c"}), "state 'c' must be [A-Z]"),
}


@pytest.mark.parametrize(("make", "says"), WRONG.values(), ids=WRONG.keys())
def test_wrong_saga_is_refused_with_a_sentence(make: Callable[[], Saga], says: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        make()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value).replace("'order\\n'", "")


def test_a_wrong_saga_stops_the_import_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from orchestrix import Saga, Step\n"
        "S = Saga('s', (Step(name='a', state='A', command='cmd.a', event='evt.a', then='COMPLETED'),))\n"
    )
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import broken"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "DefinitionError: saga 's', step 'a': undo is required" in ended.stderr


def test_smallest_saga() -> None:
    saga = Saga("x", (step(),))
    assert saga.path == ("A", COMPLETED)
    assert saga.initial == "A"
    assert saga.moves == {(None, "A"), ("A", COMPLETED), ("A", FAILED), (FAILED, "A")}
    assert saga.data is FreeData
    assert saga.version == 1


def test_edge_of_what_names_may_be() -> None:
    longest = step("s" * 40, "S" * 40, command="cmd." + "c" * 100, event="evt." + "e" * 100)
    assert Saga("x" * 40, (longest,)).steps == (longest,)
    Saga("a-b_2", (step("a-B_2", "A_2", command="cmd.a.b-C_2", event="evt.a.b-C_2"),))


def test_edge_of_what_times_may_be() -> None:
    assert step(timeout=timedelta(milliseconds=1)).timeout_ms == 1
    Saga("x", (step(timeout=timedelta(milliseconds=1)),))
    Saga("x", (step(timeout=timedelta(days=3650)),))


def test_steps_may_be_listed_in_another_order_than_they_run() -> None:
    saga = Saga("x", (step("one", "A", "B"), step("three", "C"), step("two", "B", "C")))
    assert saga.path == ("A", "B", "C", COMPLETED)


@pytest.mark.req("S3-28")
def test_states_of_the_app_saga() -> None:
    assert APP_PROVISIONING.path == ("APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING", COMPLETED)
    states = {edge.source for edge in APP_PROVISIONING.edges} | {edge.target for edge in APP_PROVISIONING.edges}
    good = {"APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING", "COMPLETED", "FAILED"}
    assert states == {None, *good, "COMPENSATING", "COMPENSATION_FAILED"}


def test_moves_of_the_app_saga() -> None:
    assert [(edge.source, edge.target, edge.cause) for edge in APP_PROVISIONING.edges] == [
        (None, "APP_INITIATED", "created"),
        ("APP_INITIATED", "GIT_REPO_CREATED", "evt.gitRepoCreated"),
        ("GIT_REPO_CREATED", "REGISTERING", "immediate"),
        ("REGISTERING", "COMPLETED", "evt.appRegistered"),
        ("APP_INITIATED", "FAILED", "evt.stepFailed"),
        ("GIT_REPO_CREATED", "FAILED", "evt.stepFailed"),
        ("REGISTERING", "FAILED", "evt.stepFailed"),
        ("APP_INITIATED", "COMPENSATING", "evt.stepFailed"),
        ("GIT_REPO_CREATED", "COMPENSATING", "evt.stepFailed"),
        ("REGISTERING", "COMPENSATING", "evt.stepFailed"),
        ("COMPENSATING", "FAILED", "undone"),
        ("COMPENSATING", "COMPENSATION_FAILED", "undo failed"),
        ("COMPENSATION_FAILED", "COMPENSATING", "retry or skip"),
        ("COMPENSATION_FAILED", "FAILED", "skip or terminate"),
        ("FAILED", "APP_INITIATED", "retry"),
    ]


def test_names_of_the_app_saga_are_those_that_foreign_workers_know() -> None:
    assert APP_PROVISIONING.name == "app"
    messages = [(step.name, step.state, step.command, step.event) for step in APP_PROVISIONING.steps]
    assert messages == [
        ("createGitRepo", "APP_INITIATED", "cmd.createGitRepo", "evt.gitRepoCreated"),
        ("registerApp", "REGISTERING", "cmd.registerApp", "evt.appRegistered"),
    ]
    undo = [step.undo for step in APP_PROVISIONING.steps]
    assert [(one.command, one.event) for one in undo if isinstance(one, Compensation)] == [
        ("cmd.deleteGitRepo", "evt.gitRepoDeleted"),
        ("cmd.unregisterApp", "evt.appUnregistered"),
    ]
    assert [step.timeout_ms for step in APP_PROVISIONING.steps] == [60_000, 60_000]


def test_every_state_has_its_place() -> None:
    assert [ORDER.position(state) for state in ORDER.path] == list(range(len(ORDER.path)))
    assert ORDER.position(FAILED) == ORDER.position("NO_STATE_OF_THIS_SAGA") == len(ORDER.path)


def test_lookups() -> None:
    assert ORDER.step("pay") is ORDER.step_in("PAYING") is ORDER.steps[1]
    assert ORDER.step("nobody") is ORDER.step_in("PAID") is ORDER.step_in(COMPLETED) is None


def test_a_saga_cannot_be_changed() -> None:
    steps, immediate = [step(then="B")], {"B": COMPLETED}
    saga = Saga("x", steps, immediate)  # type: ignore[arg-type]
    steps.clear()
    immediate["B"] = "A"
    assert saga.path == ("A", "B", COMPLETED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        saga.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        saga.immediate["B"] = "A"  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        saga.steps[0].state = "C"  # type: ignore[misc]


def test_steps_need_no_undo_only_if_they_say_so() -> None:
    assert isinstance(LEAVES_NOTHING, NothingToUndo)
    Saga("x", (Step("a", "A", "cmd.a", "evt.a", COMPLETED, undo=NothingToUndo("an e-mail cannot be called back")),))


def test_data_passes_the_model_as_it_is() -> None:
    data = {"amount": 3, "extra": {"deep": [1]}}
    assert ORDER.check(data) == data
    assert ORDER.check(data) is not data


def test_data_keeps_what_the_client_wrote() -> None:
    day = {"amount": 3, "address": {"at": "2026-01-31"}, "more": [1.0]}
    assert ORDER.check(day) == day, "the model judges, it does not rewrite"
    assert AppData.model_fields.keys() == {"repoUrl", "executorGroup"}
    assert APP_PROVISIONING.check({}) == {}, "defaults are the reader's business"


class Priced(BaseModel):
    amount: int

    @model_validator(mode="before")
    @classmethod
    def look_up(cls, data: Any) -> Any:
        return {"amount": {"Rome": 5}[data["city"]]}


def test_a_model_whose_own_code_fails_refuses_the_data() -> None:
    priced = Saga("x", (step(),), data=Priced)
    assert priced.check({"city": "Rome"}) == {"city": "Rome"}
    with pytest.raises(InvalidDataError) as refused:
        priced.check({"city": "Atlantis"})
    said = "data: the model Priced cannot check it: its own code failed with KeyError: 'Atlantis'"
    assert str(refused.value) == said
    assert isinstance(refused.value.__cause__, KeyError)


class Stop(BaseException):
    """What no `except Exception` catches."""


class Stopping(BaseModel):
    """Its validator raises it."""

    @model_validator(mode="before")
    @classmethod
    def stop(cls, data: Any) -> Any:
        raise Stop("enough")


def test_a_model_that_raises_what_is_no_exception_refuses_the_data() -> None:
    with pytest.raises(InvalidDataError, match="its own code failed with Stop: enough"):
        Saga("x", (step(),), data=Stopping).check({})


@pytest.mark.parametrize("data", [{"amount": "many"}, {"amount": None}, {"address": 5}, {"amount": 1.5}])
def test_data_that_the_model_refuses(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidDataError) as refused:
        ORDER.check(data)
    assert [error["loc"] for error in refused.value.errors] == [(next(iter(data)),)]
    assert str(refused.value).startswith(f"{next(iter(data))}: Input should be")
