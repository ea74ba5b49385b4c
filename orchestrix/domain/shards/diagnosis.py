"""Shard diagnosis: which shards wait for whom, and what a change would move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrix.domain.shards.allocation import Allocation, Shares, allocate, minimal_move, moved
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import ShardRules, ShardService

UNREVOCABLE_S: Final = 30.0
"""Seconds after which a plain client that still reports a shard is taken for one that never lets go of it."""


@dataclass(frozen=True, slots=True)
class UnreleasedShards:
    """Shards that a member still has and that are another's share. Only the end of an `unrevocable` one frees them."""

    worker_id: str
    shards: ShardRanges
    since: datetime
    unrevocable: bool

    def sentence(self) -> str:
        """Why they are not granted to those whose share they are, and what can be done."""
        many = f"{self.shards.size} shards" if self.shards.size != 1 else "1 shard"
        since = self.since.isoformat(timespec="seconds").replace("+00:00", "Z")
        if self.unrevocable:
            return (
                f"{self.worker_id} does not follow assignments and still reports {many} since {since}: "
                "restart it, or set ORCHESTRIX_SHARDS__PLAIN=push to grant them to others meanwhile"
            )
        return f"{self.worker_id} has not let go of {many} since {since}"


def unreleased(service: ShardService, now: datetime) -> Iterator[UnreleasedShards]:
    """What members still have that is no longer their share, by worker id."""
    for worker, member in sorted(service.members.items()):
        for one in member.revoking:
            stubborn = member.plain and now - one.since >= timedelta(seconds=UNREVOCABLE_S)
            yield UnreleasedShards(worker, one.shards, one.since, stubborn)


@dataclass(frozen=True, slots=True)
class SharePreview:
    """What the next generation would be: `moved` shards change their member, `fewest` is how many would have to."""

    shares: Shares
    moved: int
    fewest: int


def preview(
    service: ShardService, rules: ShardRules, *, without: str | None = None, shard_count: int | None = None
) -> SharePreview:
    """What if that member left, or the shard count were another one."""
    weights = {worker: member.weight for worker, member in service.members.items() if worker != without}
    current = service.active.shares if service.active is not None else {}
    count = service.shard_count if shard_count is None else shard_count
    shares = allocate(rules.allocation, count, weights, current)
    able = dict.fromkeys(shares, 1) if rules.allocation is Allocation.EVEN else {w: weights[w] for w in shares}
    return SharePreview(shares, moved(current, shares), moved(current, minimal_move(count, able, current)))
