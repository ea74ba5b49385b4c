"""Migration: which instances become ones of a later version, how, and do their effects keep their keys?"""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from orchestrix import COMPLETED, Compensation, Job, Saga
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.commands import SagaTransition, TransitionInputs, command_for, migration_due
from orchestrix.saga.definition import Order, Step
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import CLONED, HELD, PAUSED, RETRY, UNSENDABLE, Instance, InstanceProgress, StateChange
from orchestrix.saga.timeouts import TimerRescheduled
from orchestrix.saga.versions.migration import (
    InvalidMappingError,
    MigrationRefusal,
    MigrationRoute,
    NameMapping,
    check_maps,
    marked,
    migrated,
)
from tests.unit.sagas.builders import LEAVES_NOTHING, step
from tests.unit.sagas.runs import AGAIN, TRIP, Run
from tests.unit.sagas.stories import Arrival, Happening, Marked, Story
from tests.unit.sagas.test_effects import BEGIN, HERE, trip
from tests.unit.sagas.test_properties import FOR_GOOD, HAPPENINGS, SOME_HELD, STORIES


def of(saga: Saga, version: int, *steps: Step, **more: Any) -> Saga:
    """Another version of the saga; the steps by whose names it has some are these instead."""
    others = {one.name: one for one in steps}
    return replace(saga, version=version, steps=tuple(others.pop(one.name, one) for one in saga.steps), **more)


SAME = of(TRIP, 2)
FLIGHT, NOTICE, HOTEL, CAR = TRIP.steps
INN = replace(
    HOTEL,
    name="inn",
    state="STAYING",
    command="cmd.inn",
    event="evt.innDone",
    undo=Compensation("cmd.noInn", "evt.noInn"),
)
RENAMED = replace(TRIP, version=3, steps=(FLIGHT, replace(NOTICE, then="STAYING"), INN, CAR))
"""The hotel is an inn now."""
NO_MAPS = NameMapping()
MAPS = NameMapping({"SLEEPING": "STAYING"}, {"hotel": "inn"})


def to(run: Run, new: Saga = SAME, maps: NameMapping = NO_MAPS, **more: Any) -> SagaTransition | MigrationRefusal:
    """What becomes of it if it is to be moved."""
    return migrated(MigrationRoute(run.saga, new, maps), run.instance, run._tick(0.5), actor="bob", **more)


def move(run: Run, new: Saga = SAME, maps: NameMapping = NO_MAPS) -> Run:
    """The run, which goes on by the new version."""
    result = to(run, new, maps)
    assert isinstance(result, SagaTransition), result
    run._keep(result)
    run.saga = new
    return run


def refusal(run: Run, new: Saga = SAME, maps: NameMapping = NO_MAPS, **more: Any) -> str:
    """Why it is not moved."""
    result = to(run, new, maps, **more)
    assert isinstance(result, MigrationRefusal), result
    return result.reason


def waiting(*done: str, saga: Saga = TRIP) -> Run:
    """A run whose step waits for another try."""
    run = trip(*done, saga=saga)
    run.fails(AGAIN)
    assert run.instance.wake_reason == RETRY
    return run


# What is moved.


def test_what_waits_for_another_try_sends_that_of_the_new_version() -> None:
    run = waiting("flight", "notice")
    before = run.instance
    move(run, RENAMED, MAPS)
    after = run.instance
    assert run.rows[-1] == ("SLEEPING", "STAYING", "migrated 1 -> 3")
    assert run.history[-1].actor == "bob"
    assert (after.definition_version, after.version) == (3, before.version + 1)
    assert (after.wake_at, after.wake_reason, after.attempt, after.tries) == (before.wake_at, RETRY, 2, 2)
    assert after.command_id not in (None, before.command_id)
    run.expires()
    command = run.sent[-1]
    assert (command.type, command.step, command.expected_state) == ("cmd.inn", "inn", "STAYING")
    assert (command.id, command.attempt, command.definition_version) == (after.command_id, 2, 3)
    run.done("inn")
    run.done("car")
    assert run.state == COMPLETED


def test_the_effects_keep_the_first_name_of_their_step() -> None:
    run = waiting("flight", "notice")
    first = run.sent[-1]
    assert first.effect_key == f"{BEGIN}:hotel"
    move(run, RENAMED, MAPS)
    run.expires()
    assert run.sent[-1].effect_key == first.effect_key
    assert run.sent[-1].idempotency_key == first.idempotency_key
    run.fails(AGAIN)
    cabin = replace(INN, name="cabin", command="cmd.cabin", event="evt.cabinDone")
    fourth = replace(RENAMED, version=4, steps=(FLIGHT, RENAMED.steps[1], cabin, CAR))
    move(run, fourth, NameMapping(steps={"inn": "cabin"}))
    run.expires()
    assert (run.sent[-1].step, run.sent[-1].effect_key) == ("cabin", first.effect_key)
    run.done("cabin")
    run.fails()
    assert (run.sent[-1].type, run.sent[-1].effect_key) == ("cmd.noInn", first.effect_key)
    run.undone("cabin")
    run.undone("flight")
    run.asks(SagaAction.RETRY)
    run.done("flight")
    run.done("notice")
    assert (run.sent[-1].step, run.sent[-1].effect_key) == ("cabin", f"{BEGIN}:hotel:run2")


def test_a_step_that_was_never_sent_has_the_key_of_its_new_name() -> None:
    run = move(waiting(), RENAMED, MAPS)
    run.expires()
    run.done("flight")
    run.done("notice")
    assert run.sent[-1].effect_key == f"{BEGIN}:inn"
    assert run.instance.progress.named == {}


def test_what_is_paused_stays_so_and_sends_the_new_command_at_its_end() -> None:
    run = trip("flight")
    run.asks(SagaAction.PAUSE)
    assert "may be running" in refusal(run)
    run.done("notice")
    move(run, RENAMED, MAPS)
    assert (run.instance.blocker, run.instance.wake_at, run.state) == (PAUSED, None, "STAYING")
    run.asks(SagaAction.RESUME)
    assert (run.sent[-1].type, run.sent[-1].attempt, run.sent[-1].effect_key) == ("cmd.inn", 1, f"{BEGIN}:inn")


def test_a_failure_that_a_pause_has_kept_is_judged_by_the_new_version() -> None:
    run = trip("flight", "notice")
    run.asks(SagaAction.PAUSE)
    run.fails(AGAIN)
    before = run.instance.command_id
    move(run, RENAMED, MAPS)
    assert run.instance.command_id == before
    run.asks(SagaAction.RESUME)
    assert (run.instance.wake_reason, run.instance.attempt) == (RETRY, 2)


def test_what_a_person_is_to_look_at_is_moved_with_it() -> None:
    run = trip("flight", "notice")
    run.fails(StepError("Hold", "too dear", retryable=False, hold=True))
    assert run.instance.blocker == HELD
    move(run, RENAMED, MAPS)
    run.asks(SagaAction.RETRY)
    assert (run.sent[-1].type, run.sent[-1].attempt, run.sent[-1].effect_key) == ("cmd.inn", 2, f"{BEGIN}:hotel")


def test_an_undo_that_has_failed_goes_on_with_that_of_the_new_version() -> None:
    run = trip("flight", "notice", "hotel")
    run.fails()
    run.fails(StepError("Stuck", "no", retryable=False))
    assert run.state == "COMPENSATION_FAILED"
    move(run, RENAMED, MAPS)
    assert run.rows[-1] == ("COMPENSATION_FAILED", "COMPENSATION_FAILED", "migrated 1 -> 3")
    run.asks(SagaAction.RETRY)
    assert (run.sent[-1].type, run.sent[-1].attempt, run.sent[-1].effect_key) == ("cmd.noInn", 2, f"{BEGIN}:hotel")
    assert run.sent[-1].undoes_attempt == 1
    run.undone("inn")
    run.undone("flight")
    assert (run.state, run.instance.progress.undone) == ("FAILED", ("inn", "flight"))


def test_names_may_change_places() -> None:
    swapped = replace(
        TRIP,
        version=2,
        steps=(replace(FLIGHT, name="notice"), replace(NOTICE, name="flight"), HOTEL, CAR),
    )
    run = move(waiting("flight", "notice"), swapped, NameMapping(steps={"flight": "notice", "notice": "flight"}))
    assert run.instance.progress.named == {"flight": "notice", "notice": "flight"}
    run.expires()
    run.fails()
    assert (run.sent[-1].step, run.sent[-1].effect_key) == ("notice", f"{BEGIN}:flight")


# Waiting for what is out.


def until(run: Run, seconds: float = 30) -> datetime:
    """So much later."""
    return run.now + timedelta(seconds=seconds)


def mark(run: Run, seconds: float = 30) -> Run:
    """Somebody waits for the end of what is out."""
    run.instance = marked(run.instance, until(run, seconds))
    return run


def test_what_follows_a_step_that_is_waited_for_is_not_sent() -> None:
    run = mark(trip("flight"))
    sent = len(run.sent)
    run.done("notice")
    assert (len(run.sent), run.instance.wake_reason, run.state) == (sent, RETRY, "SLEEPING")
    now = run.now
    move(run, RENAMED, MAPS)
    assert run.instance.wake_at == run.now > now
    assert run.instance.progress.to_json() is None
    run.expires()
    assert (run.sent[-1].type, run.sent[-1].attempt, run.wait) == ("cmd.inn", 1, 10)


def test_without_a_migration_it_goes_on_by_itself() -> None:
    run = mark(trip("flight"))
    run.done("notice")
    assert run.wait == 29 - 1 + 1
    assert isinstance(run.expires(), TimerRescheduled)
    assert run.sent[-1].type == "cmd.hotel"
    run.done("hotel")
    assert run.sent[-1].type == "cmd.car"
    assert run.instance.progress.to_json() is None


def test_another_try_waits_for_its_migration_and_then_for_the_rest_of_its_own_time() -> None:
    run = mark(trip("flight"), 100)
    run.fails(replace(AGAIN, retry_after_ms=50_000))
    due = run.now + timedelta(seconds=50)
    assert migration_due(run.instance, run.now) == due
    move(run)
    assert run.instance.wake_at == due


def test_a_long_wait_is_not_made_longer() -> None:
    run = mark(trip("flight"))
    run.fails(replace(AGAIN, retry_after_ms=50_000))
    assert run.wait == 50


def test_an_undo_waits_too() -> None:
    run = mark(trip("flight", "notice", "hotel"))
    run.fails()
    assert (run.state, run.instance.wake_reason, run.types[-1]) == ("COMPENSATING", RETRY, "car")
    move(run, RENAMED, MAPS)
    run.expires()
    assert (run.types[-1], run.sent[-1].effect_key) == ("noInn", f"{BEGIN}:hotel")


def test_nobody_waits_any_more() -> None:
    run = mark(trip("flight"))
    run.instance = marked(run.instance, None)
    run.done("notice")
    assert run.types[-1] == "hotel"


# What is refused.


def test_what_is_out_is_waited_for() -> None:
    result = to(trip())
    assert isinstance(result, MigrationRefusal)
    assert (result.in_flight, result.reason) == (
        True,
        "step flight was sent and may be running: --wait waits until it has ended",
    )
    undoing = trip("flight")
    undoing.fails()
    assert refusal(undoing) == "the undo of step flight was sent and may be running: --wait waits until it has ended"
    cancelled = trip("flight")
    cancelled.asks(SagaAction.CANCEL)
    assert refusal(cancelled).startswith("step notice was sent")


def test_a_job_at_work_is_out() -> None:
    saga = of(TRIP, 1, step("notice", "NOTICING", "SLEEPING", command="", job=Job("tell")))
    assert refusal(trip("flight", saga=saga)).startswith("step notice was sent")


@pytest.mark.parametrize("blocker", [CLONED, UNSENDABLE])
def test_what_is_blocked_otherwise_comes_first(blocker: str) -> None:
    run = waiting()
    run.instance = replace(run.instance, blocker=blocker, wake_at=None, wake_reason=None)
    assert f"(blocker {blocker})" in refusal(run)


def test_held_events_come_first() -> None:
    assert refusal(waiting(), held_events=True).startswith("it has held events")


def test_a_state_and_a_step_have_their_place() -> None:
    run = waiting("flight", "notice")
    assert refusal(run, RENAMED) == "state SLEEPING does not exist in version 3: use --map SLEEPING=STATE"
    only_state = NameMapping({"SLEEPING": "STAYING"})
    assert refusal(run, RENAMED, only_state) == "step hotel does not exist in version 3: use --map-step hotel=inn"
    wrong = NameMapping({"SLEEPING": "DRIVING"}, {"hotel": "inn", "car": "flight"})
    assert refusal(run, RENAMED, wrong) == (
        "step hotel would be inn, but version 3 does car in DRIVING: use --map-step hotel=car, or --map SLEEPING=STATE"
    )


def test_what_has_run_is_undone() -> None:
    run = waiting("flight", "notice")
    gone = of(TRIP, 2, replace(FLIGHT, undo=LEAVES_NOTHING))
    assert refusal(run, gone) == "step flight has run, but version 2 does not undo flight"
    less = replace(TRIP, version=2, steps=TRIP.steps[1:], immediate={})
    assert refusal(run, less) == "step flight has run, but does not exist in version 2: use --map-step flight=STEP"
    assert isinstance(to(waiting(), of(TRIP, 2, replace(HOTEL, undo=LEAVES_NOTHING))), SagaTransition), "it has not run"


def test_the_undo_keeps_its_meaning() -> None:
    run = waiting("flight", "notice")
    refund = of(TRIP, 2, replace(FLIGHT, undo=Compensation("cmd.refund", "evt.refunded")))
    assert refusal(run, refund) == (
        "step flight has run, but is undone by cmd.refund instead of cmd.drop-flight in version 2: "
        "use --map-step flight=flight if cmd.refund undoes it too"
    )
    assert isinstance(to(run, refund, NameMapping(steps={"flight": "flight"})), SagaTransition)
    crossed = of(TRIP, 2, replace(FLIGHT, undo=HOTEL.undo), replace(HOTEL, undo=FLIGHT.undo))
    said = "step hotel has run, but its undo cmd.drop-hotel is that of flight in version 2"
    assert refusal(run, crossed, NameMapping(steps={"flight": "flight", "hotel": "hotel"})) == said


def test_a_try_that_may_have_done_something_has_run() -> None:
    gone = of(TRIP, 2, replace(FLIGHT, undo=LEAVES_NOTHING))
    assert "does not undo flight" in refusal(waiting(), gone)


def test_a_step_that_has_run_is_not_done_again() -> None:
    late = replace(
        TRIP,
        version=2,
        steps=(
            replace(HOTEL, then="FLYING"),
            replace(FLIGHT, then="NOTICING"),
            replace(NOTICE, then="DRIVING"),
            CAR,
        ),
        immediate={},
    )
    assert (
        refusal(waiting("flight", "notice"), late)
        == "step flight has run, but version 2 would run flight after this state"
    )


def test_a_step_without_undo_may_be_gone_and_another_one_be_new() -> None:
    fourth = step("weather", "LOOKING", "SLEEPING")
    new = replace(TRIP, version=2, steps=(replace(FLIGHT, then="LOOKING"), fourth, HOTEL, CAR), immediate={})
    run = move(waiting("flight", "notice"), new)
    run.expires()
    run.done("hotel")
    assert run.state == "DRIVING"


def test_an_undo_under_way_maps_whole() -> None:
    run = waiting("flight", "notice", "hotel")
    run.instance = replace(run.instance)
    run.expires()
    run.fails()
    run.undone("hotel")
    run.fails(AGAIN)
    assert (run.state, run.instance.wake_reason) == ("COMPENSATING", RETRY)
    assert refusal(run, RENAMED) == (
        "it is being undone, but step hotel does not exist in version 3: use --map-step hotel=STEP"
    )
    assert isinstance(to(run, RENAMED, MAPS), SagaTransition)


def test_no_other_step_has_the_effects_of_a_renamed_one() -> None:
    """The worker of the new `hotel` would find the key, and take its work for done."""
    hotel = step("hotel", "RESTING", "DRIVING")
    new = replace(TRIP, version=3, steps=(FLIGHT, RENAMED.steps[1], replace(INN, then="RESTING"), hotel, CAR))
    assert refusal(waiting("flight", "notice"), new, MAPS) == (
        "steps inn and hotel of version 3 would share an effect key, because one of them was first sent as hotel: "
        "no later version can reuse that step name"
    )
    assert isinstance(to(waiting(), new, MAPS), SagaTransition), "nothing was sent as hotel"


class Strict(BaseModel):
    amount: int
    seats: int


def test_the_new_version_takes_its_data() -> None:
    strict = replace(SAME, data=Strict)
    assert refusal(waiting(), strict).startswith("version 2 does not accept its data (amount: Field required; seats: ")
    run = waiting()
    run.instance = replace(run.instance, data={"amount": "many"})
    assert isinstance(to(run, strict), SagaTransition), "the old version does not take them either"


# Maps.


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        (
            NameMapping({"SLEPING": "STAYING"}),
            "--map SLEPING=STAYING: no version of trip before 3 has the state SLEPING",
        ),
        (
            NameMapping({"SLEEPING": "STAYNG"}),
            "--map SLEEPING=STAYNG: version 3 of trip has no state STAYNG: it has FLYING, ",
        ),
        (NameMapping({"SLEEPING": "COMPLETED"}), "version 3 of trip has no state COMPLETED"),
        (NameMapping({"COMPENSATING": "STAYING"}), "no version of trip before 3 has the state COMPENSATING"),
        (
            NameMapping(steps={"bed": "inn"}),
            "--map-step bed=inn: no version of trip before 3 has the step bed: they have car",
        ),
        (
            NameMapping(steps={"hotel": "hostel"}),
            "version 3 of trip has no step hostel: it has flight, notice, inn, car",
        ),
        (
            NameMapping({"SLEEPING": "STAYING", "FLYING": "STAYING"}),
            "the states FLYING and SLEEPING of version 1 would both be STAYING: give each its own state",
        ),
        (NameMapping({"SLEEPING": "DRIVING"}), "the states SLEEPING and DRIVING of version 1 would both be DRIVING"),
        (NameMapping(steps={"hotel": "car"}), "--map-step: the steps hotel and car of version 1 would both be car"),
    ],
)
def test_a_bad_map_is_told(maps: NameMapping, said: str) -> None:
    with pytest.raises(InvalidMappingError, match=re.escape(said)):
        check_maps([TRIP], RENAMED, maps)


def test_two_versions_may_have_two_names_for_one() -> None:
    second = replace(
        TRIP, version=2, steps=(FLIGHT, replace(NOTICE, then="BED"), replace(HOTEL, name="bed", state="BED"), CAR)
    )
    maps = NameMapping({"SLEEPING": "STAYING", "BED": "STAYING"}, {"hotel": "inn", "bed": "inn"})
    check_maps([TRIP, second], RENAMED, maps)
    with pytest.raises(InvalidMappingError, match="no version of trip before 3 has the state BED"):
        check_maps([TRIP], RENAMED, maps)


# Whatever came before, another name changes nothing.


def renamed(saga: Saga) -> Saga:
    """The next version, in which everything has another name."""
    return replace(
        saga,
        version=saga.version + 1,
        steps=tuple(_renamed(one) for one in saga.steps),
        immediate={f"{state}_X": _state(then) for state, then in saga.immediate.items()},
    )


def _state(name: str) -> str:
    return name if name == COMPLETED else f"{name}_X"


def _words(order: Order) -> dict[str, Any]:
    return {"command": f"{order.command}.x", "event": f"{order.event}.x"}


def _renamed(one: Step) -> Step:
    undo = one.undo if not isinstance(one.undo, Compensation) else replace(one.undo, **_words(one.undo))
    return replace(one, name=f"x{one.name}", state=f"{one.state}_X", then=_state(one.then), undo=undo, **_words(one))


def _all(saga: Saga) -> NameMapping:
    names = {one.name: f"x{one.name}" for one in saga.steps}
    return NameMapping({one.state: f"{one.state}_X" for one in saga.steps}, names)


def _past(change: StateChange, maps: dict[str, str]) -> StateChange:
    source = change.from_state
    return replace(
        change, from_state=source and maps.get(source, source), to_state=maps.get(change.to_state, change.to_state)
    )


def moved_story(story: Story, new: Saga, result: SagaTransition) -> Story:
    """The story as it goes on by the new version; its past is told in the new words."""
    other = copy.copy(story)
    other.ids = list(story.ids)
    states = {state: _state(state) for state in story.saga.path}
    other.saga, other.instance = new, result.instance
    other.history = [_past(change, states) for change in [*story.history, *result.history]]
    other.done = {f"x{name}" for name in story.done}
    other.attempts = defaultdict(list, {f"x{key}": [*numbers] for key, numbers in story.attempts.items()})
    other.unanswered = defaultdict(set, {f"x{name}": {*ids} for name, ids in story.unanswered.items()})
    return other


def told(instance: Instance, maps: NameMapping) -> dict[str, Any]:
    """What a bystander sees, in the new words."""
    text = json.dumps(instance.progress.to_json())
    shown = InstanceProgress.from_json(json.loads(text))
    new = maps.steps
    return {
        "state": maps.states.get(instance.state, instance.state),
        "wake": (instance.wake_at, instance.wake_reason, instance.wait_ms, instance.blocker, instance.deadline_at),
        "tries": (instance.attempt, instance.tries, instance.progress.run, shown.unanswered, shown.cause, shown.held),
        "names": [
            tuple(new.get(one, one) for one in names) for names in (shown.todo, shown.undone, shown.left, shown.refused)
        ],
        "awaited": new.get(shown.awaited or "", shown.awaited),
        "runs": {new.get(name, name): runs for name, runs in shown.runs.items()},
    }


@settings(STORIES, max_examples=200)
@given(SOME_HELD, HAPPENINGS, HAPPENINGS, st.sampled_from(["done", "failed", "undone", "nothing"]), st.booleans())
def test_another_name_changes_nothing(
    saga: Saga, before: list[Happening], after: list[Happening], ends: str, well: bool
) -> None:
    new, maps, keys = renamed(saga), _all(saga), set[str]()
    story = Story(saga)
    story.instance = replace(story.instance, installation=HERE)
    for what in [*before, *_ends(ends)]:
        story.happens(what)
        keys |= _key_of(saga, story)
    if ends == "done" and story.instance.live:
        story.succeeds()
    result = migrated(
        MigrationRoute(saga, new, maps), story.instance, TransitionInputs(story.now, "fresh", 0.5), actor="bob"
    )
    if not story.instance.live or not isinstance(result, SagaTransition):
        return
    other = moved_story(story, new, result)
    story.instance = replace(marked(story.instance, None), wake_at=other.instance.wake_at)
    other.check()
    for what in after:
        story.happens(what)
        other.happens(what)
        other.check()
        assert told(story.instance, maps) == told(other.instance, NO_MAPS)
        mine, theirs = command_for(saga, story.instance), command_for(new, other.instance)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None and mine.effect_key in keys:
            assert theirs.effect_key == mine.effect_key
    (other.goes_well if well else other.goes_badly)()


def _ends(how: str) -> list[Happening]:
    """How what is out ends, while somebody waits for that."""
    said: dict[str, list[Happening]] = {"done": [], "failed": [Arrival(None, "failed")], "undone": [FOR_GOOD]}
    return [] if how == "nothing" else [Marked(), *said[how]]


def _key_of(saga: Saga, story: Story) -> set[str]:
    """The key of what is out, if it has left."""
    command = command_for(saga, story.instance)
    return {command.effect_key} if command is not None and command.id in story.ids else set()


def test_a_step_that_a_migration_led_past_is_not_undone() -> None:
    """It lies before the present state in the new version, and has never run."""
    weigh = step("weigh", "WEIGHING", "SLEEPING", undo=Compensation("cmd.unweigh", "evt.unweighed"))
    new = replace(TRIP, version=2, steps=(FLIGHT, replace(NOTICE, then="WEIGHING"), weigh, HOTEL, CAR))
    run = move(waiting("flight", "notice"), new)
    assert run.instance.progress.passed_over == ("weigh",)
    later = move(run, replace(new, version=3))
    assert later.instance.progress.passed_over == ("weigh",)
    later.expires()
    later.done("hotel")
    later.fails()
    assert later.instance.progress.todo == ("hotel", "flight")
    for name in ("hotel", "flight"):
        later.undone(name)
    assert later.state == "FAILED"
    later.asks(SagaAction.RETRY)
    assert not later.instance.progress.passed_over
