"""Who is silent, and who is missing for sure?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.nodes import MissingNodes, NodeRow, NodeState, is_silent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=100)


def node(silent: float) -> NodeRow:
    return NodeRow("a-1", "a", NodeState.ALIVE, (), 0, EARLIER, NOW - timedelta(seconds=silent), None)


@pytest.mark.req("S0-54")
@pytest.mark.parametrize(("silent", "listening", "dead"), [(29.9, 100, False), (30, 100, True), (90, 29, False)])
def test_silence_counts_as_long_as_somebody_listens(silent: float, listening: float, dead: bool) -> None:
    since = NOW - timedelta(seconds=listening)
    assert is_silent(node(silent), now=NOW, since=since, limit=30.0) is dead


def test_a_node_is_missing_when_two_looks_say_so() -> None:
    absences = MissingNodes(2.0)
    missing = {"a-1": EARLIER}
    assert absences.observe(10.0, missing) is None
    assert absences.observe(11.9, missing) is None
    assert absences.observe(12.0, missing) == "a-1"


def test_a_beat_between_begins_the_count_anew() -> None:
    absences = MissingNodes(2.0)
    assert absences.observe(10.0, {"a-1": EARLIER}) is None
    assert absences.observe(12.0, {"a-1": NOW}) is None
    assert absences.observe(13.9, {"a-1": NOW}) is None
    assert absences.observe(14.0, {"a-1": NOW}) == "a-1"


def test_a_look_that_finds_it_begins_the_count_anew() -> None:
    absences = MissingNodes(2.0)
    assert absences.observe(10.0, {"a-1": EARLIER}) is None
    assert absences.observe(11.0, {}) is None
    assert absences.observe(12.0, {"a-1": EARLIER}) is None
    assert absences.observe(14.0, {"a-1": EARLIER}) == "a-1"


def test_several_at_once_are_the_brokers_doing() -> None:
    absences = MissingNodes(2.0)
    assert absences.observe(10.0, {"a-1": EARLIER}) is None
    assert absences.observe(12.0, {"a-1": EARLIER, "b-1": EARLIER}) is None
    assert absences.observe(13.0, {"a-1": EARLIER}) is None
    assert absences.observe(15.0, {"a-1": EARLIER}) == "a-1"
