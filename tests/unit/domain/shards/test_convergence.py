"""Is a shard granted only when no other member has it, and do unchanged members never notice?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.convergence import to_release
from orchestrix.domain.shards.diagnosis import unreleased
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.service import is_routine, routine_answer
from orchestrix.domain.shards.state import MemberHeartbeat, PlainMode, ShardRules
from tests.unit.domain.shards.cluster import Driver

MINIMAL = ShardRules(allocation=Allocation.MINIMAL_MOVE)


@pytest.mark.req("S1-37")
def test_a_shard_is_granted_when_its_former_member_has_let_go_of_it() -> None:
    driver = Driver().start("a")
    driver.register("b")
    driver.activate()
    assert (driver.given("a"), driver.given("b")) == ([0, 1, 2, 3, 4], [])
    driver.report("a", [0, 1, 2, 3, 4, 8, 9])
    assert driver.given("b") == [5, 6, 7]
    driver.report("a", [0, 1, 2, 3, 4])
    assert driver.given("b") == [5, 6, 7, 8, 9]


def test_a_heartbeat_that_follows_an_older_generation_acknowledges_nothing() -> None:
    driver = Driver().start("a")
    driver.register("b")
    driver.activate()
    driver.report("a", [0, 1], generation=1)
    assert driver.shards("a") == list(range(10))
    driver.report("a", [0, 1])
    assert driver.shards("a") == [0, 1, 2, 3, 4]


def test_what_a_member_does_not_run_of_its_share_stays_its_own() -> None:
    driver = Driver().start("a", "b")
    driver.report("a", [])
    assert (driver.shards("a"), driver.state.free) == ([0, 1, 2, 3, 4], ShardRanges())


def test_a_member_whose_share_is_the_same_keeps_its_epochs() -> None:
    driver = Driver(MINIMAL).start("a", "b", "c")
    before = {worker: driver.state.members[worker].grants for worker in "ab"}
    driver.leave("c")
    driver.activate()
    for worker in "ab":
        epochs = {n: g.epoch for g in driver.state.members[worker].grants for n in range(g.first, g.last + 1)}
        assert all(epochs[n] == g.epoch for g in before[worker] for n in range(g.first, g.last + 1))


def test_epochs_rise_with_each_grant_of_a_shard() -> None:
    driver = Driver().start("a", "b")
    latest = max(driver.epochs("a") | driver.epochs("b"))
    driver.leave("b")
    driver.activate()
    epochs = {grant.first: grant.epoch for grant in driver.state.members["a"].grants}
    assert epochs[5] > latest >= epochs[0]


def test_epochs_of_shards_that_were_taken_away_and_came_back_do_not_begin_anew() -> None:
    driver = Driver().start("a")
    (before,) = driver.epochs("a")
    driver.register("a", shard_count=5)
    driver.activate()
    driver.report("a", [0, 1, 2, 3, 4])
    driver.register("a", shard_count=10)
    driver.activate()
    assert driver.shards("a") == list(range(10))
    assert {grant.first: grant.epoch > before for grant in driver.state.members["a"].grants} == {0: False, 5: True}


# Answers from memory.


def routine(driver: Driver, worker: str, **more: object) -> MemberHeartbeat:
    member, active = driver.state.members[worker], driver.state.active
    assert active is not None
    heartbeat = MemberHeartbeat(
        worker_id=worker,
        instance=member.instance,
        shard_count=member.shard_count,
        shards=member.shards,
        seq=member.seq + 1,
        generation=active.number,
        weight=member.weight,
        grace_s=member.grace_s,
        reply_to=member.reply_to,
    )
    return replace(heartbeat, **more)  # type: ignore[arg-type]


def test_a_heartbeat_without_news_is_routine_and_answered_as_a_transition_would() -> None:
    driver = Driver().start("a", "b")
    driver.report("a")
    heartbeat = routine(driver, "a")
    assert is_routine(driver.state, heartbeat)
    answer, before = routine_answer(driver.state, heartbeat, driver.rules), driver.state
    driver.do(heartbeat)
    assert driver.answers["a"] == answer
    after = driver.state.members["a"]
    assert replace(driver.state, members=before.members) == before
    assert after == replace(before.members["a"], seq=heartbeat.seq, last_seen=driver.now)


@pytest.mark.parametrize(
    "news",
    [
        {"instance": "i-2"},
        {"worker_id": "c"},
        {"shard_count": 11},
        {"seq": 0},
        {"generation": 0},
        {"weight": 2},
        {"grace_s": 9.0},
        {"reply_to": "elsewhere"},
        {"via": "another-node"},
    ],
)
def test_a_heartbeat_with_news_is_not_routine(news: dict[str, object]) -> None:
    driver = Driver().start("a", "b")
    driver.report("a")
    assert not is_routine(driver.state, routine(driver, "a", **news))


def test_the_first_heartbeat_that_follows_a_generation_is_not_routine() -> None:
    """It is stored which members have come so far."""
    driver = Driver().start("a")
    assert not is_routine(driver.state, routine(driver, "a"))
    driver.report("a")
    assert driver.state.members["a"].generation == 1
    assert is_routine(driver.state, routine(driver, "a"))


def test_a_heartbeat_of_one_that_has_to_let_go_is_not_routine() -> None:
    driver = Driver().start("a")
    driver.report("a")
    driver.register("b")
    driver.activate()
    driver.report("a")
    assert to_release(driver.state, driver.state.members["a"]).size == 5
    assert not is_routine(driver.state, routine(driver, "a"))


def test_the_version_of_a_member_changes_with_all_that_it_may_run() -> None:
    """So an answer from an old memory is not sent."""
    driver = Driver().start("a", "b")
    seen = {driver.state.members["a"].version}

    def is_new() -> bool:
        version = driver.state.members["a"].version
        is_new = version not in seen
        seen.add(version)
        return is_new

    driver.report("a")
    assert not is_new()
    driver.leave("b")
    driver.activate()
    assert is_new()  # it was granted more
    driver.register("b", "i-2")
    driver.activate()
    driver.report("a", [0, 1, 2, 3, 4])
    assert is_new()  # it has let go
    driver.register("a", weight=3)
    assert is_new()
    driver.wait(15.0)
    driver.check()
    driver.report("a", [])
    assert is_new()  # it was silent, and is a member again


# S1's own clients.


def plain(mode: PlainMode) -> Driver:
    """One client of S1 with 10 shards, and a second member, whose share is half of them."""
    driver = Driver(ShardRules(plain=mode))
    driver.register("a", None)
    driver.activate()
    driver.report("a", list(range(10)), None)
    driver.register("b")
    driver.activate()
    return driver


def test_in_push_mode_the_pushed_assignment_counts_at_once() -> None:
    driver = plain(PlainMode.PUSH)
    assert (driver.given("a"), driver.given("b")) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])


def test_in_protect_mode_what_a_client_still_reports_is_not_granted() -> None:
    driver = plain(PlainMode.PROTECT)
    assert (driver.given("a"), driver.given("b")) == ([0, 1, 2, 3, 4], [])
    assert [one.unrevocable for one in unreleased(driver.state, driver.now)] == [False]
    for _ in range(6):
        driver.wait(10.0)
        driver.report("a", list(range(10)), None)
        driver.report("b")
        assert driver.given("b") == []
    (waiting,) = unreleased(driver.state, driver.now)
    assert (waiting.worker_id, waiting.shards.size, waiting.unrevocable) == ("a", 5, True)
    assert "restart it" in waiting.sentence()


def test_in_protect_mode_two_heartbeats_without_a_shard_free_it_the_second_10_s_after_the_push() -> None:
    driver = plain(PlainMode.PROTECT)
    for passed, freed in ((1.0, False), (8.9, False), (0.1, True)):
        driver.wait(passed)
        driver.report("a", [0, 1, 2, 3, 4], None)
        assert (driver.shards("b") == [5, 6, 7, 8, 9]) is freed
    assert list(unreleased(driver.state, driver.now)) == []


def test_in_protect_mode_the_two_heartbeats_follow_each_other() -> None:
    driver = plain(PlainMode.PROTECT)
    driver.wait(5.0)
    driver.report("a", [0, 1, 2, 3, 4], None)
    driver.wait(5.0)
    driver.report("a", [0, 1, 2, 3, 4, 5], None)
    assert driver.shards("b") == [6, 7, 8, 9]
    driver.wait(5.0)
    driver.report("a", [0, 1, 2, 3, 4], None)
    assert driver.shards("b") == [6, 7, 8, 9]
    driver.wait(5.0)
    driver.report("a", [0, 1, 2, 3, 4], None)
    assert driver.shards("b") == [5, 6, 7, 8, 9]


def test_in_protect_mode_further_generations_do_not_postpone_what_was_pushed_before() -> None:
    driver = plain(PlainMode.PROTECT)
    for worker in "cdef":
        driver.wait(1.0)
        driver.report("a", [0, 1], None)
        driver.report("b")
        driver.register(worker)
        driver.activate()
    driver.report("a", [0, 1], None)
    driver.report("a", [0, 1], None)
    assert 5 not in driver.shards("a")
    assert set(driver.shards("a")) >= {0, 1}


def test_a_silent_client_loses_its_shards_in_both_modes() -> None:
    for mode in PlainMode:
        driver = plain(mode)
        driver.wait(15.0)
        driver.report("b")
        driver.check()
        driver.activate()
        assert driver.given("b") == list(range(10))


# What is shown.


def test_shards_that_a_member_has_not_let_go_of_are_shown_with_their_time() -> None:
    driver = Driver().start("a")
    driver.register("b")
    driver.activate()
    since = driver.now
    (waiting,) = unreleased(driver.state, driver.now)
    assert waiting.sentence() == ("a is to let go of 5 shards since 2026-01-01T12:00:04Z, and others wait for them")
    driver.wait(90.0)
    (waiting,) = unreleased(driver.state, driver.now)
    assert (waiting.worker_id, waiting.shards.size, waiting.since, waiting.unrevocable) == ("a", 5, since, False)
    assert waiting.sentence() == (
        "a has not let go of 5 shards since 2026-01-01T12:00:04Z: see its log for what does not end, or restart it"
    )
