"""Are shares complete, disjoint, balanced and stable, and do no more shards move than must?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.shards.allocation import Allocation, Shares, allocate, even, minimal_move, moved, quotas
from orchestrix.domain.shards.ranges import ShardRanges, union

WORKERS = st.sampled_from("abcdefgh")
WEIGHTS = st.dictionaries(WORKERS, st.integers(1, 5), min_size=1, max_size=8)
COUNTS = st.integers(1, 40)


def numbers(shares: Shares) -> dict[str, list[int]]:
    return {worker: list(shards.numbers()) for worker, shards in shares.items()}


def assert_complete_and_disjoint(count: int, shares: Shares) -> None:
    everything = [shard for shards in shares.values() for shard in shards.numbers()]
    assert sorted(everything) == list(range(count))


@pytest.mark.req("S1-27", "S1-28", "S1-29", "S1-30", "S1-31", "S1-32")
def test_the_example_of_the_specification() -> None:
    shares = even(10, ["worker-c", "worker-a", "worker-b"])
    assert numbers(shares) == {"worker-a": [0, 1, 2, 3], "worker-b": [4, 5, 6], "worker-c": [7, 8, 9]}


@pytest.mark.req("S1-27", "S1-28", "S1-29", "S1-30")
@given(COUNTS, st.frozensets(WORKERS, min_size=1))
def test_even_shares_differ_by_one_at_most_and_the_first_have_more(count: int, workers: frozenset[str]) -> None:
    shares = even(count, workers)
    assert_complete_and_disjoint(count, shares)
    base, more = divmod(count, len(workers))
    assert [shares[worker].size for worker in sorted(workers)] == [
        base + 1 if place < more else base for place in range(len(workers))
    ]
    assert all(len(shards.ranges) <= 1 for shards in shares.values())
    assert shares == even(count, sorted(workers, reverse=True))


def balanced_sizes(count: int, weights: Mapping[str, int]) -> list[dict[str, int]]:
    """Every way to round the exact shares down or up so that they add up."""
    total = sum(weights.values())
    floors = {worker: count * weight // total for worker, weight in weights.items()}
    cut = [worker for worker, weight in weights.items() if count * weight % total]
    more = count - sum(floors.values())
    return [floors | {worker: floors[worker] + 1 for worker in some} for some in combinations(cut, more)]


def fewest(count: int, weights: Mapping[str, int], current: Shares) -> int:
    """The fewest moves with which balanced shares can be reached, over all of these."""
    everything = ShardRanges.up_to(count)
    sizes = {worker: (shards & everything).size for worker, shards in current.items()}
    return min(
        sum(max(0, size - wanted.get(worker, 0)) for worker, size in sizes.items())
        for wanted in balanced_sizes(count, weights)
    )


@given(WEIGHTS, COUNTS, WEIGHTS, COUNTS)
def test_minimal_move_is_balanced_and_no_other_balanced_shares_need_fewer_moves(
    former: dict[str, int], former_count: int, weights: dict[str, int], count: int
) -> None:
    current = minimal_move(former_count, former, even(former_count, former))
    after = minimal_move(count, weights, current)
    assert_complete_and_disjoint(count, after)
    assert {worker: shards.size for worker, shards in after.items()} in balanced_sizes(count, weights)
    assert moved(current, after) == fewest(count, weights, current)
    assert minimal_move(count, weights, after) == after


@given(WEIGHTS, COUNTS, st.data())
def test_when_one_leaves_only_its_shards_move(weights: dict[str, int], count: int, data: st.DataObject) -> None:
    """With one weight for all: whoever stays keeps what it has."""
    weights = dict.fromkeys(weights, 1) | {"z": 1}
    current = minimal_move(count, weights, {})
    gone = data.draw(st.sampled_from(sorted(weights)))
    after = minimal_move(count, {worker: 1 for worker in weights if worker != gone}, current)
    assert all(not current[worker] - shards for worker, shards in after.items())
    assert moved(current, after) == current[gone].size


@given(WEIGHTS, COUNTS)
def test_quotas_add_up_and_follow_the_weights(weights: dict[str, int], count: int) -> None:
    sizes = quotas(count, weights, {})
    total = sum(weights.values())
    assert sum(sizes.values()) == count
    assert all(abs(sizes[worker] - count * weight / total) < 1 for worker, weight in weights.items())


@pytest.mark.parametrize("rule", Allocation)
def test_a_member_of_weight_0_has_no_share(rule: Allocation) -> None:
    shares = allocate(rule, 10, {"a": 1, "b": 0, "c": 1}, {})
    assert {worker: shards.size for worker, shards in shares.items()} == {"a": 5, "c": 5}
    assert allocate(rule, 10, {"a": 0}, {}) == allocate(rule, 10, {}, {}) == {}


def test_weights_count_with_minimal_move_alone() -> None:
    weights = {"a": 1, "b": 3}
    assert {w: s.size for w, s in allocate(Allocation.MINIMAL_MOVE, 8, weights, {}).items()} == {"a": 2, "b": 6}
    assert {w: s.size for w, s in allocate(Allocation.EVEN, 8, weights, {}).items()} == {"a": 4, "b": 4}


@pytest.mark.parametrize("rule", Allocation)
def test_more_members_than_shards(rule: Allocation) -> None:
    shares = allocate(rule, 2, dict.fromkeys("abc", 1), {})
    assert [shares[worker].size for worker in "abc"] == [1, 1, 0]


@pytest.mark.parametrize("rule", Allocation)
def test_the_largest_service_takes_few_ranges(rule: Allocation) -> None:
    weights = {f"worker-{place:03}": 1 for place in range(1000)}
    shares = allocate(rule, 100_000, weights, {})
    assert_complete_and_disjoint(100_000, shares)
    assert {shards.size for shards in shares.values()} == {100}
    after = allocate(rule, 100_000, {worker: 1 for worker in weights if worker != "worker-500"}, shares)
    assert_complete_and_disjoint(100_000, after)
    assert len(union(after.values()).ranges) == 1
    assert sum(len(shards.ranges) for shards in after.values()) <= 2_000
