"""Who hands over how many jobs?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.balance import jobs_to_hand_off


@pytest.mark.req("S0-35", "S0-36", "S0-37")
@pytest.mark.parametrize(
    ("loads", "given"),
    [
        ({"a": 100, "b": 20}, {"a": 40}),
        ({"a": 50, "b": 48, "c": 52}, {}),
        ({"a": 20, "b": 11}, {}),
        ({"a": 20, "b": 10}, {"a": 5}),
        ({"a": 9, "b": 0}, {}),
        ({"a": 10, "b": 0}, {"a": 5}),
        ({"a": 100, "b": 100, "c": 0}, {"a": 33, "b": 33}),
        ({"a": 100, "b": 60, "c": 20}, {"a": 40}),
        ({"a": 500}, {}),
        ({}, {}),
    ],
)
def test_the_examples(loads: dict[str, int], given: dict[str, int]) -> None:
    assert jobs_to_hand_off(loads) == given


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 300), min_size=2, max_size=8))
def test_nothing_comes_back(loads: dict[str, int]) -> None:
    given = jobs_to_hand_off(loads)
    after = {node: load - given.get(node, 0) for node, load in loads.items()}
    for _ in range(sum(given.values())):
        receiver = min((node for node in after if node not in given), key=lambda node: (after[node], node))
        after[receiver] += 1
    assert all(count > 0 for count in given.values())
    assert not set(jobs_to_hand_off(after)) - set(given), "who has taken does not give"
    assert sum(jobs_to_hand_off(after).values()) <= sum(given.values())
    assert max(after.values()) - min(after.values()) <= max(loads.values()) - min(loads.values())
