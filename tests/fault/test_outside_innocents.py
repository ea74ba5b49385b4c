"""Innocents behind a killed worker: what it had in hand is done by the others in a few times its own length."""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.saga.definition import COMPLETED
from tests.fault.outside import all_in, all_kept, begun, parcels_env, start_all
from tests.fault.parcels import PARCEL, SLOW
from tests.fault.world import World
from tests.support import eventually

PLACES, IN_HAND = 40, 34
WARM = 90
"""Instant commands after which the workers take as many at once as they have places."""


async def test_what_a_killed_worker_had_in_hand_is_done_in_four_times_its_length(
    world: World, scale: Callable[[int, int], int]
) -> None:
    work = scale(3, 15)
    env = parcels_env(
        world.system.folder, PARCELS_WORK=str(work), ORCHESTRIX_WORKER__CONCURRENCY=str(PLACES), PARCELS_QUICK="0.01"
    )
    await world.up(nodes=1, workers=1, env=env)
    doomed, url, database = world.workers[0], world.urls[0], world.system.database_url
    await _warm(world, "first")
    slow = [f"{SLOW}-{n}" for n in range(IN_HAND)]
    await start_all(url, PARCEL, slow)
    await eventually(
        lambda: len([name for name in begun(world.system.folder) if name in slow]) == IN_HAND,
        deadline=work,
        message="the worker that is to die has all of them in hand",
    )
    await world.up(nodes=0, workers=1, env=env)
    await _warm(world, "second")
    doomed.process.kill9()
    instant = [f"instant-{n}" for n in range(20)]
    await start_all(url, PARCEL, instant)
    took = await all_in(database, PARCEL, instant, (COMPLETED,), deadline=2 * work)
    doomed.restart()
    await all_in(database, PARCEL, slow, (COMPLETED,), deadline=4 * work - took)
    ledger = await all_kept(database, PARCEL, slow)
    assert {one.state for one in ledger.apps} == {COMPLETED}
    assert all(one.reasons == ["created", "evt.packed"] for one in ledger.apps), "nobody has used up a try"


async def _warm(world: World, word: str) -> None:
    """Lets every worker do some instant ones: it takes more at once only after those that it has done."""
    names = [f"{word}-{n}" for n in range(WARM)]
    await start_all(world.urls[0], PARCEL, names)
    await all_in(world.system.database_url, PARCEL, names, (COMPLETED,), deadline=20)
