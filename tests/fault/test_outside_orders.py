"""Orders under kills: five hundred of them end within twice the undisturbed time, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from orchestrix.saga.definition import COMPLETED, FAILED
from tests.fault.outside import all_in, all_kept, made, parcels_env, start_all
from tests.fault.parcels import LATE, ORDER
from tests.fault.world import World
from tests.support import eventually, holds
from tests.taps import Tap

NODES, WORKERS = 2, 3
START = 10.0
"""Seconds on top of the scaled variant: to start a process again takes as long as one of its steps."""


@dataclass(frozen=True)
class Load:
    """How many orders, seconds that their long step takes, places of a worker, and kills."""

    orders: int
    work: int
    places: int
    kills: int
    extra: float

    @property
    def pause(self) -> float:
        """Seconds from one kill to the next: a worker lives a little longer than the long step takes."""
        return self.work * 1.2 / WORKERS + self.extra / 10

    def names(self, word: str) -> tuple[list[str], list[str]]:
        """Their keys, and those of the one in fifty that never ends by itself."""
        late = self.orders // 50
        return [f"{word}-{n}" for n in range(self.orders - late)], [f"{LATE}-{word}-{n}" for n in range(late)]


async def test_orders_end_in_twice_the_undisturbed_time_while_workers_are_killed(
    world: World, scale: Callable[[int, int], int]
) -> None:
    load = Load(scale(100, 500), scale(3, 20), scale(15, 60), scale(4, 12), START * scale(1, 0))
    tap = Tap(world.system.broker_url)
    env = parcels_env(
        world.system.folder,
        PARCELS_WORK=str(load.work),
        PARCELS_TOLD_WITHIN=str(5 * load.work),  # a worker can be killed twice in it
        ORCHESTRIX_WORKER__CONCURRENCY=str(load.places),
    )
    await world.up(nodes=NODES, workers=WORKERS, env=env)
    undisturbed, disturbed = load.names("calm"), load.names("killed")
    most = load.work * (3 + load.orders / (load.places * WORKERS)) + 60
    took = await _done(world, *undisturbed, most)
    killing = asyncio.create_task(_kill(world, load))
    try:
        took_with_kills = await _done(world, *disturbed, 2 * took + load.extra)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    print(f"{load.orders} orders took {took:.1f} s, with kills {took_with_kills:.1f} s")
    names = [name for names in (*undisturbed, *disturbed) for name in names]
    await all_in(world.system.database_url, ORDER, names, (COMPLETED, FAILED), deadline=6 * load.work + 30)
    await _check(world, names, tap)


async def _done(world: World, names: Sequence[str], late: Sequence[str], deadline: float) -> float:
    """Starts all of them; the seconds until all but the late ones have ended."""
    began, everybody = asyncio.get_running_loop().time(), [*late, *names]
    halves = everybody[::2], everybody[1::2]
    await asyncio.gather(*(start_all(url, ORDER, half) for url, half in zip(world.urls, halves, strict=True)))
    await all_in(world.system.database_url, ORDER, names, (COMPLETED, FAILED), deadline=deadline)
    return asyncio.get_running_loop().time() - began


async def _kill(world: World, load: Load) -> None:
    """Kills one worker after another, each of which starts again at once."""
    for worker, _ in zip(cycle(world.workers), range(load.kills), strict=False):
        await holds(lambda: True, during=load.pause)
        await asyncio.to_thread(worker.process.kill9)
        worker.restart()


async def _check(world: World, names: Sequence[str], tap: Tap) -> None:
    ledger = await all_kept(world.system.database_url, ORDER, names)
    for one in ledger.apps:
        wanted = FAILED if one.name.startswith(LATE) else COMPLETED
        assert one.state == wanted, f"{one.name} is {one.state}: {one.reasons}"
    completed = {one.id for one in ledger.apps if one.state == COMPLETED}
    for step in ("reserve", "charge", "ship"):
        _check_made(world.system.folder, step, completed)
    await eventually(lambda: all(worker.alive for worker in world.workers), deadline=5)
    ledger.check_wire(tap.read(), saga=ORDER)


def _check_made(folder: Path, step: str, completed: set[int]) -> None:
    there = made(folder, step)
    assert there == completed, f"I5: {step}: missing {completed - there}, left behind {there - completed}"
