"""Do the others go on while a node and a worker are frozen, and do these do no harm when they wake?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.fault.load import HealthWatch, Stream
from tests.fault.proxy import AtCommit
from tests.fault.world import LOSSLESS, World
from tests.support import eventually, holds

# Little may be in the hands of a process that does not answer, so that the test sees the others go on.
SMALL = {
    "ORCHESTRIX_WORKER__CONCURRENCY": "2",
    "ORCHESTRIX_WORKER__PREFETCH": "4",
    "ORCHESTRIX_ORCHESTRATOR__BATCH": "5",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def any_world(request: pytest.FixtureRequest) -> World:
    """A world on each database whose server can end the transaction of a client that has fallen silent."""
    world = request.getfixturevalue("world" if request.param == "postgresql" else "maria_world")
    assert isinstance(world, World)
    return world


async def test_a_frozen_node_and_a_frozen_worker(any_world: World, scale: Callable[[int, int], int]) -> None:
    world, loop = any_world, asyncio.get_running_loop()
    await world.up(nodes=2, workers=2, env=SMALL)
    frozen = [world.nodes[0].process, world.workers[0].process]
    during = world.stream("during", rate=6, urls=[world.urls[1]])
    async with world.stream("before", rate=20) as before:
        await before.more(20)
        for process in frozen:
            process.pause()
        before.hush()
        try:
            await _peers_go_on(world, during, loop.time() + scale(6, 60))
        finally:
            for process in frozen:
                process.resume()
    assert not during.refused
    await world.all_well(before, during, deadline=LOSSLESS)


async def _peers_go_on(world: World, during: Stream, until: float) -> None:
    async with during, HealthWatch(world.urls[1]) as peer:
        await during.more(20)
        await eventually(lambda: _completed(world, during.answered, 10), deadline=20, every=0.25)
        await holds(lambda: True, during=max(0.0, until - asyncio.get_running_loop().time()))
        assert peer.ready, peer.reasons


async def test_a_node_that_stalls_before_its_commit_holds_nobody_up(any_world: World) -> None:
    world = any_world
    await world.up(nodes=2, workers=1, env=SMALL)
    stalled = world.nodes[0]
    async with world.stream("stalled", rate=15) as stream:
        await stream.more(10)
        stalled.database.at_commit(AtCommit.HELD, times=2)
        await eventually(lambda: stalled.database.commits_met == 2, deadline=20)
        await stream.more(10)
    # Not healed: the database itself has to end the transactions that wait for their COMMIT.
    await world.all_well(stream, deadline=LOSSLESS)


async def _completed(world: World, names: list[str], least: int) -> bool:
    return await world.completed(names) >= least
