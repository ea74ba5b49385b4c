"""Stored ranges: sets of shards as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrix.domain.shards.allocation import Shares
from orchestrix.domain.shards.ranges import ShardRanges


def to_json(shards: ShardRanges) -> list[list[int]]:
    """The ranges, each as its first and its last shard."""
    return [[first, last] for first, last in shards.ranges]


def from_json(value: Any) -> ShardRanges:
    """The shards that `to_json` stored; none for NULL."""
    return ShardRanges.of((int(first), int(last)) for first, last in value or ())


def shares_to_json(shares: Shares) -> dict[str, Any]:
    """The shares by worker id."""
    return {worker: to_json(shards) for worker, shards in shares.items()}


def shares_from_json(value: Mapping[str, Any] | None) -> dict[str, ShardRanges]:
    """The shares that `shares_to_json` stored."""
    return {worker: from_json(ranges) for worker, ranges in (value or {}).items()}
