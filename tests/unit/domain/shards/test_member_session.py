"""What may a process of a service run, after which answers, and until when?"""

from __future__ import annotations

import pytest

from orchestrix.domain.shards.grants import Grant, Grants
from orchestrix.domain.shards.member_session import MOST_STARTS, MemberSession, ShardRun, StopReason
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, ShardRules


class Process:
    """A session, its time, and the work that it was told to begin and to end."""

    def __init__(self) -> None:
        self.now = 100.0
        self.session = MemberSession("w-1", "i-1", 10, ShardRules())
        self.runs: dict[int, ShardRun] = {}
        self.stopped: list[tuple[int, StopReason | None]] = []

    def joins(self, *grants: Grant, generation: int = 1) -> None:
        self.session.register(self.now)
        self.hears(*grants, generation=generation)

    def beats(self) -> int:
        return self.session.heartbeat(self.now).seq

    def hears(self, *grants: Grant, generation: int = 1, seq: int | None = None, instance: str = "i-1") -> bool:
        newest = self.session.seq if seq is None else seq
        counts = self.session.receive(Assignment("w-1", instance, None, generation, newest, grants), self.now)
        self.follow()
        return counts

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.session.check_lease(self.now)
        self.follow()

    def follow(self) -> None:
        changes = self.session.changes(self.now)
        self.stopped += [(run.shard, run.stopping) for run in changes.stop]
        for run in changes.start:
            assert run.shard not in self.runs, "the former work has not ended"
            self.runs[run.shard] = run

    def ends(self, *shards: int) -> None:
        for shard in shards:
            self.session.ended(self.runs.pop(shard))
        self.follow()

    @property
    def epochs(self) -> dict[int, int]:
        return {run.shard: run.epoch for run in self.runs.values() if run.stopping is None}

    @property
    def reported(self) -> ShardRanges:
        return self.session.heartbeat(self.now).shards


@pytest.fixture
def process() -> Process:
    return Process()


def one(shard: int, epoch: int = 1) -> Grant:
    return Grant(shard, shard, epoch)


def test_what_is_granted_begins_once_under_its_epoch(process: Process) -> None:
    process.joins(Grant(0, 2, 7), one(5, 8))
    assert process.epochs == {0: 7, 1: 7, 2: 7, 5: 8}
    process.beats()
    assert process.hears(Grant(0, 2, 7), one(5, 8))
    assert process.session.grants == (Grant(0, 2, 7), Grant(5, 5, 8))


def test_a_revoked_shard_is_reported_until_its_work_has_ended(process: Process) -> None:
    process.joins(Grant(0, 2, 7))
    process.beats()
    process.hears(one(0, 7), generation=2)
    assert process.stopped == [(1, StopReason.REVOKED), (2, StopReason.REVOKED)]
    assert process.reported == ShardRanges.of_numbers([0, 1, 2])
    process.ends(1)
    assert process.reported == ShardRanges.of_numbers([0, 2])
    assert process.epochs == {0: 7}


def test_a_shard_that_comes_back_begins_when_its_former_work_has_ended(process: Process) -> None:
    process.joins(one(0, 7))
    process.beats()
    process.hears(generation=2)
    process.hears(one(0, 9), generation=3)
    assert process.epochs == {}
    process.ends(0)
    assert process.epochs == {0: 9}


def test_a_higher_epoch_of_a_shard_begins_its_work_again(process: Process) -> None:
    process.joins(one(0, 7), one(1, 7))
    process.beats()
    process.hears(one(0, 9), one(1, 7))
    assert process.stopped == [(0, StopReason.RENEWED)]
    process.ends(0)
    assert process.epochs == {0: 9, 1: 7}


def test_an_older_answer_of_the_same_generation_takes_nothing_away(process: Process) -> None:
    process.joins(one(0, 7))
    process.beats()
    process.hears(one(0, 7), one(1, 8))
    process.hears(one(0, 7))
    assert (process.epochs, process.stopped) == ({0: 7, 1: 8}, [])


def test_an_older_generation_counts_for_nothing(process: Process) -> None:
    process.joins(one(0, 7), generation=2)
    seq = process.beats()
    assert not process.hears(one(0, 7), one(1, 5), generation=1, seq=seq)
    assert (process.epochs, process.session.lease_until) == ({0: 7}, 110.0)


def test_the_answer_for_another_process_of_that_id_counts_for_nothing(process: Process) -> None:
    process.session.register(process.now)
    assert not process.hears(one(0, 7), instance="i-2")
    assert (process.epochs, process.session.answered) == ({}, False)


def test_the_lease_counts_from_before_the_sending_of_what_is_answered(process: Process) -> None:
    process.joins(one(0, 7))
    process.passes(4)
    seq = process.beats()
    process.passes(5)
    process.beats()
    process.hears(one(0, 7), seq=seq)
    assert process.session.lease_until == 114.0
    process.passes(4.9)
    assert process.epochs == {0: 7}
    process.passes(0.1)
    assert process.stopped == [(0, StopReason.EXPIRED)]
    assert process.session.stop_until == 119.0


def test_an_answer_to_what_was_sent_a_lease_ago_counts_for_nothing_even_in_a_newer_lease(process: Process) -> None:
    """Meanwhile another process of this id can have had the shards, without a generation."""
    process.joins(one(0, 7))
    old = process.beats()
    process.passes(20)
    process.ends(0)
    process.beats()
    assert process.hears()
    assert not process.hears(one(0, 7), seq=old)
    assert process.epochs == {}


def test_the_shorter_timeout_of_a_node_counts(process: Process) -> None:
    process.session.register(process.now)
    answer = Assignment("w-1", "i-1", None, 1, 1, (one(0, 7),), timeout_s=9.0)
    assert process.session.receive(answer, process.now)
    assert (process.session.lease_until, process.session.stop_until) == (106.0, 109.0)
    process.beats()
    assert process.session.receive(Assignment("w-1", "i-1", None, 1, 2, (), timeout_s=60.0), process.now)
    assert process.session.lease_until == 106.0, "nodes with either one answer in turn while it is changed"


def test_a_shorter_timeout_shortens_the_lease_that_it_has(process: Process) -> None:
    process.joins(one(0, 7))
    process.passes(4)
    process.beats()
    answer = Assignment("w-1", "i-1", None, 1, process.session.seq, (one(0, 7),), timeout_s=3.0)
    assert process.session.receive(answer, process.now)
    assert process.session.lease_until == 106.0


def test_an_unknown_number_gives_no_lease(process: Process) -> None:
    process.session.register(process.now)
    assert not process.hears(one(0, 7), seq=0)
    assert not process.hears(one(0, 7), seq=99)
    assert process.epochs == {}


def test_after_its_lease_it_runs_what_a_later_answer_gives_and_no_former_work_beside_it(process: Process) -> None:
    process.joins(one(0, 7), one(1, 7))
    process.passes(12)
    process.ends(1)
    process.beats()
    process.hears(one(0, 9), one(1, 9))
    assert process.epochs == {1: 9}
    process.ends(0)
    assert process.epochs == {0: 9, 1: 9}


def test_the_same_answer_begins_again_what_the_end_of_the_lease_has_stopped(process: Process) -> None:
    process.joins(one(0, 7))
    process.passes(12)
    process.ends(0)
    process.beats()
    process.hears(one(0, 7))
    assert process.epochs == {0: 7}


def test_one_that_leaves_stops_all_and_begins_nothing(process: Process) -> None:
    process.joins(one(0, 7), one(1, 7))
    process.session.begin_leave()
    process.follow()
    assert process.stopped == [(0, StopReason.LEAVING), (1, StopReason.LEAVING)]
    with pytest.raises(ValueError, match="2 shards has not ended"):
        process.session.leave()
    process.ends(0)
    process.beats()
    process.hears(one(0, 7), one(1, 7), one(2, 8), generation=2)
    assert process.epochs == {}
    process.ends(1)
    assert process.session.leave().instance == "i-1"


def test_very_many_shards_begin_in_portions_and_stop_at_once() -> None:
    process = Process()
    process.joins(Grant(0, MOST_STARTS + 9, 1))
    assert (len(process.runs), process.session.has_changes) == (MOST_STARTS, True)
    process.follow()
    assert (len(process.runs), process.session.has_changes) == (MOST_STARTS + 10, False)
    process.passes(10)
    assert len(process.stopped) == MOST_STARTS + 10


def test_the_grants_of_a_heartbeat_have_an_epoch_for_each_shard(process: Process) -> None:
    grants: Grants = (Grant(0, 4, 3), Grant(5, 5, 4), Grant(6, 9, 3))
    process.joins(*grants)
    assert process.session.grants == grants
    assert process.reported == ShardRanges.up_to(10)
