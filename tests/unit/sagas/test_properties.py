"""What holds whatever events come, in whatever order, for whatever saga?"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sagas import COMPLETED, FAILED, Event, Saga, Step
from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine import messages
from sagas.engine.definition import TERMINAL
from sagas.engine.messages import StepError, Unreadable, dump, load
from sagas.engine.state import Change, Instance
from sagas.engine.transition import Ignored, Moved, advance, block, command_for
from tests.unit.sagas.builders import CORRELATION, NOW, ORDER, began, step, success

FAST = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Arrival:
    """An event to come: which of the saga's (None is a failure), naming which command, and how it differs."""

    event: int | None
    causation: str
    wrong_correlation: bool = False
    data: str = "none"


@dataclass(frozen=True)
class Blocked:
    """A person is to be waited for."""


ARRIVALS = st.builds(
    Arrival,
    event=st.one_of(st.none(), st.integers(-1, 5)),
    causation=st.sampled_from(["none", "current", "current", "first", "nobody"]),
    wrong_correlation=st.sampled_from([False] * 9 + [True]),
    data=st.sampled_from(["none", "none", "good", "bad"]),
)
HAPPENINGS = st.lists(st.one_of(ARRIVALS, ARRIVALS, ARRIVALS, st.builds(Blocked)), max_size=25)
DATA = {"none": {}, "good": {"amount": 4}, "bad": {"amount": "many"}}


@st.composite
def sagas(draw: st.DrawFn) -> Saga:
    """A saga of one to five steps with up to two immediate moves after each."""
    count = draw(st.integers(1, 5))
    chains = [draw(st.integers(0, 2)) for _ in range(count)]
    steps: list[Step] = []
    immediate: dict[str, str] = {}
    for number, chain in enumerate(chains):
        following = f"S{number + 1}" if number + 1 < count else COMPLETED
        states = [*(f"S{number}_{place}" for place in range(chain)), following]
        steps.append(step(f"do{number}", f"S{number}", states[0], timeout=timedelta(seconds=number + 1)))
        immediate |= dict(pairwise(states))
    first, *rest = steps
    return Saga("drawn", (first, *draw(st.permutations(rest))), immediate, data=ORDER.data)


ANY_SAGA = st.one_of(st.sampled_from([APP_PROVISIONING, ORDER]), sagas())


def event_of(saga: Saga, instance: Instance, first_command: str | None, arrival: Arrival) -> Event:
    """The event that `arrival` means for this instance."""
    causation = {"none": None, "current": instance.command_id, "first": first_command, "nobody": "x"}[arrival.causation]
    correlation = "another" if arrival.wrong_correlation else CORRELATION
    more: dict[str, Any] = {"causation_id": causation, "correlation_id": correlation, "data": DATA[arrival.data]}
    if arrival.event is None:
        return success("evt.stepFailed", error=StepError("E", "m", True), **more)
    known = 0 <= arrival.event < len(saga.steps)
    return success(saga.steps[arrival.event].event if known else "evt.nobody", **more)


class Story:
    """One instance and all that has happened to it."""

    def __init__(self, saga: Saga) -> None:
        self.saga = saga
        beginning = began(saga, {"amount": 1})
        self.instance = beginning.instance
        self.first_command = beginning.instance.command_id
        self.history: list[Change] = list(beginning.history)
        self._events = 0

    def happens(self, what: Arrival | Blocked) -> None:
        """Lets it happen, and checks what must be true of each single result."""
        before, kept = self.instance, copy.deepcopy(self.instance)
        self._events += 1
        now = NOW + timedelta(seconds=self._events)
        if isinstance(what, Blocked):
            result: Moved | Ignored = block(before, "unsendable", "too large", now) if before.live else Ignored("ended")
        else:
            event = event_of(self.saga, before, self.first_command, what)
            said = copy.deepcopy(event)
            result = advance(self.saga, before, event, f"command-{self._events + 1}", now)
            assert event == said
        assert before == kept
        if isinstance(result, Moved):
            self._took(result, before)

    def _took(self, result: Moved, before: Instance) -> None:
        assert before.live, "an ended saga moved"
        assert result.history
        assert result.instance.version == before.version + len(result.history) == result.history[-1].version
        same = ("id", "saga", "key", "created_by", "correlation_id", "definition_version", "created_at", "traceparent")
        assert all(getattr(result.instance, name) == getattr(before, name) for name in same)
        self.instance = result.instance
        self.history += result.history
        if result.instance.blocker is None:
            assert result.command == command_for(self.saga, result.instance)

    def check(self) -> None:
        """What must be true at any time."""
        instance, states = self.instance, [row.to_state for row in self.history]
        assert [row.version for row in self.history] == list(range(1, instance.version + 1))
        assert [row.from_state for row in self.history] == [None, *states[:-1]]
        assert states[-1] == instance.state
        moves = {(row.from_state, row.to_state) for row in self.history if row.from_state != row.to_state}
        assert moves <= self.saga.moves
        assert all(row.correlation_id == CORRELATION for row in self.history)
        assert all(0 < len(row.reason) <= 500 for row in self.history)
        assert [row.at for row in self.history] == sorted(row.at for row in self.history)
        self._never_stuck()

    def _never_stuck(self) -> None:
        one = self.instance
        assert (one.wake_at is None) == (one.wake_reason is None)
        assert one.live == (one.state not in TERMINAL) == ((one.wake_at is None) != (one.blocker is None))
        assert one.live == (command_for(self.saga, one) is not None), "what is live waits for a command that is out"
        if not one.live:
            assert (one.wake_at, one.blocker, one.command_id, one.wait_ms) == (None, None, None, 0)


@pytest.mark.req("S3-33", "S3-46")
@FAST
@given(ANY_SAGA, HAPPENINGS)
@example(APP_PROVISIONING, [Arrival(0, "current"), Arrival(1, "current"), Arrival(0, "none"), Arrival(None, "first")])
@example(APP_PROVISIONING, [Arrival(0, "current"), Blocked(), Arrival(None, "current"), Blocked()])
def test_history_is_a_gapless_path_and_nothing_is_ever_stuck(saga: Saga, happenings: list[Arrival | Blocked]) -> None:
    story = Story(saga)
    story.check()
    for what in happenings:
        story.happens(what)
        story.check()


@FAST
@given(ANY_SAGA, HAPPENINGS)
def test_a_live_saga_still_completes_whatever_came_before(saga: Saga, happenings: list[Arrival | Blocked]) -> None:
    story = Story(saga)
    for what in happenings:
        story.happens(what)
    ended = story.instance.state if not story.instance.live else COMPLETED
    for _ in saga.steps:
        for number in range(len(saga.steps)):
            story.happens(Arrival(number, "current"))
    story.check()
    assert story.instance.state == ended
    assert saga.data is not ORDER.data or story.instance.data["amount"] in (1, 4), "refused output never arrives"


@FAST
@given(ANY_SAGA, st.permutations([0, 0, 1, 1, 2, 2, 3, 3, 4, 4]), st.sampled_from(["none", "current"]))
def test_each_step_succeeds_once_in_any_order_of_copies(saga: Saga, order: list[int], causation: str) -> None:
    story = Story(saga)
    for _ in range(len(saga.steps)):
        for number in order:
            story.happens(Arrival(number, causation))
    story.check()
    assert [row.to_state for row in story.history] == list(saga.path)
    assert story.instance.state == COMPLETED


@FAST
@given(ANY_SAGA, st.integers(0, 4))
def test_a_failure_ends_any_saga_where_it_stands(saga: Saga, done: int) -> None:
    story = Story(saga)
    for number in range(min(done, len(saga.steps) - 1)):
        by_path = [state for state in saga.path if saga.step_in(state)]
        waiting = saga.step_in(by_path[number])
        assert waiting is not None
        story.happens(Arrival(saga.steps.index(waiting), "current"))
    story.happens(Arrival(None, "current"))
    story.check()
    assert story.instance.state == FAILED


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
            except Unreadable as refused:
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
    except Unreadable:
        return
    assert isinstance(event.app_id, int)
    assert 0 < event.app_id < 2**53
    assert isinstance(event.correlation_id, str)
    assert all(one is None or isinstance(one, str) for one in (event.saga, event.id, event.causation_id))
    assert isinstance(event.data, dict)
    assert isinstance(event.error, StepError)
