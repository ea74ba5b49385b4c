"""Shard strip: who has which shards of a service, as one line of a terminal."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import Final, NamedTuple

from orchestrix.cli import output

OTHERS: Final = "*"
"""The mark of members without one of their own."""
USUAL_COLUMNS: Final = 80
"""Where the output has no width, as in a file."""
FEWEST_CELLS: Final = 10
_COLOURS: Final = ("36", "33", "35", "34", "32", "31")

Range = Sequence[int]
"""The first and the last shard, both included."""


class MemberShards(NamedTuple):
    """The shards that a member has, and those of them that it has to let go of."""

    shards: Sequence[Range]
    revoking: Sequence[Range]

    @property
    def size(self) -> int:
        """How many it has."""
        return sum(last - first + 1 for first, last in self.shards)


class ShardStrip(NamedTuple):
    """The line; `marks` are those of members, in the order of their ids; `notes` say what else is in the line."""

    line: str
    marks: Mapping[str, str]
    notes: Sequence[str]


def strip(count: int, members: Mapping[str, MemberShards], columns: int | None) -> ShardStrip:
    """Shards 0 to `count` - 1 in one line, not wider than `columns`.

    A character stands for one shard or for several neighbouring ones, and is the mark of the member that has the most
    of them, A to Z: in lower case where most of these are to be let go of. One in which any shard has no member is a
    dot.
    """
    first, last = "0 ", f" {count - 1}"
    room = max((columns or USUAL_COLUMNS) - len(first) - len(last), FEWEST_CELLS)
    cells = min(count, room)
    starts = [place * count // cells for place in range(cells)]
    marks = _marks(members)
    line = _line(starts, count, members, marks)
    return ShardStrip(f"{first}{_painted(line)}{last}", marks, list(_notes(line, count, cells, members, marks)))


def _marks(members: Mapping[str, MemberShards]) -> dict[str, str]:
    """A mark for each member; of more than 26, one of its own for those that have the most."""
    few = sorted(members, key=lambda one: (-members[one].size, one))[: len(ascii_uppercase)]
    letters = iter(ascii_uppercase)
    return {one: next(letters) if one in few else OTHERS for one in sorted(members)}


def _line(starts: Sequence[int], count: int, members: Mapping[str, MemberShards], marks: Mapping[str, str]) -> str:
    present: list[Counter[str]] = [Counter() for _ in starts]
    revoked: list[Counter[str]] = [Counter() for _ in starts]
    for member, one in members.items():
        for place, size in _parts(starts, count, one.shards):
            present[place][member] += size
        for place, size in _parts(starts, count, one.revoking):
            revoked[place][member] += size
    ends = [*starts[1:], count]
    return "".join(
        _sign(found, gone, end - start, marks)
        for found, gone, start, end in zip(present, revoked, starts, ends, strict=True)
    )


def _parts(starts: Sequence[int], count: int, ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """How many shards of the ranges are in which cell."""
    for first, last in ranges:
        last = min(last, count - 1)
        place = bisect_right(starts, first) - 1
        while first <= last:
            end = min(starts[place + 1] - 1 if place + 1 < len(starts) else count - 1, last)
            yield place, end - first + 1
            first, place = end + 1, place + 1


def _sign(present: Counter[str], revoked: Counter[str], size: int, marks: Mapping[str, str]) -> str:
    if present.total() < size:
        return output.dot()
    member = min(present, key=lambda one: (-present[one], one))
    return marks[member].lower() if revoked[member] * 2 > present[member] else marks[member]


def _painted(line: str) -> str:
    """Each mark in the colour of its member, where stdout takes colour."""
    return "".join(output.paint("".join(run), _colour(sign)) for sign, run in groupby(line))


def _colour(sign: str) -> str | None:
    if sign.upper() in ascii_uppercase:
        return _COLOURS[ascii_uppercase.index(sign.upper()) % len(_COLOURS)]
    return None if sign == OTHERS else output.RED


def _notes(
    line: str, count: int, cells: int, members: Mapping[str, MemberShards], marks: Mapping[str, str]
) -> Iterator[str]:
    if cells < count:
        yield f"a character is {count // cells}{' or ' + str(count // cells + 1) if count % cells else ''} shards"
    if output.dot() in line:
        yield f"{output.dot()} without a member"
    if any(char.islower() for char in line):
        yield "a small letter: to be let go of"
    if OTHERS in line:
        yield f"{OTHERS} one of the {sum(mark == OTHERS for mark in marks.values())} members with the fewest shards"
