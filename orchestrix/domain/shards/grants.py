"""Grants: which shards one member has, each with the epoch under which it was granted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from orchestrix.domain.shards.ranges import ShardRanges


class Grant(NamedTuple):
    """The shards from `first` to `last`, both included, that were granted under the same epoch."""

    first: int
    last: int
    epoch: int


Grants: TypeAlias = tuple[Grant, ...]
"""All grants of one member: in order, and without overlap."""
NO_GRANTS: Final[Grants] = ()


def shards_of(grants: Grants) -> ShardRanges:
    """The shards of the grants."""
    return ShardRanges.of((one.first, one.last) for one in grants)


def within(grants: Grants, shards: ShardRanges) -> Grants:
    """The part of the grants that is about these shards."""
    return tuple(_within(grants, shards))


def added(grants: Grants, shards: ShardRanges, epoch: int) -> Grants:
    """The grants and these shards, which are in none of them, under the epoch."""
    new = (Grant(first, last, epoch) for first, last in shards.ranges)
    return tuple(joined(sorted((*grants, *new))))


def _within(grants: Grants, shards: ShardRanges) -> Iterator[Grant]:
    place, ranges = 0, shards.ranges
    for grant in grants:
        while place < len(ranges) and ranges[place][1] < grant.first:
            place += 1
        here = place
        while here < len(ranges) and ranges[here][0] <= grant.last:
            yield Grant(max(grant.first, ranges[here][0]), min(grant.last, ranges[here][1]), grant.epoch)
            here += 1


def joined(grants: Iterable[Grant]) -> Iterator[Grant]:
    """Grants that are sorted, joined where they touch and have the same epoch."""
    former: Grant | None = None
    for grant in grants:
        if former is not None and former.last + 1 == grant.first and former.epoch == grant.epoch:
            former = Grant(former.first, grant.last, grant.epoch)
            continue
        if former is not None:
            yield former
        former = grant
    if former is not None:
        yield former
