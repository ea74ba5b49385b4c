"""A backlog on one slow place: waiting in the queue uses up nobody's time, so nobody fails."""

from __future__ import annotations

from collections.abc import Callable

from sagas.engine.definition import COMPLETED, FAILED
from tests.fault.outside import all_in, all_kept, parcels_env, start_all
from tests.fault.parcels import PARCEL
from tests.fault.world import World


async def test_nobody_fails_who_waits_longer_than_a_step_may_take(
    world: World, scale: Callable[[int, int], int]
) -> None:
    """One in hand, and all others wait: the last one a dozen times as long as its step may take, and more."""
    count, work, limit = scale(60, 1000), 0.2, scale(1, 10)
    env = parcels_env(
        world.system.folder,
        PARCELS_QUICK=str(work),
        PARCELS_LIMIT=str(limit),
        ORCHESTRIX_WORKER__CONCURRENCY="1",
    )
    await world.up(nodes=1, workers=1, env=env)
    names = [f"waits-{n}" for n in range(count)]
    await start_all(world.urls[0], PARCEL, names)
    await all_in(world.system.database_url, PARCEL, names, (COMPLETED, FAILED), deadline=30 + 3 * work * count)
    ledger = await all_kept(world.system.database_url, PARCEL, names)
    failed = [(one.name, one.reasons) for one in ledger.apps if one.state == FAILED]
    assert not failed, f"{len(failed)} of {count} failed, such as {failed[:3]}"
    tried = [(one.name, one.reasons) for one in ledger.apps if len(one.reasons) > 2]
    assert not tried, f"{len(tried)} of {count} used up a try, such as {tried[:3]}"
