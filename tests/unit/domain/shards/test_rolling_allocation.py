"""Is each division of shards a good one, when nodes with different settings make it?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.shards.allocation import Allocation, Shares, allocate, moved
from orchestrix.domain.shards.ranges import ShardRanges

WORKERS = [f"w-{number}" for number in range(8)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(Allocation),
        st.integers(min_value=1, max_value=60),
        st.dictionaries(st.sampled_from(WORKERS), st.integers(min_value=0, max_value=4), max_size=len(WORKERS)),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS)
def test_whatever_the_last_node_divided_by_each_shard_has_one_member(
    steps: list[tuple[Allocation, int, dict[str, int]]],
) -> None:
    current: Shares = {}
    for rule, count, weights in steps:
        shares = allocate(rule, count, weights, current)
        able = [worker for worker, weight in weights.items() if weight]
        assert set(shares) == set(able)
        numbers = sorted(number for shards in shares.values() for number in shards.numbers())
        assert numbers == (list(range(count)) if able else [])
        _check_sizes(rule, count, weights, shares)
        current = shares


def _check_sizes(rule: Allocation, count: int, weights: dict[str, int], shares: Shares) -> None:
    total = sum(weights.values())
    for worker, shards in shares.items():
        exact = count / len(shares) if rule is Allocation.EVEN else count * weights[worker] / total
        assert abs(shards.size - exact) < 1, f"{worker} has {shards.size} of {count} instead of {exact:.1f}"


@given(STEPS)
def test_the_minimal_rule_moves_nothing_of_what_it_or_the_other_has_divided(
    steps: list[tuple[Allocation, int, dict[str, int]]],
) -> None:
    """A change of the setting alone moves nothing until members change, if all weigh the same."""
    for _, count, weights in steps:
        same = dict.fromkeys(weights, 1)
        before = allocate(Allocation.EVEN, count, same, {})
        after = allocate(Allocation.MINIMAL_MOVE, count, same, before)
        assert moved(before, after) == 0
        assert after == before


def test_the_even_rule_is_the_same_whatever_was_before() -> None:
    before = {"w-1": ShardRanges.of_numbers([0, 2, 4]), "w-2": ShardRanges.of_numbers([1, 3])}
    weights = {"w-1": 1, "w-2": 1}
    assert allocate(Allocation.EVEN, 5, weights, before) == allocate(Allocation.EVEN, 5, weights, {})
