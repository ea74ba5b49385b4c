"""When does a generation begin, who leads it, and how does it end?"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from orchestrix.domain.shards.generations import (
    TRANSITIONS,
    Cause,
    CauseKind,
    Generation,
    GenerationState,
    activated,
    begun,
    check_transition,
    led,
    superseded,
)
from orchestrix.domain.shards.service import next_action_at
from orchestrix.saga.errors import IllegalTransition
from tests.unit.domain.shards.cluster import NODE, NOON, Driver, seconds

PENDING, ACTIVE, SUPERSEDED = GenerationState
CAUSE = Cause(CauseKind.JOINED, "a")


@pytest.mark.req("S4-10", "S4-11", "S4-12", "S4-42")
def test_there_are_three_transitions_and_no_others() -> None:
    assert {(one, other) for one, others in TRANSITIONS.items() for other in others} == {
        (PENDING, ACTIVE),
        (ACTIVE, SUPERSEDED),
        (PENDING, SUPERSEDED),
    }
    for one, other in product(GenerationState, repeat=2):
        generation = replace(begun(1, CAUSE, NOON, 2.0), state=one)
        if other in TRANSITIONS[one]:
            check_transition(generation, other)
        else:
            with pytest.raises(IllegalTransition):
                check_transition(generation, other)


def test_an_illegal_transition_changes_nothing() -> None:
    done = superseded(begun(1, CAUSE, NOON, 2.0), NOON)
    with pytest.raises(IllegalTransition):
        superseded(done, NOON)
    with pytest.raises(IllegalTransition):
        activated(done, NOON, revision=1, shard_count=1, shares={}, moved=0)
    with pytest.raises(IllegalTransition):
        led(done, NODE, NOON)
    with pytest.raises(IllegalTransition):
        led(led(begun(1, CAUSE, NOON, 2.0), NODE, NOON), "node-2", NOON)


@pytest.mark.req("S4-13", "S4-17", "S4-18", "S4-19", "S4-20", "S4-21", "S4-22", "S4-23")
def test_members_that_register_in_the_window_are_in_one_generation() -> None:
    driver = Driver()
    driver.register("a")
    assert driver.generations == [(1, "pending")]
    assert driver.answers == {}
    driver.lead()
    driver.wait(1.9)
    driver.register("b")
    assert driver.generations == []
    driver.check()
    assert driver.generations == []
    driver.wait(0.1)
    driver.check()
    assert driver.generations == [(1, "active")]
    assert (driver.given("a"), driver.given("b")) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert driver.state.active is not None
    assert driver.state.active.leader_until is None


@pytest.mark.req("S4-17")
def test_a_stream_of_joins_postpones_nothing() -> None:
    driver = Driver()
    driver.register("a")
    driver.lead()
    for place in range(20):
        driver.wait(0.1)
        driver.register(f"b{place:02}")
    driver.check()
    assert driver.generations == [(1, "active")]
    driver.register("c")
    assert driver.generations == [(2, "pending")]
    assert driver.state.pending is not None
    assert driver.state.pending.closes_at == driver.now + seconds(2)


@pytest.mark.req("S4-7", "S4-41")
def test_another_node_than_the_leader_does_not_activate() -> None:
    driver = Driver()
    driver.register("a")
    driver.lead("node-1")
    driver.lead("node-2")
    driver.wait(5.0)
    driver.check("node-2")
    assert driver.generations == []
    assert next_action_at(driver.state, "node-1") == NOON + seconds(2)
    assert next_action_at(driver.state, "node-2") == NOON + seconds(12)
    driver.check("node-1")
    assert driver.generations == [(1, "active")]
    assert next_action_at(driver.state, "node-1") is None


@pytest.mark.req("S4-12")
def test_whoever_finds_an_abandoned_generation_begins_the_next() -> None:
    driver = Driver().start("a")
    driver.register("b")
    driver.lead("node-1")
    driver.wait(12.0)
    driver.report("a")
    driver.check("node-2")
    assert driver.generations == []
    driver.wait(0.1)
    driver.check("node-2")
    assert driver.generations == [(2, "superseded"), (3, "pending")]
    assert driver.state.active is not None
    assert driver.state.active.number == 1
    assert driver.shards("a") == list(range(10))
    driver.lead("node-2")
    driver.wait(2.0)
    driver.check("node-1")
    assert driver.generations == []
    driver.check("node-2")
    assert driver.generations == [(1, "superseded"), (3, "active")]


def test_times_that_cannot_be_true_do_not_hold_up_a_generation() -> None:
    """The clock was set back by hours after they were stored."""
    later = NOON + seconds(7200)
    pending = led(begun(1, CAUSE, later, 2.0), NODE, later)
    assert pending.is_abandoned(NOON)
    assert begun(1, CAUSE, later, 2.0).has_closed(NOON)
    assert not pending.is_abandoned(later + seconds(1))
    assert not pending.has_closed(later + seconds(1))


@pytest.mark.req("S1-21", "S1-22", "S1-24", "S1-25")
def test_a_changed_shard_count_begins_a_generation_and_all_are_answered() -> None:
    driver = Driver().start("a", "b")
    driver.report("a", shard_count=12)
    assert driver.generations == [(2, "pending")]
    driver.activate()
    assert (driver.given("a"), driver.given("b")) == ([0, 1, 2, 3, 4], [6, 7, 8, 9, 10, 11])
    driver.report("b", [6, 7, 8, 9])
    assert driver.given("a") == [0, 1, 2, 3, 4, 5]
    driver.report("a", shard_count=4)
    driver.activate()
    driver.report("a", [0, 1])
    driver.report("b", [])
    assert (driver.shards("a"), driver.shards("b")) == ([0, 1], [2, 3])


@pytest.mark.req("S1-20", "S1-22")
def test_a_heartbeat_reports_a_count_only_where_it_differs_from_what_the_process_said() -> None:
    driver = Driver().start("a", "b")
    driver.report("a", shard_count=20)
    assert driver.state.shard_count == 20
    driver.report("b", shard_count=10)
    assert driver.state.shard_count == 20
    driver.register("b", shard_count=10)
    assert driver.state.shard_count == 10


@pytest.mark.req("S1-19", "S1-20", "S1-24")
@pytest.mark.parametrize(("worker", "instance"), [("a", "i-1"), ("a", "i-2"), ("b", "i-1"), ("b", None)])
def test_the_count_of_any_registration_is_that_of_the_service(worker: str, instance: str | None) -> None:
    """Of a member, of a process that waits for the end of another, and of new members."""
    driver = Driver().start("a")
    driver.register(worker, instance, shard_count=7)
    driver.activate()
    assert driver.state.active is not None
    assert (driver.state.shard_count, driver.state.active.shard_count) == (7, 7)


def test_a_member_that_is_refused_reports_no_count() -> None:
    driver = Driver().start("a")
    driver.leave("a")
    driver.register("a", shard_count=7)
    assert driver.state.shard_count == 10


def test_an_older_message_is_a_sign_of_life_and_reports_nothing() -> None:
    driver = Driver().start("a")
    driver.report("a", seq=50)
    driver.wait(9.0)
    driver.report("a", [], shard_count=99, seq=49)
    driver.register("a", shard_count=98, weight=0, seq=48)
    member = driver.state.members["a"]
    assert (driver.state.shard_count, member.seq, member.weight, member.last_seen) == (10, 50, 1, driver.now)
    assert driver.given("a") == list(range(10))


@pytest.mark.req("S1-36")
def test_the_last_member_leaves_a_generation_without_assignments() -> None:
    driver = Driver().start("a")
    driver.leave("a")
    assert driver.generations == [(2, "pending")]
    driver.activate()
    assert driver.generations == [(1, "superseded"), (2, "active")]
    assert driver.state.active is not None
    assert (dict(driver.state.active.shares), dict(driver.state.members)) == ({}, {})
    driver.register("b")
    driver.activate()
    assert driver.given("b") == list(range(10))


def test_an_owner_is_found_for_each_part_of_a_range() -> None:
    driver = Driver().start("a", "b", "c")
    active = driver.state.active
    assert isinstance(active, Generation)
    assert list(active.owners((2, 7))) == [((2, 3), "a"), ((4, 6), "b"), ((7, 7), "c")]
    assert list(active.owners((20, 30))) == []
