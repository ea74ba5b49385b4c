"""A backlog on one slow place: waiting in the queue uses up nobody's time, so nobody fails."""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.saga.definition import COMPLETED, FAILED
from tests.fault.outside import all_in, all_kept, begun, parcels_env, start_all
from tests.fault.parcels import NOTE, PARCEL, SLOW
from tests.fault.world import World
from tests.support import eventually


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


async def test_an_instant_step_behind_slow_ones_of_another_queue_keeps_its_time(world: World) -> None:
    """All places of the only worker are taken for three times as long as the instant step may take."""
    work, limit, places = 6, 2, 4
    env = parcels_env(
        world.system.folder,
        PARCELS_WORK=str(work),
        PARCELS_LIMIT=str(limit),
        ORCHESTRIX_WORKER__CONCURRENCY=str(places),
    )
    await world.up(nodes=1, workers=1, env=env)
    warm = [f"warm-{n}" for n in range(3 * places)]
    await start_all(world.urls[0], NOTE, warm)
    await all_in(world.system.database_url, NOTE, warm, (COMPLETED,), deadline=20)
    slow, instant = [f"{SLOW}-{n}" for n in range(places)], [f"instant-{n}" for n in range(20)]
    await start_all(world.urls[0], PARCEL, slow)
    await eventually(lambda: len(begun(world.system.folder)) == places, deadline=20, message="every place is taken")
    await start_all(world.urls[0], NOTE, instant)
    await all_in(world.system.database_url, NOTE, instant, (COMPLETED, FAILED), deadline=5 * work)
    ledger = await all_kept(world.system.database_url, NOTE, instant)
    late = [(one.name, one.reasons) for one in ledger.apps if one.reasons != ["created", "evt.noted"]]
    assert not late, f"{len(late)} of {len(instant)} used up a try, such as {late[:3]}"
