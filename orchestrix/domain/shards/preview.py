"""Share preview: what the next generation would be, and how many shards would move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrix.domain.shards.allocation import Allocation, Shares, allocate, minimal_move, moved
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges


@dataclass(frozen=True, slots=True)
class SharePreview:
    """What the next generation would be.

    `moved` shards go from one member to another; `fewest` is the smallest number for shares as even as these.
    """

    shares: Shares
    moved: int
    fewest: int

    def share(self, worker_id: str) -> ShardRanges:
        """The shards that the member would have."""
        return self.shares.get(worker_id, NO_SHARDS)


def preview(rule: Allocation, count: int, weights: Mapping[str, int], current: Shares) -> SharePreview:
    """The shares of `count` shards by that rule for members of these weights, whose shares are `current` now."""
    shares = allocate(rule, count, weights, current)
    able = {worker: weight for worker, weight in weights.items() if weight > 0}
    even = dict.fromkeys(able, 1) if rule is Allocation.EVEN else able
    return SharePreview(shares, moved(current, shares), moved(current, minimal_move(count, even, current)))
