"""Does the reaper do its work as a duty of the leader, without anybody who calls it?"""

from __future__ import annotations

from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.leases import Fence
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.registry.reaper import ExecutorReaper
from tests.integration.jobs.rows import leading
from tests.integration.registry.build import ONE, SHOP, THREE, TWO, group_of, listed, record, removals
from tests.support import eventually

FENCE = Fence(1, "leader")
ALIVE = Heartbeat("billing", THREE)


async def test_as_a_duty_it_removes_and_corrects_lists(database: Database) -> None:
    await leading(database, FENCE)
    settings = RegistrySettings(beat=1.0, dead=2.0, sweep=2.0, probe=2.0, call_timeout=2.0)
    reaper = ExecutorReaper(database, settings, FENCE)
    await group_of(database)
    await record(database, Heartbeat("other", TWO))
    await reaper.start()
    try:
        await record(database, Heartbeat(SHOP, ONE))

        async def is_listed() -> bool:
            return (await listed(database)).addresses == (ONE,)

        await eventually(is_listed, deadline=5, message="the list is corrected")

        async def removed() -> bool:
            await record(database, ALIVE)
            return {one.address for one in await removals(database)} == {ONE, TWO}

        await eventually(removed, deadline=20, every=0.2, message="the silent are removed")
    finally:
        await reaper.stop()
    assert (await listed(database)).addresses == ()
