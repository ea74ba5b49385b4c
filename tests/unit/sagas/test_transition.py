"""What does every event do in every state?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, FAILED, Event, Saga
from orchestrix.saga.advance import advance
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import MAX_REASON, SagaTransition, command_for
from orchestrix.saga.errors import IllegalTransition
from orchestrix.saga.messages import MAX_DATA, StepError, dump
from orchestrix.saga.state import Instance, InstanceProgress, StateChange
from orchestrix.saga.transition import IgnoredEvent, SagaStart, block, move, numbered, owner_of, start
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import (
    CORRELATION,
    FIRST,
    FOR_GOOD,
    LATER,
    NOW,
    ORDER,
    SECOND,
    THIRD,
    along,
    began,
    failure,
    moved,
    sent,
    step,
    success,
    tick,
)

MINUTE = timedelta(minutes=1)
CREATED, REGISTERED = "evt.gitRepoCreated", "evt.appRegistered"
FAILURE = "evt.stepFailed: OutOfDisk: no space left"


def ended(state: str) -> Instance:
    """An app that ended in `state`."""
    if state == COMPLETED:
        return along(APP_PROVISIONING, 2)
    return moved(APP_PROVISIONING, began().instance, failure(FIRST, FOR_GOOD)).instance


def undoing() -> Instance:
    """An app whose second step has failed for good; the undo of its first is out, as `command-3`."""
    return moved(APP_PROVISIONING, along(APP_PROVISIONING, 1), failure(SECOND, FOR_GOOD), THIRD).instance


def app_in(state: str) -> Instance:
    """An app in any state, also in the one that it never rests in."""
    if state in (COMPLETED, FAILED):
        return ended(state)
    if state == "GIT_REPO_CREATED":
        return dataclasses.replace(began().instance, state=state, version=2)
    if state == "COMPENSATING":
        return undoing()
    if state == "COMPENSATION_FAILED":
        return moved(APP_PROVISIONING, undoing(), failure(THIRD, FOR_GOOD)).instance
    return along(APP_PROVISIONING, {"APP_INITIATED": 0, "REGISTERING": 1}[state])


# The start.


def test_start_gives_a_first_state_a_history_row_and_a_command() -> None:
    asked = SagaStart("billing", "ada", CORRELATION, {"team": "blue"}, traceparent="00-1-2-01", tracestate="a=b")
    result = start(APP_PROVISIONING, asked, FIRST, NOW)
    assert result.instance == Instance(
        id=0,
        saga="app",
        key="billing",
        created_by="ada",
        state="APP_INITIATED",
        version=1,
        correlation_id=CORRELATION,
        command_id=FIRST,
        attempt=1,
        wake_at=NOW + MINUTE,
        wake_reason="deadline",
        wait_ms=60_000,
        blocker=None,
        data={"team": "blue"},
        definition_version=1,
        created_at=NOW,
        updated_at=NOW,
        traceparent="00-1-2-01",
        tracestate="a=b",
        trace_head="00-1-2-01",
    )
    created = StateChange(1, None, "APP_INITIATED", "created", "ada", CORRELATION, None, FIRST, NOW, "created")
    assert result.history == (created,)
    assert sent(result.command).type == "cmd.createGitRepo"


def test_the_number_that_the_database_gives_reaches_the_command() -> None:
    unnumbered = start(APP_PROVISIONING, SagaStart("billing", "ada", CORRELATION, {}), FIRST, NOW)
    result = numbered(APP_PROVISIONING, unnumbered, 42)
    assert result.instance == dataclasses.replace(unnumbered.instance, id=42)
    assert result.history == unnumbered.history
    assert (sent(result.command).app_id, sent(result.command).idempotency_key) == (42, "app:42:createGitRepo:do")
    assert unnumbered.instance.id == 0


def test_start_remembers_the_definition_and_the_time_of_its_step() -> None:
    instance = began(ORDER).instance
    assert (instance.definition_version, instance.wait_ms, instance.wake_at) == (3, 7000, NOW + timedelta(seconds=7))


def test_a_change_of_what_the_client_gave_changes_no_instance() -> None:
    given = {"team": "blue"}
    instance = began(data=given).instance
    given["team"] = "red"
    assert instance.data == {"team": "blue"}


# The good run.


@pytest.mark.req("S3-29", "S3-30")
def test_first_success_moves_twice_and_sends_the_next_command() -> None:
    result = moved(APP_PROVISIONING, began().instance, success(CREATED, causation_id=FIRST))
    assert result.history == (
        StateChange(
            2, "APP_INITIATED", "GIT_REPO_CREATED", CREATED, "orchestrator", CORRELATION, "event-1", FIRST, LATER,
            "step_succeeded", "createGitRepo", CREATED, "event-1",
        ),
        StateChange(
            3, "GIT_REPO_CREATED", "REGISTERING", "immediate", "orchestrator", CORRELATION, "event-1", SECOND, LATER,
            "immediate",
        ),
    )  # fmt: skip
    assert result.instance == dataclasses.replace(
        began().instance,
        state="REGISTERING",
        version=3,
        command_id=SECOND,
        wake_at=LATER + MINUTE,
        updated_at=LATER,
    )
    assert sent(result.command) == command_for(APP_PROVISIONING, result.instance)
    assert (sent(result.command).id, sent(result.command).type) == (SECOND, "cmd.registerApp")


@pytest.mark.req("S3-31")
def test_last_success_completes_and_sends_nothing() -> None:
    before = along(APP_PROVISIONING, 1)
    result = moved(APP_PROVISIONING, before, success(REGISTERED, id=None, causation_id=SECOND), THIRD)
    last = StateChange(
        4, "REGISTERING", "COMPLETED", REGISTERED, "orchestrator", CORRELATION, None, SECOND, LATER,
        "step_succeeded", "registerApp", REGISTERED,
    )  # fmt: skip
    assert result.history == (last,)
    assert result.command is None
    assert result.instance == dataclasses.replace(
        before,
        state="COMPLETED",
        version=4,
        command_id=None,
        wake_at=None,
        wake_reason=None,
        wait_ms=0,
        updated_at=LATER,
    )


def test_immediate_moves_follow_each_other_each_with_a_row_of_its_own() -> None:
    result = moved(ORDER, began(ORDER).instance, success("evt.reserveDone"))
    assert [(row.version, row.from_state, row.to_state, row.reason, row.command_id) for row in result.history] == [
        (2, "ORDERED", "RESERVED", "evt.reserveDone", FIRST),
        (3, "RESERVED", "CHECKED", "immediate", FIRST),
        (4, "CHECKED", "PAYING", "immediate", SECOND),
    ]
    assert (result.instance.wait_ms, result.instance.wake_at) == (1500, LATER + timedelta(milliseconds=1500))


def test_immediate_move_may_end_the_saga() -> None:
    result = moved(ORDER, along(ORDER, 2), success("evt.shipDone"), "never-used")
    assert [(row.to_state, row.command_id) for row in result.history] == [("SHIPPED", THIRD), (COMPLETED, THIRD)]
    assert (result.instance.command_id, result.instance.wake_at, result.command) == (None, None, None)


def test_version_of_a_good_run() -> None:
    assert along(APP_PROVISIONING, 2).version == 4


# Every kind of event in every state.

GOOD = ("APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING")
STATES = (*GOOD, COMPLETED, FAILED, "COMPENSATING", "COMPENSATION_FAILED")
NO_CAUSE, ANOTHER, BACK, LOST = (
    "failure-without-causation",
    "failure-of-another-attempt",
    "COMPENSATING",
    "COMPENSATION_FAILED",
)
# What the event comes to in each of these states: Moved to a state, else the reason of Ignored.
TABLE: dict[str, tuple[str, ...]] = {
    "created, no causation": ("REGISTERING", "repeated", "repeated", "repeated", FAILED, BACK, "will-be-undone"),
    "created, its causation": ("REGISTERING", "repeated", "repeated", "repeated", FAILED, BACK, "will-be-undone"),
    "created, other causation": ("unknown-causation", *("repeated",) * 3, FAILED, BACK, "will-be-undone"),
    "registered, no causation": ("future", "future", COMPLETED, "repeated", "ended", BACK, LOST),
    "registered, its causation": ("future", "future", COMPLETED, "repeated", "ended", BACK, LOST),
    "registered, other causation": ("future", "future", "unknown-causation", "repeated", "ended", BACK, LOST),
    "failed, no causation": (NO_CAUSE, NO_CAUSE, NO_CAUSE, "ended", "ended", NO_CAUSE, NO_CAUSE),
    "failed, its causation": (FAILED, BACK, BACK, "ended", "ended", LOST, ANOTHER),
    "failed, other causation": (ANOTHER, ANOTHER, ANOTHER, "ended", "ended", ANOTHER, ANOTHER),
    "unknown": ("unknown-event",) * 7,
    "undone, no causation": ("not-undoing", "not-undoing", "not-undoing", "repeated", "repeated", FAILED, FAILED),
    "undone, its causation": ("not-undoing", "not-undoing", "not-undoing", "repeated", "repeated", FAILED, FAILED),
    "undone, other causation": (*("not-undoing",) * 3, *("repeated",) * 2, *("unknown-causation",) * 2),
    "wrong correlation": ("wrong-correlation",) * 7,
    "wrong correlation, failed": ("wrong-correlation",) * 7,
}


def event_for(kind: str, instance: Instance) -> Event:
    """The event that a row of the table means, for this instance."""
    what, _, cause = kind.partition(", ")
    causation = {"its causation": instance.command_id or FIRST, "other causation": "of-nobody"}.get(cause)
    if what == "failed":
        return failure(causation, FOR_GOOD)
    if what == "wrong correlation":
        return failure(FIRST, correlation_id="corr-2") if cause else success(CREATED, correlation_id="corr-2")
    kinds = {"created": CREATED, "registered": REGISTERED, "unknown": "evt.nobody", "undone": "evt.gitRepoDeleted"}
    return success(kinds[what], causation_id=causation)


CASES = [(kind, state, comes_to) for kind, row in TABLE.items() for state, comes_to in zip(STATES, row, strict=True)]


@pytest.mark.req("S3-32", "S3-33", "S3-43")
@pytest.mark.parametrize(("kind", "state", "comes_to"), CASES, ids=[f"{kind} in {state}" for kind, state, _ in CASES])
def test_event_in_state(kind: str, state: str, comes_to: str) -> None:
    instance = app_in(state)
    before = copy.deepcopy(instance)
    result = advance(APP_PROVISIONING, instance, event_for(kind, instance), tick())
    assert instance == before
    if comes_to in STATES:
        assert isinstance(result, SagaTransition)
        assert result.instance.state == comes_to
        assert result.history[-1].to_state == comes_to
    else:
        assert result == IgnoredEvent(comes_to, dead_letter=comes_to == "unknown-event")


@pytest.mark.parametrize(("state", "exits"), [(COMPLETED, []), (FAILED, ["APP_INITIATED"])])
def test_only_a_person_leads_on_from_an_end_and_only_from_failure(state: str, exits: list[str]) -> None:
    assert [(edge.target, edge.cause) for edge in APP_PROVISIONING.edges if edge.source == state] == [
        (target, "retry") for target in exits
    ]
    for target in {*STATES} - {state, *exits}:
        with pytest.raises(IllegalTransition):
            move(APP_PROVISIONING, ended(state), target, change_to(ended(state), target))


def test_an_event_of_a_former_step_is_repeated_and_one_of_a_later_step_is_early() -> None:
    paying = along(ORDER, 1)
    assert advance(ORDER, paying, success("evt.reserveDone"), tick(THIRD)) == IgnoredEvent("repeated")
    assert advance(ORDER, paying, success("evt.shipDone"), tick(THIRD)) == IgnoredEvent("future")


def test_the_same_event_twice_moves_once() -> None:
    event = success(CREATED, causation_id=FIRST)
    after = moved(APP_PROVISIONING, began().instance, event).instance
    assert advance(APP_PROVISIONING, after, event, tick(THIRD)) == IgnoredEvent("repeated")


def second_attempt() -> Instance:
    """An app whose first step is tried a second time in this run."""
    return moved(APP_PROVISIONING, began().instance, failure(FIRST)).instance


def test_success_of_any_attempt_of_the_awaited_step_counts() -> None:
    for causation in (FIRST, SECOND):
        result = moved(APP_PROVISIONING, second_attempt(), success(CREATED, causation_id=causation), THIRD)
        assert result.instance.state == "REGISTERING"
        assert result.instance.attempt == 1


def test_success_that_names_no_command_is_ambiguous_after_a_second_attempt() -> None:
    result = advance(APP_PROVISIONING, second_attempt(), success(CREATED), tick(THIRD))
    assert result == IgnoredEvent("ambiguous")


def test_failure_counts_for_the_current_attempt_alone() -> None:
    former = advance(APP_PROVISIONING, second_attempt(), failure(FIRST), tick(THIRD))
    assert former == IgnoredEvent("failure-of-another-attempt")
    current = moved(APP_PROVISIONING, second_attempt(), failure(SECOND, FOR_GOOD), THIRD)
    assert current.instance.state == FAILED


def test_state_of_another_definition_is_behind_all() -> None:
    stranger = dataclasses.replace(began().instance, state="OLD_STATE")
    assert advance(APP_PROVISIONING, stranger, success(CREATED), tick()) == IgnoredEvent("repeated")
    with pytest.raises(IllegalTransition, match="no transition from OLD_STATE to FAILED"):
        advance(APP_PROVISIONING, stranger, failure(FIRST), tick())


# Failure.


def test_failure_for_good_ends_a_saga_that_has_done_nothing() -> None:
    before = began().instance
    result = moved(APP_PROVISIONING, before, failure(FIRST, FOR_GOOD))
    row = StateChange(
        2, "APP_INITIATED", FAILED, FAILURE, "orchestrator", CORRELATION, "event-1", FIRST, LATER,
        "step_failed", "createGitRepo", "evt.stepFailed", "event-1", "OutOfDisk", "OutOfDisk: no space left",
    )  # fmt: skip
    assert result.history == (row,)
    assert result.command is None
    assert result.instance == dataclasses.replace(
        before,
        state=FAILED,
        version=2,
        command_id=None,
        wake_at=None,
        wake_reason=None,
        wait_ms=0,
        updated_at=LATER,
        progress=InstanceProgress(attempts={"createGitRepo": 1}, error=FAILURE, refused=("createGitRepo",)),
    )


def test_long_reasons_are_cut_for_history() -> None:
    result = moved(APP_PROVISIONING, began().instance, failure(FIRST, StepError("E", "é" * 9000, False)))
    reason = result.history[-1].reason
    assert len(reason) == MAX_REASON == 500
    assert reason.startswith("evt.stepFailed: E: éé")


def test_failure_of_a_blocked_saga_takes_the_blocker_away() -> None:
    held = block(began().instance, "unsendable", "too large", LATER).instance
    assert moved(APP_PROVISIONING, held, failure(FIRST)).instance.blocker is None


# Data.


def merged(before: Mapping[str, Any], output: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data after a step whose success brought `output`."""
    return moved(ORDER, began(ORDER, before).instance, success("evt.reserveDone", data=output)).instance.data


@pytest.mark.parametrize(
    ("before", "output", "after"),
    [
        ({}, {}, {}),
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": [1]}, {"A": [2]}, {"a": [1], "A": [2]}),
    ],
    ids=["nothing", "kept", "new", "new wins", "top level only", "null is a value", "case matters"],
)
def test_output_is_merged_at_the_top_level(
    before: dict[str, Any], output: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merged(before, output) == after


def test_merged_data_travels_with_the_next_command() -> None:
    result = moved(ORDER, began(ORDER, {"amount": 1}).instance, success("evt.reserveDone", data={"seat": "4a"}))
    assert sent(result.command).data == {"amount": 1, "seat": "4a"}


def test_merging_leaves_instance_and_event_as_they_were() -> None:
    instance, event = began(ORDER, {"amount": 1}).instance, success("evt.reserveDone", data={"seat": "4a"})
    before, said = copy.deepcopy(instance), copy.deepcopy(event)
    after = moved(ORDER, instance, event).instance
    assert after.data is not instance.data
    assert after.data is not event.data
    assert (instance, event) == (before, said)


def test_data_of_a_failure_is_not_merged() -> None:
    result = moved(ORDER, began(ORDER, {"amount": 1}).instance, failure(FIRST, data={"amount": 2}))
    assert result.instance.data == {"amount": 1}


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({"amount": "many"}, "bad-output: amount: Input should be a valid integer"),
        ({"address": 1, "amount": 2}, "bad-output: address: Input should be an object"),
        ({"x": float("nan")}, "bad-output: Out of range float values are not JSON compliant"),
    ],
)
def test_output_that_the_model_refuses_is_kept_for_a_person(output: dict[str, Any], says: str) -> None:
    instance = began(ORDER, {"amount": 1}).instance
    result = advance(ORDER, instance, success("evt.reserveDone", data=output), tick())
    assert isinstance(result, IgnoredEvent)
    assert result.dead_letter
    assert result.reason.startswith(says)
    assert len(result.reason) <= MAX_REASON
    assert instance == began(ORDER, {"amount": 1}).instance


def sized(size: int) -> dict[str, Any]:
    """Output of exactly `size` bytes of JSON."""
    empty = len(dump({"x": "é"}))
    return {"x": "é" + "y" * (size - empty)}


def test_64_kib_of_output_are_the_limit() -> None:
    assert len(dump(sized(MAX_DATA))) == MAX_DATA == 65_536
    assert merged({}, sized(MAX_DATA)) == sized(MAX_DATA)
    result = advance(ORDER, began(ORDER).instance, success("evt.reserveDone", data=sized(MAX_DATA + 1)), tick())
    assert result == IgnoredEvent("bad-output: data exceeds 65536 bytes", dead_letter=True)


def test_refused_output_tells_of_many_mistakes_within_bounds() -> None:
    class Strict(ORDER.data):  # type: ignore[name-defined,misc]
        model_config = {"extra": "forbid"}  # noqa: RUF012

    saga = dataclasses.replace(ORDER, data=Strict)
    output = {f"field{number}": 1 for number in range(200)}
    result = advance(saga, began(saga).instance, success("evt.reserveDone", data=output), tick())
    assert isinstance(result, IgnoredEvent)
    assert len(result.reason) == MAX_REASON


# Moves and blockers.


def change_to(instance: Instance, target: str) -> StateChange:
    """A history row for a move by hand."""
    return StateChange(
        instance.version + 1, instance.state, target, "by hand", "ada", CORRELATION, None, instance.command_id, LATER
    )


def test_move_takes_exactly_the_legal_edges() -> None:
    everything = (*STATES, "NOWHERE")
    for source in everything:
        instance = dataclasses.replace(began().instance, state=source)
        for target in everything:
            if source == target or (source, target) in APP_PROVISIONING.moves:
                after = move(APP_PROVISIONING, instance, target, change_to(instance, target))
                assert after == dataclasses.replace(instance, state=target, version=2, updated_at=LATER)
            else:
                with pytest.raises(IllegalTransition, match=f"no transition from {source} to {target}"):
                    move(APP_PROVISIONING, instance, target, change_to(instance, target))
                assert instance == dataclasses.replace(began().instance, state=source)


def test_block_keeps_the_state_and_takes_the_wake_up() -> None:
    before = began().instance
    result = block(before, "unsendable", "unsendable: too large " + "x" * 600, LATER)
    assert result.command is None
    assert result.instance == dataclasses.replace(
        before, version=2, updated_at=LATER, blocker="unsendable", wake_at=None, wake_reason=None, wait_ms=0
    )
    (row,) = result.history
    assert (row.version, row.from_state, row.to_state) == (2, "APP_INITIATED", "APP_INITIATED")
    assert (len(row.reason), row.actor, row.command_id) == (MAX_REASON, "orchestrator", FIRST)


@pytest.mark.parametrize("state", [COMPLETED, FAILED])
def test_what_has_ended_cannot_be_blocked(state: str) -> None:
    with pytest.raises(IllegalTransition, match=f"is {state}"):
        block(ended(state), "unsendable", "too late", LATER)


def test_success_of_a_blocked_saga_moves_it_and_takes_the_blocker_away() -> None:
    held = block(began().instance, "unsendable", "too large", LATER).instance
    after = moved(APP_PROVISIONING, held, success(CREATED, causation_id=FIRST)).instance
    assert (after.state, after.version, after.blocker) == ("REGISTERING", 4, None)
    assert (after.wake_at, after.wake_reason, after.wait_ms) == (LATER + MINUTE, "deadline", 60_000)


# Commands.


def test_a_command_can_be_made_again_at_any_time() -> None:
    instance = along(ORDER, 1)
    assert command_for(ORDER, instance) == command_for(ORDER, instance)
    assert sent(command_for(ORDER, instance)).id == SECOND


@pytest.mark.parametrize("instance", [ended(COMPLETED), ended(FAILED), app_in("GIT_REPO_CREATED")])
def test_no_command_where_nothing_is_waited_for(instance: Instance) -> None:
    assert command_for(APP_PROVISIONING, instance) is None


def test_no_command_without_its_id() -> None:
    assert command_for(APP_PROVISIONING, dataclasses.replace(began().instance, command_id=None)) is None


def test_idempotency_key_is_the_same_over_all_attempts() -> None:
    first, second = (sent(command_for(APP_PROVISIONING, one)) for one in (began().instance, second_attempt()))
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id != second.id
    assert first.idempotency_key == second.idempotency_key == "app:7:createGitRepo:do"


# Owners.

CATALOG = Catalog([APP_PROVISIONING, ORDER])


def mixed(named: str, event: str, owner: str) -> IgnoredEvent:
    return IgnoredEvent(f"wrong-saga: it names saga {named!r}, but {event} belongs to saga {owner!r}", dead_letter=True)


@pytest.mark.parametrize(
    ("event", "owner"),
    [
        (success(CREATED), APP_PROVISIONING),
        (success(CREATED, saga="app"), APP_PROVISIONING),
        (success("evt.payDone"), ORDER),
        (success(CREATED, saga="order"), mixed("order", CREATED, "app")),
        (success("evt.payDone", saga="nobody"), mixed("nobody", "evt.payDone", "order")),
        (success("evt.nobody"), IgnoredEvent("unknown-event", dead_letter=True)),
        (failure(FIRST), None),
        (failure(FIRST, saga="app"), APP_PROVISIONING),
        (failure(FIRST, saga="order"), ORDER),
        (failure(FIRST, saga="nobody"), IgnoredEvent("unknown-saga", dead_letter=True)),
    ],
)
def test_owner_of_an_event(event: Event, owner: Saga | IgnoredEvent | None) -> None:
    assert owner_of(CATALOG, event) == owner


def test_a_saga_of_one_step_needs_no_immediate_move() -> None:
    saga = Saga("x", (step("one"),))
    assert moved(saga, began(saga).instance, success("evt.oneDone")).instance.state == COMPLETED
