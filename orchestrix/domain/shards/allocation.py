"""Allocation: how many shards each member is to have, and which (S1: shardAllocator)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TypeAlias

from orchestrix.domain.shards.ranges import ShardRanges, union

Shares: TypeAlias = Mapping[str, ShardRanges]
"""The shards that each member is to have, by worker id."""


class Allocation(StrEnum):
    """By which rule shards are divided."""

    EVEN = "even"
    """S1's own: neighbouring shards, in the order of worker ids. A change moves many."""
    MINIMAL_MOVE = "minimal"
    """Balanced by weights, and no more shards move than must."""


def allocate(rule: Allocation, count: int, weights: Mapping[str, int], current: Shares) -> dict[str, ShardRanges]:
    """The shares of `count` shards by that rule. Members with weight 0 get none; EVEN knows no other difference.

    `current` are the shares until now. Without a member that can have shards, there are no shares.
    """
    able = {worker: weight for worker, weight in weights.items() if weight > 0}
    if rule is Allocation.EVEN:
        return even(count, able)
    return minimal_move(count, able, current)


def even(count: int, workers: Collection[str]) -> dict[str, ShardRanges]:
    """S1's rule: by worker id, the same number of neighbouring shards each, and one more for each of the first."""
    shares: dict[str, ShardRanges] = {}
    first = 0
    for place, worker in enumerate(sorted(workers)):
        size = count // len(workers) + (1 if place < count % len(workers) else 0)
        shares[worker] = ShardRanges(((first, first + size - 1),)) if size else ShardRanges()
        first += size
    return shares


def minimal_move(count: int, weights: Mapping[str, int], current: Shares) -> dict[str, ShardRanges]:
    """Shares whose sizes are `quotas`, where each member keeps as much as it can of what it has.

    All weights are above 0. Two members that had the same shard in `current` would both keep it: shares never do.
    """
    if not weights:
        return {}
    everything = ShardRanges.up_to(count)
    present = {worker: current.get(worker, ShardRanges()) & everything for worker in sorted(weights)}
    sizes = quotas(count, weights, {worker: shards.size for worker, shards in present.items()})
    kept = {worker: shards.split(sizes[worker])[0] for worker, shards in present.items()}
    rest = everything - union(kept.values())
    for worker, shards in kept.items():
        more, rest = rest.split(sizes[worker] - shards.size)
        kept[worker] = shards | more
    return kept


def quotas(count: int, weights: Mapping[str, int], present: Mapping[str, int]) -> dict[str, int]:
    """How many shards each member is to have: its exact share by weight, rounded down or up, `count` in all.

    Rounded up are those that have more than the rounded share already, so that the fewest shards move; then those whose
    share is cut the most by rounding, then the first by worker id.
    """
    total = sum(weights.values())
    parts = {worker: divmod(count * weight, total) for worker, weight in weights.items()}
    sizes = {worker: whole for worker, (whole, _) in parts.items()}
    fractions = [worker for worker, (_, left) in parts.items() if left]
    order = sorted(fractions, key=lambda one: (present.get(one, 0) <= sizes[one], -parts[one][1], one))
    for worker in order[: count - sum(sizes.values())]:
        sizes[worker] += 1
    return sizes


def moved(before: Shares, after: Shares) -> int:
    """How many shards go from one member to another; those that had none before are not counted."""
    owned = union(before.values())
    nothing = ShardRanges()
    return sum(((shards - before.get(worker, nothing)) & owned).size for worker, shards in after.items())
