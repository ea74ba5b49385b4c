"""Is it said which shards have no member, since when, and why; and what a change would move?"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from orchestrix.domain.shards.allocation import Allocation, Shares
from orchestrix.domain.shards.diagnosis import MOST_SENTENCES, explain, unowned_in
from orchestrix.domain.shards.preview import preview
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import ShardRules
from tests.unit.domain.shards.cluster import NOON, Driver, seconds

EVEN, MINIMAL = Allocation.EVEN, Allocation.MINIMAL_MOVE


def said(driver: Driver) -> list[str]:
    return explain(driver.state, driver.now, driver.rules)


def test_a_service_that_is_well_needs_no_sentence() -> None:
    driver = Driver().start("a", "b")
    assert (unowned_in(driver.state), said(driver)) == (None, [])


def test_before_the_first_generation_no_shard_has_a_member() -> None:
    driver = Driver()
    driver.register("a")
    began = driver.now
    driver.wait(1.0)
    found = unowned_in(driver.state)
    assert found is not None
    assert (found.shards, found.since) == (ShardRanges.up_to(10), began)
    assert said(driver) == ["generation 1 is pending: members may join it until 2026-01-01T12:00:02Z"]


def test_shards_of_one_that_has_left_wait_for_the_next_generation() -> None:
    driver = Driver().start("a", "b")
    driver.wait(8.0)
    driver.report("a")
    driver.leave("b")
    left = driver.now
    driver.wait(1.0)
    found = unowned_in(driver.state)
    assert found is not None
    assert (list(found.shards.numbers()), found.since) == ([5, 6, 7, 8, 9], left)
    assert said(driver) == [
        "generation 2 is pending: members may join it until 2026-01-01T12:00:12Z",
        "5 shards have no member since 2026-01-01T12:00:10Z: b is gone; the next generation gives them to others",
    ]
    driver.activate()
    assert unowned_in(driver.state) is None


@pytest.mark.parametrize(
    ("grace", "silent", "why"),
    [
        (60.0, False, "b has left, and its share waits for its return until 2026-01-01T12:02:02Z (grace)"),
        (90.0, True, "b is silent, and its share waits for its return until 2026-01-01T12:01:30Z (grace)"),
    ],
)
def test_the_share_of_one_that_is_away_waits_for_its_return(grace: float, silent: bool, why: str) -> None:
    driver = Driver()
    driver.register("a")
    driver.register("b", grace_s=grace)
    driver.activate()
    if silent:
        driver.wait(15.0)
        driver.report("a")
        driver.check()
    else:
        driver.wait(60.0)
        driver.report("a")
        driver.leave("b")
    found = unowned_in(driver.state)
    assert found is not None
    assert found.since == (NOON if silent else driver.now)
    (sentence,) = said(driver)
    since = "2026-01-01T12:00:00Z" if silent else "2026-01-01T12:01:02Z"
    assert sentence == f"5 shards have no member since {since}: {why}"


def test_shards_that_are_nobodys_are_told_from_those_that_wait() -> None:
    driver = Driver().start("a")
    driver.leave("a")
    driver.activate()
    assert said(driver) == [
        "10 shards have no member since 2026-01-01T12:00:02Z: the service has no members: start one"
    ]
    driver.register("b", weight=0)
    driver.activate()
    (sentence,) = said(driver)
    assert sentence.endswith("no member takes shards, for all have the weight 0: start one, or let one stay")


def test_a_generation_that_no_node_leads_or_activates_is_told() -> None:
    driver = Driver()
    driver.register("a")
    driver.wait(7.0)
    assert said(driver) == [
        "generation 1 is pending since 2026-01-01T12:00:00Z and no node leads it: start a node with the role "
        "coordinator (`orchestrix serve`)"
    ]
    driver.lead("node-7")
    assert said(driver) == [
        "generation 1 is pending since 2026-01-01T12:00:00Z: its leader node-7 has not activated it; another node "
        "begins the next one"
    ]


def test_that_no_member_sends_heartbeats_is_told_once_their_lease_is_over() -> None:
    driver = Driver(ShardRules(heartbeat_timeout_s=30.0)).start("a", "b")
    driver.wait(8.0)
    driver.report("a")
    driver.wait(20.0)
    assert said(driver) == [], "the lease of a is not over"
    driver.wait(17.0)
    assert said(driver) == [
        "no member's heartbeat has arrived for 37 s: members stop their work when their lease is over (20 s), and "
        "become inactive only when a node has listened for 30 s without one of theirs; check that nodes and members "
        "reach the broker"
    ]
    driver.report("b")
    assert said(driver) == []


def test_silent_plain_members_have_no_lease_that_ends() -> None:
    driver = Driver()
    driver.register("a", None)
    driver.activate()
    driver.wait(20.0)
    (sentence,) = said(driver)
    assert sentence.startswith(
        "no member's heartbeat has arrived for 22 s: members become inactive only when a node has listened "
    )


def test_members_that_are_away_are_not_said_to_be_silent() -> None:
    driver = Driver()
    driver.register("a", grace_s=90.0)
    driver.activate()
    driver.leave("a")
    driver.wait(60.0)
    (sentence,) = said(driver)
    assert "a has left, and its share waits for its return" in sentence


def test_a_second_process_under_an_id_is_told() -> None:
    driver = Driver().start("a")
    driver.register("a", "i-2")
    (sentence,) = said(driver)
    assert sentence == (
        "a second process runs as a and gets nothing until the first one ends: stop one of them, or give it another "
        "workerId"
    )


def test_of_many_sentences_of_a_kind_the_last_are_counted() -> None:
    driver = Driver(ShardRules(allocation=MINIMAL))
    workers = [f"w-{number:02}" for number in range(25)]
    for worker in workers:
        driver.register(worker, shard_count=50)
    driver.activate()
    for worker in workers:
        driver.register(worker, "i-2", shard_count=50)
    found = said(driver)
    assert len(found) == MOST_SENTENCES + 1
    assert found[-1] == "and 5 more like the one before"


def test_the_time_of_the_shards_that_are_free_for_the_longest_is_told() -> None:
    driver = Driver()
    driver.register("a")
    for worker in ("b", "c"):
        driver.register(worker, grace_s=600.0)
    driver.activate()
    driver.wait(1.0)
    driver.leave("c")
    first = driver.now
    driver.wait(30.0)
    driver.leave("b")
    found = unowned_in(driver.state)
    assert found is not None
    assert (found.shards.size, found.since) == (6, first)


# What a change would move.


def shares(**parts: list[int]) -> Shares:
    return {worker: ShardRanges.of_numbers(numbers) for worker, numbers in parts.items()}


def test_a_preview_says_what_would_move_and_what_must() -> None:
    current = shares(a=[0, 1, 2, 3], b=[4, 5, 6], c=[7, 8, 9])
    equal = {"b": 1, "c": 1}
    shown = preview(EVEN, 10, equal, current)
    assert {worker: one.size for worker, one in shown.shares.items()} == {"b": 5, "c": 5}
    assert (shown.moved, shown.fewest) == (6, 4)
    assert preview(MINIMAL, 10, equal, current).moved == 4
    assert preview(EVEN, 10, {"a": 1, **equal}, current).moved == 0
    assert preview(EVEN, 3, {"a": 1, **equal}, current).moved == 2
    assert (preview(EVEN, 10, {}, current).shares, preview(MINIMAL, 10, {"b": 0}, current).shares) == ({}, {})


def test_a_preview_is_what_the_next_generation_is() -> None:
    """Whatever has happened before, and by both rules."""
    for seed in range(60):
        random = Random(seed)
        driver = Driver(ShardRules(allocation=random.choice((EVEN, MINIMAL))))
        for worker in "abcdef"[: random.randint(1, 6)]:
            driver.register(worker, weight=random.randint(0, 3), shard_count=random.randint(1, 40))
        driver.activate()
        weights = {worker: one.weight for worker, one in driver.state.members.items()}
        worker, count = random.choice(sorted(weights)), driver.state.shard_count
        change = random.choice(("leave", "join", "count"))
        if change == "leave":
            weights.pop(worker)
        elif change == "join":
            weights["new"] = random.randint(1, 3)
        else:
            count = random.randint(1, 40)
        assert driver.state.active is not None
        shown = preview(driver.rules.allocation, count, weights, driver.state.active.shares)
        if change == "leave":
            driver.leave(worker)
        elif change == "join":
            driver.register("new", weight=weights["new"])
        else:
            driver.register(worker, shard_count=count, weight=weights[worker])
        driver.activate()
        active = driver.state.active
        assert active is not None
        assert (dict(active.shares), active.moved) == (dict(shown.shares), shown.moved), seed
        assert shown.fewest <= shown.moved


def test_times_are_those_of_departures_and_not_older_ones_of_the_same_worker() -> None:
    driver = Driver().start("a", "b")
    driver.leave("b")
    driver.activate()
    driver.register("b", "i-2")
    driver.activate()
    driver.report("a", [0, 1, 2, 3, 4])
    driver.wait(100.0)
    driver.leave("b", "i-2")
    found = unowned_in(driver.state)
    assert found is not None
    assert found.since == driver.now
    older = replace(next(iter(driver.state.departures.values())), at=NOON)
    assert older.at < found.since - seconds(90)
