"""Does the checker of the members' logs see what must not be?"""

from __future__ import annotations

import pytest

from tests.shard_fleet.intervals import (
    BEGIN,
    END,
    FOREVER,
    LEASE,
    STOP,
    Entry,
    Holder,
    Interval,
    Life,
    faults,
    gaps,
    holders,
    interruptions,
    intervals,
)

ADA, BOB, NEW = Holder("ada", "i-1"), Holder("bob", "i-2"), Holder("ada", "i-3")
SHARD = ("orders", 7)
REST = 5.0


def entry(kind: str, at: float, holder: Holder = ADA, value: float = 0.0, shard: int = 7) -> Entry:
    return Entry(kind, at, "orders", holder, -1 if kind == LEASE else shard, value)


def held(holder: Holder, begin: float, end: float, epoch: float, said_end: bool = True) -> Interval:
    return Interval(SHARD, holder, epoch, begin, end, said_end)


def test_a_line_is_read_as_it_was_written() -> None:
    for one in (entry(BEGIN, 0.1 + 0.2, value=3.0), entry(END, 12.5), entry(LEASE, 1.0, value=11.0)):
        assert Entry.read(one.line().rstrip("\n")) == one


def test_an_interval_ends_when_the_member_says_so_or_its_process_is_dead() -> None:
    life = Life([entry(BEGIN, 1.0, value=4.0), entry(END, 2.0), entry(BEGIN, 3.0, value=5.0)], dead_at=9.0)
    assert list(intervals(life, REST)) == [held(ADA, 1.0, 2.0, 4.0), held(ADA, 3.0, 9.0, 5.0, said_end=False)]
    life.dead_at = FOREVER
    assert [one.end for one in intervals(life, REST)] == [2.0, FOREVER]


def test_one_that_stood_still_held_its_shards_until_its_lease_was_over() -> None:
    entries = [entry(BEGIN, 1.0), entry(LEASE, 2.0, value=12.0), entry(LEASE, 60.0, value=99.0), entry(END, 61.0)]
    assert [one.end for one in intervals(Life(entries, frozen=[(5.0, 60.0)]), REST)] == [12.0 + REST]
    assert [one.end for one in intervals(Life(entries[:2], frozen=[(5.0, FOREVER)]), REST)] == [12.0 + REST]


def test_one_whose_work_was_stopped_too_late_to_be_finished_can_begin_again() -> None:
    entries = [entry(BEGIN, 1.0), entry(LEASE, 2.0, value=12.0), entry(STOP, 60.5), entry(BEGIN, 64.0, value=9.0)]
    found = list(intervals(Life(entries, frozen=[(5.0, 60.0)]), REST))
    assert [(one.begin, one.end) for one in found] == [(1.0, 12.0 + REST), (64.0, FOREVER)]
    with pytest.raises(AssertionError, match="has not ended"):
        list(intervals(Life(entries), REST))


def test_one_that_is_awake_holds_its_shards_whatever_its_lease() -> None:
    entries = [entry(BEGIN, 1.0), entry(LEASE, 2.0, value=12.0), entry(END, 61.0)]
    for frozen in ([], [(3.0, 16.0)], [(62.0, 90.0)], [(0.1, 0.9)]):
        assert [one.end for one in intervals(Life(entries, frozen=frozen), REST)] == [61.0]


def test_two_holders_at_a_time_are_seen() -> None:
    assert faults([held(ADA, 1.0, 5.0, 1.0), held(BOB, 5.0, 9.0, 2.0)]) == []
    (wrong,) = faults([held(BOB, 4.9, 9.0, 2.0), held(ADA, 1.0, 5.0, 1.0)])
    assert wrong.startswith("two holders of ('orders', 7)")
    assert faults([held(ADA, 1.0, FOREVER, 1.0), held(ADA, 2.0, 3.0, 2.0), held(BOB, 4.0, 9.0, 3.0)])
    assert faults([held(ADA, 1.0, 5.0, 1.0), held(NEW, 4.0, 9.0, 2.0)]), "two processes with one worker id"


def test_an_epoch_that_does_not_rise_is_seen() -> None:
    (wrong,) = faults([held(ADA, 1.0, 5.0, 2.0), held(BOB, 6.0, 9.0, 2.0)])
    assert wrong.startswith("the epoch of ('orders', 7)")
    assert faults([held(ADA, 1.0, 5.0, 2.0), held(ADA, 6.0, 9.0, 2.0)]) == [], "the same process holds it again"


def test_who_holds_and_for_how_long_nobody_did() -> None:
    found = [held(ADA, 1.0, 5.0, 1.0), held(BOB, 7.0, FOREVER, 2.0, said_end=False)]
    assert holders(found, 4.0) == {SHARD: [ADA]}
    assert holders(found, 6.0) == {}
    assert gaps(found, [SHARD, ("orders", 8)], 0.0, 20.0) == {SHARD: 2.0, ("orders", 8): 20.0}
    assert gaps(found, [SHARD], 6.5, 20.0) == {SHARD: 0.5}
    assert interruptions(found, 4.0, 20.0) == found[:1]
    assert interruptions(found, 5.0, 20.0) == []
