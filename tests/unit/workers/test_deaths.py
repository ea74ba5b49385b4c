"""What does a worker that dies cost the commands which were in hand, and the one that has ended it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.errors import Unavailable
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop
from orchestrix.worker.commands.redelivery.policy import RedeliveryDecision, RedeliveryPolicy
from tests.fakes.rows import Rows

from .rig import CREATE
from .town import Town

Scale = Callable[[int, int], int]


@pytest.fixture
def found(rows: Rows) -> Iterator[Callable[..., Town]]:
    """Makes towns on a virtual time of their own, which ends before the rows do."""
    loops: list[VirtualLoop] = []

    def make(seed: int, **more: Any) -> Town:
        loops.append(VirtualLoop())
        return Town(loops[-1], rows, seed, **more)

    yield make
    for loop in loops:
        loop.discard()
        loop.close()


def on_time(town: Town, days: Callable[[], Any]) -> None:
    with clock.use(VirtualClock(town.loop, Random(1))):
        town.loop.run_until_complete(days())


@pytest.mark.parametrize(("fuse", "limit"), [(0.0, 20), (0.05, None)])
def test_ten_poisonous_commands_among_a_hundred_good_ones(
    found: Callable[..., Town], fuse: float, limit: int | None, scale: Scale
) -> None:
    for seed in range(scale(2, 60)):
        town = found(seed, fuse=fuse, limit=limit)
        ids = list(range(1, 111))
        town.dice.shuffle(ids)
        town.poison, good = set(ids[:10]), ids[10:]
        town.dice.shuffle(ids)

        async def days(town: Town = town, ids: list[int] = ids, good: list[int] = good) -> None:
            town.send(ids)
            town.boot("w")
            await town.until(lambda: town.good(good), within=120)
            assert town.deaths <= 30
            assert max(town.begun[id] for id in good) <= 3
            await town.until(lambda: all(town.errors(id) for id in town.poison), within=600)
            await town.until(lambda: town.server.depth(CREATE) == 0, within=60)
            assert [town.errors(id) for id in town.poison] == [["WorkerCrashed"]] * 10
            assert not any(town.errors(id) for id in good)

        on_time(town, days)


@pytest.mark.parametrize("workers", [1, 2])
def test_innocents_behind_a_killed_worker_are_done_within_four_times_their_work(
    found: Callable[..., Town], workers: int
) -> None:
    town, ids = found(1, work=15.0, concurrency=40), range(1, 35)

    async def days() -> None:
        town.boot("w0")
        town.send(ids)
        await town.until(lambda: len(town.begun) == 34, within=30)
        if workers == 2:
            town.boot("w1")
        town.kill("w0")
        await town.until(lambda: town.good(ids), within=4 * 15)
        assert max(town.begun.values()) == 2

    on_time(town, days)


def test_what_three_workers_held_when_they_died_is_done_soon_all_the_same(found: Callable[..., Town]) -> None:
    town, ids = found(2, work=5.0, concurrency=40), range(1, 41)

    async def days() -> None:
        town.boot("w0")
        town.send(ids)
        for _ in range(4):
            await town.until(lambda: len(town.server._consumers(CREATE)) == 1, within=30)
            await town.until(lambda: town.server.count(CREATE) == (0, 1), within=60)
            town.kill("w0")
        await town.until(lambda: town.good(ids), within=90)

    on_time(town, days)


def test_a_thousand_commands_on_one_slow_place_wait_in_their_queue(found: Callable[..., Town]) -> None:
    town = found(3, work=2.0, concurrency=1)
    most = 0

    async def days() -> None:
        nonlocal most
        town.boot("w0")
        town.send(range(1, 31))
        for _ in range(600):
            held = town.server.depth(CREATE) - (town.server.count(CREATE) or (0, 0))[0]
            most = max(most, held)
            await _a_moment()
        assert town.good(range(1, 26))

    on_time(town, days)
    assert most <= 1


def test_fast_commands_are_held_ahead(found: Callable[..., Town]) -> None:
    town = found(4, work=0.02, concurrency=2)
    most = 0

    async def days() -> None:
        nonlocal most
        town.boot("w0")
        town.send(range(1, 301))
        while not town.good(range(1, 301)):
            most = max(most, town.server.depth(CREATE) - (town.server.count(CREATE) or (0, 0))[0])
            await _a_moment()

    on_time(town, days)
    assert most == 50


ALONE = {"x-deaths": 10, "x-alone": 1}


def test_a_command_that_is_to_be_alone_stops_a_busy_worker_for_half_a_minute_at_most(
    found: Callable[..., Town],
) -> None:
    """Its step of an hour goes on; an idle worker finds out."""
    town = found(5, concurrency=4, poison={2})
    town.long[1] = 3600.0

    async def days() -> None:
        town.boot("busy")
        town.send([1])
        await town.until(lambda: town.begun[1] == 1, within=10)
        town.send([2], ALONE)
        await asyncio.sleep(1)
        town.send(range(3, 43))
        await town.until(lambda: town.good(range(3, 43)), within=40)
        before, end = len(town.rows.looks), town.loop.time() + 300
        for id in range(50, 80):
            town.send([id])
            await town.until(lambda id=id: town.good([id]), within=5)  # type: ignore[misc]
            await asyncio.sleep(10)
        assert town.loop.time() >= end, "it never pauses again while that step lasts"
        assert len(town.rows.looks) - before < 400, "nor does it read the same command all the time"
        assert town.begun[2] == 0
        town.boot("idle")
        await town.until(lambda: town.errors(2) == ["WorkerCrashed"], within=120)
        assert (town.begun[2], town.begun[1], town.deaths) == (1, 1, 1)

    on_time(town, days)


def test_nothing_is_tried_alone_that_cannot_be_noted(found: Callable[..., Town]) -> None:
    town = found(6, poison={1})
    town.rows.mute = Unavailable("the database is away")

    async def days() -> None:
        town.boot("w")
        town.send([1], ALONE)
        await asyncio.sleep(100)
        assert (town.begun[1], town.deaths) == (0, 0)
        town.rows.mute = None
        await town.until(lambda: town.errors(1) == ["WorkerCrashed"], within=120)
        assert (town.begun[1], town.deaths) == (1, 1)

    on_time(town, days)


def test_while_no_place_is_free_no_more_than_one_suspect_is_held(found: Callable[..., Town]) -> None:
    town = found(7, concurrency=8)
    town.long = dict.fromkeys(range(1, 9), 100.0)

    async def days() -> None:
        town.boot("w")
        town.send(range(1, 9))
        await town.until(lambda: len(town.begun) == 8, within=30)
        town.send(range(10, 40), {"x-deaths": 3})
        await asyncio.sleep(40)
        assert town.workers["w"][1].counts.set_aside < 200, "nor are they read over and over"
        for _ in range(100):
            assert town.server.depth(CREATE) - (town.server.count(CREATE) or (0, 0))[0] <= 8 + 1
            await _a_moment()
        await town.until(lambda: town.good(range(1, 9)), within=100)
        await town.until(lambda: town.good(range(10, 40)), within=30)

    on_time(town, days)


async def _a_moment() -> None:
    await asyncio.sleep(0.1)  # of virtual time


class TestLane:
    """The rule by itself."""

    def test_the_fewest_deaths_come_first(self) -> None:
        lane = RedeliveryPolicy(8)
        assert lane.arrives("a", 5, True, True) is RedeliveryDecision.ASIDE, "nobody knows yet who else waits"
        assert lane.arrives("b", 3, True, True) is RedeliveryDecision.ASIDE
        assert lane.arrives("a", 5, False, True) is RedeliveryDecision.ASIDE, "b waits with fewer"
        assert lane.arrives("b", 3, False, True) is RedeliveryDecision.RUN

    def test_what_is_alone_in_its_queue_runs_at_once(self) -> None:
        assert RedeliveryPolicy(8).arrives("a", 9, False, True) is RedeliveryDecision.RUN

    def test_a_full_lane_is_not_asked_over_and_over(self) -> None:
        lane = RedeliveryPolicy(8)
        lane.arrives("a", 3, False, True)
        assert lane.arrives("b", 3, True, True) is RedeliveryDecision.ASIDE
        assert lane.arrives("b", 3, True, True) is RedeliveryDecision.FULL

    def test_whom_others_have_taken_holds_up_nobody(self) -> None:
        lane = RedeliveryPolicy(8)
        lane.arrives("b", 3, True, True)
        places = [lane.arrives("a", 5, True, True) for _ in range(3)]
        assert places == [RedeliveryDecision.ASIDE, RedeliveryDecision.ASIDE, RedeliveryDecision.RUN]

    def test_the_width_doubles_with_who_ends_or_is_at_work_for_two_seconds(self) -> None:
        lane = RedeliveryPolicy(5)
        lane.arrives("a", 3, False, True)
        lane.watch(9.0)
        assert (lane.width, lane.full) == (1, True), "to wait for a place is no work"
        lane.works("a", 10.0)
        lane.watch(11.9)
        assert (lane.width, lane.full) == (1, True)
        lane.watch(12.0)
        assert (lane.width, lane.full) == (2, False)
        lane.leaves("a")
        assert lane.width == 2, "once for each"
        for id in "bc":
            lane.arrives(id, 3, False, True)
            lane.leaves(id)
        assert lane.width == 5, "never more than the places"

    def test_while_all_places_are_taken_one_waits_and_only_after_two_rounds(self) -> None:
        lane = RedeliveryPolicy(8)
        for id in "ab":
            lane.arrives(id, 3, False, True)
            lane.leaves(id)
        places = [lane.arrives("c", 3, False, False) for _ in range(3)]
        assert places == [RedeliveryDecision.ASIDE, RedeliveryDecision.ASIDE, RedeliveryDecision.RUN]
        places = [lane.arrives("d", 3, False, False) for _ in range(4)]
        assert places == [
            RedeliveryDecision.ASIDE,
            RedeliveryDecision.FULL,
            RedeliveryDecision.FULL,
            RedeliveryDecision.FULL,
        ]
        assert (lane.room(False), lane.room(True)) == (False, True)
        lane.works("c", 1.0)
        assert lane.arrives("d", 3, False, False) is RedeliveryDecision.RUN, "c has its place"
