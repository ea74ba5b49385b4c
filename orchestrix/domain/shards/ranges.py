"""Shard ranges: sets of shard numbers, as few ranges instead of many numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""The first and the last shard, both included."""


@dataclass(frozen=True, slots=True)
class ShardRanges:
    """A set of shards. `ranges` are in order, and do not touch each other; see `of`."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> ShardRanges:
        """The shards of any ranges, in any order. A range whose last is less than its first is empty."""
        return cls(tuple(_merged(sorted(one for one in ranges if one[0] <= one[1]))))

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> ShardRanges:
        """The shards with these numbers, in any order."""
        return cls(tuple(_merged((number, number) for number in sorted(numbers))))

    @classmethod
    def up_to(cls, count: int) -> ShardRanges:
        """The first `count` shards, from 0."""
        return cls(((0, count - 1),)) if count > 0 else cls()

    @property
    def size(self) -> int:
        """How many shards these are."""
        return sum(last - first + 1 for first, last in self.ranges)

    def numbers(self) -> Iterator[int]:
        """Each shard, in order."""
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def split(self, count: int) -> tuple[ShardRanges, ShardRanges]:
        """The first `count` shards, and the rest."""
        for place, (first, last) in enumerate(self.ranges):
            if count <= last - first:
                cut = first + count
                head = (*self.ranges[:place], (first, cut - 1)) if count > 0 else self.ranges[:place]
                return ShardRanges(head), ShardRanges(((cut, last), *self.ranges[place + 1 :]))
            count -= last - first + 1
        return self, ShardRanges()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: ShardRanges) -> ShardRanges:
        if not self.ranges or not other.ranges:
            return self if self.ranges else other
        return ShardRanges(tuple(_merged(sorted(self.ranges + other.ranges))))

    def __and__(self, other: ShardRanges) -> ShardRanges:
        return ShardRanges(tuple(_common(self.ranges, other.ranges)))

    def __sub__(self, other: ShardRanges) -> ShardRanges:
        if not self.ranges or not other.ranges:
            return self
        return ShardRanges(tuple(_without(self.ranges, other.ranges)))


NO_SHARDS: Final = ShardRanges()


def union(sets: Iterable[ShardRanges]) -> ShardRanges:
    """The shards of all the sets."""
    return ShardRanges.of(one for shards in sets for one in shards.ranges)


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Ranges that are sorted, joined where they touch."""
    begin = end = -2
    for first, last in ranges:
        if first <= end + 1 and begin >= 0:
            end = max(end, last)
            continue
        if begin >= 0:
            yield begin, end
        begin, end = first, last
    if begin >= 0:
        yield begin, end


def _common(ours: tuple[Range, ...], others: tuple[Range, ...]) -> Iterator[Range]:
    place = 0
    for first, last in ours:
        while place < len(others) and others[place][1] < first:
            place += 1
        here = place
        while here < len(others) and others[here][0] <= last:
            yield max(first, others[here][0]), min(last, others[here][1])
            here += 1


def _without(ours: tuple[Range, ...], others: tuple[Range, ...]) -> Iterator[Range]:
    place = 0
    for first, last in ours:
        while place < len(others) and others[place][1] < first:
            place += 1
        here = place
        while here < len(others) and others[here][0] <= last:
            if first < others[here][0]:
                yield first, others[here][0] - 1
            first = others[here][1] + 1
            here += 1
        if first <= last:
            yield first, last
