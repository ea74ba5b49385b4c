"""Does one line show who has which shards, however many there are?"""

from __future__ import annotations

import io
import re
import sys
from itertools import pairwise
from random import Random

import pytest

from orchestrix.cli.display.shard_strip import FEWEST_CELLS, MemberShards, ShardStrip, strip
from orchestrix.cli.output import width


class Stdout(io.TextIOWrapper):
    """A terminal, or a file, of an encoding."""

    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def held(*ranges: tuple[int, int], revoking: tuple[tuple[int, int], ...] = ()) -> MemberShards:
    return MemberShards(ranges, revoking)


def signs(drawn: ShardStrip) -> str:
    found = re.fullmatch(r"0 (\S+) \d+", drawn.line)
    assert found is not None
    return found[1]


def test_each_shard_is_a_letter_of_its_member() -> None:
    drawn = strip(10, {"w-2": held((4, 6)), "w-1": held((0, 3)), "w-3": held((7, 9))}, 80)
    assert drawn == ("0 AAAABBBCCC 9", {"w-1": "A", "w-2": "B", "w-3": "C"}, [])


def test_what_nobody_has_and_what_is_to_be_let_go_of() -> None:
    drawn = strip(10, {"a": held((0, 5), revoking=((4, 5),)), "b": held((8, 9))}, 80)
    assert drawn.line == "0 AAAAaa..BB 9"
    assert drawn.notes == [". without a member", "a small letter: to be let go of"]
    assert strip(20, {"a": held((0, 19), revoking=((0, 0), (2, 3)))}, 1).line == "0 AaAAAAAAAA 19", "half is not most"
    assert strip(3, {}, 80).line == "0 ... 2"
    assert strip(1, {"a": held((0, 0))}, 80).line == "0 A 0"


def test_many_shards_share_a_character() -> None:
    drawn = strip(1000, {"a": held((0, 499)), "b": held((500, 999))}, 26)
    assert drawn.line == "0 AAAAAAAAAABBBBBBBBBB 999"
    assert drawn.notes == ["a character is 50 shards"]
    assert strip(1001, {"a": held((0, 1000))}, 26).notes == ["a character is 52 or 53 shards"]


def test_one_shard_without_a_member_is_seen_among_many() -> None:
    drawn = strip(100_000, {"a": held((0, 49_999)), "b": held((50_001, 99_999))}, 80)
    assert signs(drawn).count(".") == 1


def test_the_most_frequent_member_of_a_character_is_shown() -> None:
    members = {"a": held((0, 0), (4, 9)), "b": held((1, 3), (10, 19))}
    assert signs(strip(20, members, 1)) == "AB" + "A" * 3 + "B" * 5
    assert signs(strip(20, {"a": held((0, 9), (11, 19)), "b": held((10, 10))}, 1)) == "A" * FEWEST_CELLS


def test_members_beyond_the_letters_share_a_sign() -> None:
    members = {f"w-{number:02}": held((number * 10, number * 10 + 9 - (number >= 26))) for number in range(30)}
    drawn = strip(300, members, 400)
    assert (drawn.marks["w-25"], drawn.marks["w-26"]) == ("Z", "*")
    assert drawn.notes[-1] == "* one of the 4 members with the fewest shards"


@pytest.mark.parametrize("seed", range(30))
def test_no_line_is_wider_and_each_shard_counts_once(seed: int) -> None:
    random = Random(seed)
    count, columns = random.choice((1, 7, 80, 999, 100_000)), random.randint(30, 200)
    cuts = sorted({0, count, *(random.randint(0, count) for _ in range(random.randint(0, 60)))})
    members: dict[str, list[tuple[int, int]]] = {}
    for first, end in pairwise(cuts):
        members.setdefault(f"w-{random.randint(0, 40):02}", []).append((first, end - 1))
    drawn = strip(count, {worker: held(*ranges) for worker, ranges in members.items()}, columns)
    assert width(drawn.line) <= columns
    assert len(signs(drawn)) == min(count, columns - 3 - len(str(count - 1)))
    assert "." not in signs(drawn), "all have a member"
    assert set(signs(drawn)) <= {*drawn.marks.values()}


def test_shards_beyond_the_count_are_left_out() -> None:
    assert strip(4, {"a": held((0, 9), revoking=((4, 9),))}, 80).line == "0 AAAA 3"


def test_a_terminal_gets_colours_and_a_dot_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Stdout("utf-8", terminal=True))
    drawn = strip(6, {"a": held((0, 1)), "b": held((2, 3), revoking=((3, 3),))}, 80)
    assert drawn.line == "0 \x1b[36mAA\x1b[0m\x1b[33mB\x1b[0m\x1b[33mb\x1b[0m\x1b[31m··\x1b[0m 5"
    monkeypatch.setenv("NO_COLOR", "1")
    assert strip(6, {"a": held((0, 1))}, 80).line == "0 AA···· 5"
    monkeypatch.setattr(sys, "stdout", Stdout("latin-1", terminal=True))
    assert strip(6, {"a": held((0, 1))}, 80).line == "0 AA.... 5"
