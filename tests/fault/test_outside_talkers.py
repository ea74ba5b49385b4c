"""Jobs that talk without pause: over a database that is a little away none of them is lost, and every line is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrix.domain.jobs import SUCCEEDED
from tests.acceptance.system import Client
from tests.fault.outside import job_in, parcels_env, rows, submit
from tests.fault.world import World
from tests.support import eventually

AWAY = 0.004
"""Seconds that a word to the database needs, and its answer."""
JOBS = 3
PATIENCE = {"ORCHESTRIX_JOBS__BEAT": "1", "ORCHESTRIX_JOBS__SILENT": "3"}
"""A worker is missed after 3 s instead of 30, so that half a minute shows what takes five."""


async def test_jobs_that_log_without_pause_are_not_lost(world: World, scale: Callable[[int, int], int]) -> None:
    seconds = scale(25, 600)
    env = parcels_env(world.system.folder, **(PATIENCE if scale(1, 0) else {}))
    await world.up(nodes=1, workers=1, env=env)
    world.nodes[0].database.slow(AWAY)
    async with Client(world.urls[0]) as client:
        ids = [await submit(client, "talk", payload={"seconds": seconds}) for _ in range(JOBS)]
        ended = await asyncio.gather(*(job_in(client, id, SUCCEEDED, deadline=60 + 2 * seconds) for id in ids))
        for job in ended:
            assert job["attempt"] == 1, job
            await _all_lines(world, job["id"], job["result"]["lines"])


async def _all_lines(world: World, job_id: str, said: int) -> None:
    async def complete() -> bool:
        found = await rows(
            world.system.database_url, "SELECT message FROM job_logs WHERE job_id = :id ORDER BY seq", id=job_id
        )
        assert len(found) == said
        assert [row[0] for row in found] == [str(n) for n in range(said)]
        return True

    await eventually(complete, deadline=60, every=0.5, message=f"all {said} lines of {job_id} are kept in order")
