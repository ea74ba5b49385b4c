"""Are sets of shards as ranges the same as sets of numbers?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.shards.grants import Grant, added, shards_of, within
from orchestrix.domain.shards.ranges import ShardRanges, union

NUMBERS = st.frozensets(st.integers(0, 40), max_size=30)


def is_normal(shards: ShardRanges) -> bool:
    """Whether the ranges are in order, none empty, and none touches the next."""
    inside = all(first <= last for first, last in shards.ranges)
    pairs = zip(shards.ranges, shards.ranges[1:], strict=False)
    return inside and all(one[1] + 1 < other[0] for one, other in pairs)


@given(NUMBERS, NUMBERS)
def test_they_are_the_same_as_sets_of_numbers(one: frozenset[int], other: frozenset[int]) -> None:
    ours, others = ShardRanges.of_numbers(one), ShardRanges.of_numbers(other)
    for made, expected in (
        (ours, one),
        (ours | others, one | other),
        (ours & others, one & other),
        (ours - others, one - other),
        (union([ours, others, ours]), one | other),
    ):
        assert is_normal(made)
        assert list(made.numbers()) == sorted(expected)
        assert made.size == len(expected)
        assert bool(made) is bool(expected)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=10))
def test_ranges_in_any_order_become_normal(ranges: list[tuple[int, int]]) -> None:
    made = ShardRanges.of(ranges)
    assert is_normal(made)
    assert set(made.numbers()) == {number for first, last in ranges for number in range(first, last + 1)}


@given(NUMBERS, st.integers(0, 45))
def test_a_split_is_the_first_ones_and_the_rest(numbers: frozenset[int], count: int) -> None:
    head, rest = ShardRanges.of_numbers(numbers).split(count)
    assert is_normal(head)
    assert is_normal(rest)
    assert list(head.numbers()) == sorted(numbers)[:count]
    assert list(rest.numbers()) == sorted(numbers)[count:]


def test_all_shards_begin_with_number_0() -> None:
    assert ShardRanges.up_to(3).ranges == ((0, 2),)
    assert ShardRanges.up_to(0).ranges == ()


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=25), NUMBERS)
def test_grants_keep_the_epoch_of_each_shard(epochs: dict[int, int], chosen: frozenset[int]) -> None:
    grants: tuple[Grant, ...] = ()
    for epoch in (1, 2, 3):
        grants = added(grants, ShardRanges.of_numbers(shard for shard in epochs if epochs[shard] == epoch), epoch)
    part = within(grants, ShardRanges.of_numbers(chosen))
    assert {shard: one.epoch for one in grants for shard in range(one.first, one.last + 1)} == epochs
    assert {shard: one.epoch for one in part for shard in range(one.first, one.last + 1)} == {
        shard: epoch for shard, epoch in epochs.items() if shard in chosen
    }
    assert list(grants) == sorted(grants)
    assert set(shards_of(grants).numbers()) == set(epochs)


def test_grants_that_touch_and_have_one_epoch_are_one() -> None:
    grants = added((Grant(0, 2, 1), Grant(6, 9, 2)), ShardRanges(((3, 5),)), 2)
    assert grants == (Grant(0, 2, 1), Grant(3, 9, 2))
