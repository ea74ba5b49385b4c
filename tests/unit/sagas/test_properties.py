"""What holds whatever events, expiries and people come, in whatever order, for whatever saga?"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrix import COMPLETED, FAILED, HOLD, Compensation, RetryPolicy, Saga, Step
from orchestrix.saga import messages
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.messages import StepError, UnreadableMessage, dump, load
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import LEAVES_NOTHING, ORDER, step
from tests.unit.sagas.stories import Arrival, Asked, Begun, Blocked, Copied, Elapsed, Happening, Marked, Story

FAST = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
STORIES = settings(FAST, max_examples=60)

ARRIVALS = st.builds(
    Arrival,
    step=st.one_of(st.none(), *[st.integers(0, 4)] * 5),
    says=st.sampled_from(["done", "done", "done", "undone", "failed", "failed for good", "held"]),
    causation=st.sampled_from(["none", "current", "current", "current", "first", "former", "nobody"]),
    wrong_correlation=st.sampled_from([False] * 19 + [True]),
    data=st.sampled_from(["none", "none", "good", "bad"]),
)
ELAPSED = st.builds(
    Elapsed,
    excuse=st.sampled_from(["none", "none", "none", "unsent", "unheard", "broker", "queue", "overtaken"]),
    chance=st.sampled_from([0.0, 0.5, 0.999]),
)
ASKED = st.builds(
    Asked,
    verb=st.sampled_from(SagaAction),
    data=st.sampled_from(["none", "none", "good", "bad"]),
    seconds=st.integers(1, 500),
)
RARE = st.sampled_from([Blocked(), Blocked(), Begun(), Begun(), Copied(), Marked()])
HAPPENINGS = st.lists(st.one_of(ARRIVALS, ARRIVALS, ELAPSED, ASKED, RARE), max_size=40)


@st.composite
def sagas(draw: st.DrawFn) -> Saga:
    """A saga of one to five steps with up to two immediate moves after each, most of them with an undo."""
    count = draw(st.integers(1, 5))
    chains = [draw(st.integers(0, 2)) for _ in range(count)]
    steps: list[Step] = []
    immediate: dict[str, str] = {}
    for number, chain in enumerate(chains):
        following = f"S{number + 1}" if number + 1 < count else COMPLETED
        states = [*(f"S{number}_{place}" for place in range(chain)), following]
        retry = RetryPolicy(draw(st.integers(1, 3)))
        undo = Compensation(f"cmd.undo{number}", f"evt.undone{number}", timedelta(seconds=9), retry)
        more: dict[str, Any] = {"undo": draw(st.sampled_from([undo, undo, LEAVES_NOTHING])), "retry": retry}
        steps.append(step(f"do{number}", f"S{number}", states[0], timeout=timedelta(seconds=number + 1), **more))
        immediate |= dict(pairwise(states))
    first, *rest = steps
    time = draw(st.sampled_from([None, None, timedelta(seconds=4), timedelta(minutes=1)]))
    return Saga("drawn", (first, *draw(st.permutations(rest))), immediate, data=ORDER.data, timeout=time)


def _held(saga: Saga) -> Saga:
    """The same, whose steps wait for a person when they have failed for good."""
    return replace(saga, steps=tuple(replace(one, on_failure=HOLD) for one in saga.steps))


ANY_SAGA = st.one_of(st.just(APP_PROVISIONING), st.just(ORDER), sagas(), sagas())
SOME_HELD = st.one_of(ANY_SAGA, sagas().map(_held))
FOR_GOOD = Arrival(None, "failed for good")
ALL_THE_WAY = [Arrival(0), FOR_GOOD, Arrival(0, "undone")]


@pytest.mark.req("S3-33", "S3-46")
@STORIES
@given(SOME_HELD, HAPPENINGS)
@example(APP_PROVISIONING, [Arrival(0), Arrival(1), Arrival(0, causation="none"), Arrival(None, "failed")])
@example(APP_PROVISIONING, [Arrival(0), Blocked(), FOR_GOOD, Blocked()])
@example(APP_PROVISIONING, [*ALL_THE_WAY, Arrival(0), Asked(SagaAction.RETRY), Arrival(0, "undone"), FOR_GOOD])
@example(
    APP_PROVISIONING, [Arrival(0), Asked(SagaAction.TERMINATE), Asked(SagaAction.RETRY), FOR_GOOD, Arrival(0, "undone")]
)
@example(APP_PROVISIONING, [Arrival(0), FOR_GOOD, FOR_GOOD, Arrival(1), Asked(SagaAction.SKIP), Arrival(1, "undone")])
@example(APP_PROVISIONING, [Arrival(0), Asked(SagaAction.CANCEL), Elapsed(), Arrival(1), Arrival(1, "undone")])
def test_history_is_a_gapless_path_and_nothing_is_stuck_or_forgotten(saga: Saga, happenings: list[Happening]) -> None:
    story = Story(saga)
    story.check()
    for what in happenings:
        story.happens(what)
        story.check()


@STORIES
@given(SOME_HELD, HAPPENINGS, st.booleans())
def test_whatever_came_before_it_can_be_driven_to_an_end(saga: Saga, happenings: list[Happening], well: bool) -> None:
    story = Story(saga)
    for what in happenings:
        story.happens(what)
    before = story.instance
    open_ended = saga.timeout is not None or before.progress.held is not None
    if well:
        story.goes_well()
    else:
        story.goes_badly()
    story.check()
    good = before.state == COMPLETED or (well and before.state in saga.path)
    assert story.instance.state in ((FAILED, COMPLETED) if open_ended else (COMPLETED if good else FAILED,))
    assert saga.data is not ORDER.data or story.instance.data["amount"] in (1, 4), "refused output never arrives"


@FAST
@given(ANY_SAGA, st.permutations([0, 0, 1, 1, 2, 2, 3, 3, 4, 4]), st.sampled_from(["none", "current"]))
def test_each_step_succeeds_once_in_any_order_of_copies(saga: Saga, order: list[int], causation: str) -> None:
    story = Story(saga)
    for _ in range(len(saga.steps)):
        for number in order:
            story.happens(Arrival(number, causation=causation))
    story.check()
    assert [row.to_state for row in story.history] == list(saga.path)
    assert story.instance.state == COMPLETED


@FAST
@given(ANY_SAGA, st.integers(0, 4))
def test_a_failure_is_undone_in_reverse_wherever_it_stands(saga: Saga, done: int) -> None:
    story = Story(saga)
    by_path = [here for state in saga.path if (here := saga.step_in(state))]
    ready = by_path[: min(done, len(saga.steps) - 1)]
    for one in ready:
        story.happens(Arrival(saga.steps.index(one)))
    story.happens(FOR_GOOD)
    story.goes_well()
    story.check()
    assert story.instance.state == FAILED
    undone = [row.reason for row in story.history if row.reason.startswith("undone ")]
    assert undone == [f"undone {one.name}" for one in reversed(ready) if isinstance(one.undo, Compensation)]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)
KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@FAST
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=5), st.booleans())
def test_what_is_written_reads_the_same(value: dict[str, Any], escaped: bool) -> None:
    written = json.dumps(value).encode() if escaped else dump(value)
    assert load(written) == value


PIECES = st.sampled_from([*'{}[]:,"\\', "\\u0000", "\\ud800", '"a":', "1e999", "NaN", "null", "7", "\0", "é", " "])
RUBBISH = st.one_of(st.binary(max_size=40), st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))


@settings(FAST, max_examples=100)
@given(RUBBISH)
def test_rubbish_is_refused_and_never_crashes(raw: bytes) -> None:
    for wrapped in (raw, b'{"appId":7,"correlationId":"c","data":{"x":' + raw + b"}}"):
        for read in (load, messages.command, lambda found: messages.event("evt.stepFailed", found)):
            try:
                read(wrapped)
            except UnreadableMessage as refused:
                assert str(refused)  # noqa: PT017


@FAST
@given(
    st.dictionaries(
        st.sampled_from(["appId", "correlationId", "saga", "id", "causationId", "data", "error"]), JSON_VALUES
    )
)
def test_an_event_has_the_right_types_or_is_refused(fields: dict[str, Any]) -> None:
    try:
        event = messages.event("evt.stepFailed", dump(fields))
    except UnreadableMessage:
        return
    assert isinstance(event.app_id, int)
    assert 0 < event.app_id < 2**53
    assert isinstance(event.correlation_id, str)
    assert all(one is None or isinstance(one, str) for one in (event.saga, event.id, event.causation_id))
    assert isinstance(event.data, dict)
    assert isinstance(event.error, StepError)
