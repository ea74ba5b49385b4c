"""What does a worker that dies cost the commands which were in hand, and the one that has ended it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from app import clock
from app.testing.virtual_time import VirtualLoop, VirtualSource
from tests.fakes.rows import Rows
from workers.sdk.lane import Lane, Place

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
        loop.bury()
        loop.close()


def on_time(town: Town, days: Callable[[], Any]) -> None:
    with clock.use(VirtualSource(town.loop, Random(1))):
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


async def _a_moment() -> None:
    await asyncio.sleep(0.1)  # of virtual time


class TestLane:
    """The rule by itself."""

    def test_the_fewest_deaths_come_first(self) -> None:
        lane = Lane(8)
        assert lane.arrives("a", 5, True, 0.0) is Place.ASIDE, "nobody knows yet who else waits"
        assert lane.arrives("b", 3, True, 0.0) is Place.ASIDE
        assert lane.arrives("a", 5, False, 0.0) is Place.ASIDE, "b waits with fewer"
        assert lane.arrives("b", 3, False, 0.0) is Place.RUN

    def test_what_is_alone_in_its_queue_runs_at_once(self) -> None:
        assert Lane(8).arrives("a", 9, False, 0.0) is Place.RUN

    def test_a_full_lane_is_not_asked_over_and_over(self) -> None:
        lane = Lane(8)
        lane.arrives("a", 3, False, 0.0)
        assert lane.arrives("b", 3, True, 0.0) is Place.ASIDE
        assert lane.arrives("b", 3, True, 0.1) is Place.FULL

    def test_whom_others_have_taken_holds_up_nobody(self) -> None:
        lane = Lane(8)
        lane.arrives("b", 3, True, 0.0)
        places = [lane.arrives("a", 5, True, 0.0) for _ in range(3)]
        assert places == [Place.ASIDE, Place.ASIDE, Place.RUN]

    def test_the_width_doubles_with_who_ends_or_is_at_work_for_two_seconds(self) -> None:
        lane = Lane(5)
        lane.arrives("a", 3, False, 0.0)
        lane.watch(1.9)
        assert (lane.width, lane.full) == (1, True)
        lane.watch(2.0)
        assert (lane.width, lane.full) == (2, False)
        lane.leaves("a", 2.5)
        assert lane.width == 2, "once for each"
        for id in "bc":
            lane.arrives(id, 3, False, 3.0)
            lane.leaves(id, 3.1)
        assert lane.width == 5, "never more than the places"
