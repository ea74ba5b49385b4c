"""Who is a member, since when is one silent, and which of two processes with one id counts?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrix.domain.shards import membership
from orchestrix.domain.shards.members import MOST_MEMBERS
from orchestrix.domain.shards.state import DEPARTURES_KEPT_S, GenerationChange, MemberLeave
from tests.unit.domain.shards.cluster import Driver, seconds


@pytest.mark.req("S1-5", "S1-13", "S1-35", "S1-36")
def test_one_that_is_silent_for_the_time_out_is_no_member_and_its_shards_are_free() -> None:
    driver = Driver().start("a", "b")
    driver.report("a")
    driver.wait(14.9)
    driver.report("b")
    driver.check()
    assert driver.changes == []
    driver.wait(0.1)
    driver.check()
    assert driver.changes == [("a", "inactive")]
    assert driver.state.free.size == 5
    driver.activate()
    assert driver.given("b") == list(range(10))


@pytest.mark.req("S1-38")
def test_every_heartbeat_counts_as_a_sign_of_life() -> None:
    driver = Driver().start("a")
    for _ in range(5):
        driver.wait(14.0)
        driver.report("a")
        driver.check()
        assert driver.changes == []


def test_silence_counts_only_while_the_node_listens() -> None:
    """After an outage nobody is taken for dead in one go."""
    driver = Driver().start("a", "b")
    driver.wait(100.0)
    driver.listening_since = driver.now - seconds(14.9)
    driver.check()
    assert driver.changes == []
    driver.listening_since = driver.now - seconds(15)
    driver.check()
    assert driver.changes == [("a", "inactive"), ("b", "inactive")]


def test_a_clock_that_was_set_back_makes_no_one_silent() -> None:
    driver = Driver().start("a")
    driver.now -= timedelta(hours=2)
    driver.check()
    assert driver.changes == []
    assert driver.state.members["a"].last_seen == driver.now


@pytest.mark.req("S1-23", "S1-26")
def test_one_that_registers_again_is_answered_with_what_it_has() -> None:
    driver = Driver().start("a", "b")
    driver.register("a")
    assert driver.given("a") == [0, 1, 2, 3, 4]
    assert driver.given("b") is None
    assert driver.generations == []


@pytest.mark.req("S1-18")
def test_a_heartbeat_is_answered_with_what_the_member_has() -> None:
    driver = Driver().start("a", "b")
    driver.report("b", seq=77)
    assert driver.given("b") == [5, 6, 7, 8, 9]
    assert (driver.answers["b"].seq, driver.answers["b"].reply_to) == (77, "to b")


def test_a_new_member_is_answered_when_its_generation_is_active_with_nothing_if_nothing_is_free() -> None:
    driver = Driver().start("a")
    driver.register("b")
    assert driver.given("b") is None
    driver.activate()
    assert driver.given("b") == []
    driver.report("a", [0, 1, 2, 3, 4])
    assert driver.given("b") == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("silent", [False, True])
def test_a_heartbeat_of_an_unknown_or_inactive_member_registers_it(silent: bool) -> None:
    driver = Driver().start("a", "b")
    if silent:
        driver.wait(15.0)
        driver.report("a")
        driver.check()
        driver.activate()
    driver.report("b" if silent else "c", [3, 4], instance="i-1", shard_count=99)
    assert driver.changes == [("b" if silent else "c", "joined")]
    assert driver.given("b" if silent else "c") == []
    assert driver.state.shard_count == 10
    driver.activate()
    assert driver.shards("a")[:3] == [0, 1, 2]


def test_shards_that_were_never_granted_count_for_nothing() -> None:
    driver = Driver().start("a", "b")
    before = driver.state.members["b"].grants
    driver.report("a", list(range(10)))
    assert driver.shards("a") == [0, 1, 2, 3, 4]
    assert driver.state.members["b"].grants == before


def test_a_member_beyond_the_limit_is_refused_in_the_answer() -> None:
    driver = Driver()
    for place in range(MOST_MEMBERS):
        driver.register(f"m{place:04}")
    driver.register("one-more")
    assert driver.answers["one-more"].problem == membership.TOO_MANY_MEMBERS
    assert (driver.answers["one-more"].reply_to, driver.given("one-more")) == ("to one-more", [])
    driver.report("two-more", [])
    assert driver.answers["two-more"].problem == membership.TOO_MANY_MEMBERS
    assert len(driver.state.members) == MOST_MEMBERS


# Processes.


def test_a_new_process_waits_for_the_leave_of_the_old_one_and_no_share_changes() -> None:
    driver = Driver().start("a", "b")
    before = driver.epochs("a")
    other = driver.state.members["b"]
    driver.register("a", "i-2")
    assert (driver.given("a"), driver.answers["a"].problem) == ([], membership.OTHER_PROCESS)
    driver.report("a", [], "i-2")
    assert driver.given("a") == []
    driver.leave("a", "i-1")
    assert driver.changes == [("a", "replaced")]
    assert driver.answers["a"].instance == "i-2"
    assert driver.given("a") == [0, 1, 2, 3, 4]
    assert min(driver.epochs("a")) > max(before)
    assert driver.state.members["b"] == other
    assert driver.state.pending is None


def test_a_new_process_gets_the_shards_of_one_that_died_after_the_time_out() -> None:
    driver = Driver().start("a", "b")
    driver.report("a")
    driver.wait(5.0)
    driver.register("a", "i-2")
    driver.wait(9.9)
    driver.report("a", [], "i-2")
    driver.report("b")
    driver.check()
    assert driver.changes == []
    driver.wait(0.1)
    driver.check()
    assert driver.changes == [("a", "replaced")]
    assert driver.given("a") == [0, 1, 2, 3, 4]
    assert driver.state.pending is None


def test_of_two_living_processes_the_first_one_goes_on() -> None:
    driver = Driver().start("a")
    driver.register("a", "i-2")
    for _ in range(5):
        driver.wait(5.0)
        driver.report("a")
        driver.report("a", [], "i-2")
        assert driver.answers["a"].problem == membership.OTHER_PROCESS
        driver.report("a", [], "i-3")
        assert driver.answers["a"].problem == membership.OTHER_PROCESS
        driver.check()
    assert driver.state.members["a"].instance == "i-1"
    assert driver.state.successors["a"].instance == "i-2"
    driver.leave("a", "i-2")
    assert dict(driver.state.successors) == {}
    assert driver.shards("a") == list(range(10))


def test_a_leave_of_another_process_changes_nothing() -> None:
    driver = Driver().start("a")
    driver.leave("a", "i-0")
    assert driver.effects == []
    assert driver.shards("a") == list(range(10))


def test_late_messages_of_one_that_left_count_for_nothing() -> None:
    driver = Driver().start("a", "b")
    driver.leave("a")
    driver.report("a", [0])
    assert (driver.effects, "a" in driver.state.members) == ([], False)
    driver.register("a")
    assert driver.answers["a"].problem == membership.GONE
    driver.register("a", "i-2")
    assert driver.changes == [("a", "joined")]


def test_who_left_is_forgotten_in_time() -> None:
    driver = Driver().start("a", "b")
    driver.leave("a")
    driver.wait(DEPARTURES_KEPT_S - 1)
    driver.report("b")
    driver.check()
    assert ("a", "i-1") in driver.state.departures
    driver.wait(2)
    driver.report("b")
    driver.check()
    assert dict(driver.state.departures) == {}


# Grace.


def test_a_restart_within_the_grace_moves_nothing() -> None:
    driver = Driver()
    driver.register("a", grace_s=30.0)
    driver.start("b")
    before = driver.state.members["b"]
    driver.leave("a")
    assert driver.changes == [("a", "away")]
    assert (driver.state.free.size, driver.state.pending) == (5, None)
    driver.wait(25.0)
    driver.do()
    driver.register("a", "i-2", grace_s=30.0)
    assert (driver.changes, driver.given("a")) == ([("a", "replaced")], [0, 1, 2, 3, 4])
    assert driver.state.members["b"].grants == before.grants
    assert driver.state.number == 1


def test_after_the_grace_its_shards_are_others() -> None:
    driver = Driver()
    driver.register("a", grace_s=30.0)
    driver.start("b")
    driver.leave("a")
    for passed in (29.9, 0.1):
        driver.wait(passed)
        driver.report("b")
        driver.check()
    assert driver.changes == [("a", "inactive")]
    driver.activate()
    assert driver.given("b") == list(range(10))


def test_one_that_is_silent_within_its_grace_returns_to_its_shards_under_new_epochs() -> None:
    driver = Driver()
    driver.register("a", grace_s=60.0)
    driver.start("b")
    before = max(driver.epochs("a"))
    driver.wait(15.0)
    driver.report("b")
    driver.check()
    assert (driver.changes, driver.state.pending) == ([("a", "away")], None)
    driver.report("a", [])
    assert (driver.changes, driver.given("a")) == ([("a", "returned")], [0, 1, 2, 3, 4])
    assert min(driver.epochs("a")) > before


def test_a_node_that_remembers_one_as_it_was_before_it_was_away_does_not_answer_it() -> None:
    """Nor notes its sign of life, by which it would be silent and not be: also one that has no shards."""
    driver = Driver()
    driver.register("a", weight=0, grace_s=60.0)
    driver.start("b")
    version = driver.state.members["a"].version
    driver.wait(15.0)
    driver.report("b")
    driver.check()
    assert driver.changes == [("a", "away")]
    assert driver.state.members["a"].version > version


def test_one_that_announces_its_leave_hands_over_before_it_stops() -> None:
    driver = Driver().start("a", "b")
    driver.register("a", weight=0)
    driver.activate()
    assert (driver.given("a"), driver.given("b")) == ([], [5, 6, 7, 8, 9])
    driver.report("a", [4])
    assert driver.given("b") == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    driver.report("a", [])
    assert driver.given("b") == list(range(10))
    driver.leave("a")
    driver.activate()
    assert driver.state.active is not None
    assert driver.state.active.moved == 0


# Plain clients, which are told apart by their addresses.


def plain_client() -> Driver:
    """One client of S1 with all shards, connected to one node."""
    driver = Driver()
    driver.register("a", None, reply_to="zmq:01", via="n-1")
    driver.activate()
    return driver


@pytest.mark.req("S1-26", "S1-51")
def test_a_registration_takes_the_place_of_another_plain_client() -> None:
    driver = plain_client()
    driver.register("a", None, reply_to="zmq:02", via="n-2")
    assert driver.given("a") == list(range(10))
    assert (driver.answers["a"].reply_to, driver.answers["a"].via) == ("zmq:02", "n-2")
    assert driver.changes == []
    driver.report("a", [1], None, reply_to="zmq:01", via="n-1", shard_count=3)
    assert (driver.given("a"), driver.answers["a"].problem) == ([], membership.OTHER_CLIENT)
    assert (driver.answers["a"].reply_to, driver.answers["a"].via) == ("zmq:01", "n-1")
    assert (driver.state.shard_count, driver.state.members["a"].reply_to) == (10, "zmq:02")


def test_a_heartbeat_from_elsewhere_is_refused_until_the_client_is_silent() -> None:
    driver = plain_client()
    driver.report("a", None, None, reply_to="zmq:01", via="n-1")
    began = driver.now
    for passed in (5.0, 2.4):
        driver.wait(passed)
        driver.report("a", [], None, reply_to="zmq:02", via="n-2")
        assert (driver.given("a"), driver.answers["a"].problem) == ([], membership.OTHER_CLIENT)
    assert driver.state.members["a"].last_seen == began
    driver.wait(0.1)
    driver.report("a", [], None, reply_to="zmq:02", via="n-2")
    assert driver.given("a") == list(range(10))
    assert (driver.state.members["a"].reply_to, driver.state.members["a"].via) == ("zmq:02", "n-2")
    driver.report("a", [], None, reply_to="zmq:01", via="n-1")
    assert driver.given("a") == []


def test_of_two_plain_clients_that_beat_within_the_time_out_the_first_one_goes_on() -> None:
    """However their heartbeats are placed in time, for one of two gaps in turn is shorter than half of it."""
    for place in range(1, 14):
        driver = plain_client()
        for _ in range(6):
            driver.report("a", None, None, reply_to="zmq:01", via="n-1")
            first = driver.given("a")
            driver.wait(place)
            driver.report("a", [], None, reply_to="zmq:02", via="n-2")
            second = driver.given("a")
            driver.wait(14 - place)
        assert (first, second) in (([], list(range(10))), (list(range(10)), []))


def test_a_heartbeat_over_another_node_by_an_identity_of_its_own_is_the_clients() -> None:
    driver = plain_client()
    driver.wait(1.0)
    driver.report("a", None, None, reply_to="zmq:01", via="n-2")
    assert driver.given("a") == list(range(10))
    assert driver.state.members["a"].via == "n-2"


def test_a_leave_of_another_plain_client_changes_nothing() -> None:
    driver = plain_client()
    driver.do(MemberLeave("a", None, "zmq:02"))
    assert driver.shards("a") == list(range(10))
    driver.do(MemberLeave("a", None, "zmq:01"))
    assert driver.changes == [("a", "left")]


@pytest.mark.parametrize("by", ["registration", "heartbeat"])
def test_what_a_former_client_has_let_go_of_does_not_count_for_the_next_one(by: str) -> None:
    driver = plain_client()
    driver.register("b")
    driver.activate()
    driver.wait(10.0)
    driver.report("b")
    driver.report("a", [0, 1, 2, 3, 4], None, reply_to="zmq:01", via="n-1")
    if by == "registration":
        driver.register("a", None, reply_to="zmq:02", via="n-2")
    driver.wait(8.0)
    driver.report("b")
    driver.report("a", [0, 1, 2, 3, 4], None, reply_to="zmq:02", via="n-2")
    assert driver.shards("a") == list(range(10))
    driver.report("a", [0, 1, 2, 3, 4], None, reply_to="zmq:02", via="n-2")
    assert driver.shards("a") == [0, 1, 2, 3, 4]


def causes(driver: Driver) -> list[str]:
    """Of the generations that the last events began."""
    return [str(one.cause.kind) for one in driver.effects if isinstance(one, GenerationChange) and not one.members]


def test_an_announced_leave_and_another_weight_are_told_apart() -> None:
    driver = Driver().start("a", "b")
    driver.report("a", weight=3)
    assert causes(driver) == ["weight"]
    driver.activate()
    driver.report("a", weight=0)
    assert causes(driver) == ["leaving"]


def test_a_process_that_takes_the_place_of_one_that_leaves_is_its_replacement_and_has_a_share_again() -> None:
    driver = Driver().start("a", "b")
    driver.report("a", weight=0)
    driver.activate()
    assert driver.state.active is not None
    assert driver.state.active.share("a").size == 0
    driver.register("a", "i-2")
    driver.leave("a")
    assert causes(driver) == ["replaced"]
    driver.activate()
    assert driver.state.active.share("a").size == 5
