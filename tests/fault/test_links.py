"""Does the rest of a system go on while links of some processes are dead or slow, and do these come back?"""

from __future__ import annotations

from collections.abc import Callable

from tests.fault.load import HealthWatch
from tests.fault.proxy import Way
from tests.fault.world import LOSSLESS, NO_GIT, World
from tests.support import eventually


async def test_dead_links_of_some_do_not_stop_the_others(world: World, scale: Callable[[int, int], int]) -> None:
    """The third node and the third worker have good links; everybody else's are dead in a way of his own."""
    await world.up(nodes=3, workers=3, env={**NO_GIT, "ORCHESTRIX_WORKER__PREFETCH": "10"})
    deaf, lost, well = world.nodes
    ways = [Way.DOWN, Way.UP, Way.BOTH][: scale(1, 3)]
    async with HealthWatch(deaf.url) as of_deaf, HealthWatch(lost.url) as of_lost, HealthWatch(well.url) as of_well:
        for n, way in enumerate(ways):
            async with world.stream(f"before-{n}") as before:
                await before.more(15)
                deaf.broker.black_hole(way)
                lost.database.black_hole(way)
                world.workers[0].broker.half_open()
                world.workers[1].database.black_hole(way)
            async with world.stream(f"during-{n}", urls=[well.url], rate=10) as during:
                await of_deaf.says("Broker")
                await of_lost.says("Database")
                await during.more(30)
                await _go_on(world, during.answered)
            assert of_well.ready, of_well.reasons
            for member in world.members:
                member.heal()
            await of_deaf.is_well(within=40)
            await of_lost.is_well(within=40)
            await world.all_well(before, during, deadline=LOSSLESS)


async def _go_on(world: World, names: list[str]) -> None:
    """Most of these complete: a few commands and events wait in the hands of those who cannot work."""

    async def most() -> bool:
        return await world.completed(names) >= len(names) // 2

    await eventually(most, deadline=40, every=0.25, message="the others go on")


async def test_slow_links_with_jitter(world: World, scale: Callable[[int, int], int]) -> None:
    # The usual claim: within one of 2 s no message gets there and its confirm back over the slowest of these links.
    # Over links of 0.2 s a worker needs some two seconds for a command, and does ten at a time.
    await world.up(workers=scale(1, 2), env={**NO_GIT, "ORCHESTRIX_ORCHESTRATOR__CLAIM": "15"})
    for member in world.members:
        member.database.slow(0.01 * scale(3, 20), 0.01 * scale(2, 15))
        member.broker.slow(0.01 * scale(3, 20), 0.01 * scale(2, 15))
    async with world.stream("slow", rate=5) as stream, HealthWatch(world.urls[0]) as health:
        await stream.more(scale(15, 200))
        assert health.ready, health.reasons
    assert not stream.refused
    assert not stream.unknown
    await world.all_well(stream, deadline=LOSSLESS)
