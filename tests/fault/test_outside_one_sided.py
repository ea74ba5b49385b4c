"""A cut of one side alone: our links are reset while the broker keeps its ends open; a cancel comes through soon."""

from __future__ import annotations

from collections.abc import Callable

from orchestrix.domain.jobs import CANCELLED, RUNNING
from tests.acceptance.system import Client
from tests.fault.outside import job_in, job_of, parcels_env, submit
from tests.fault.world import World
from tests.support import eventually

REACHED_WITHIN = 15.0
"""Seconds after the links are back until a cancel has come through: thrice what the broker may take to miss us."""
SILENCE = 3.0
"""Seconds after which whoever asks is told what a job waits for."""


async def test_a_cancel_comes_through_soon_after_a_one_sided_cut(
    world: World, scale: Callable[[int, int], int]
) -> None:
    await world.up(env=parcels_env(world.system.folder))
    async with Client(world.urls[0]) as client:
        for _ in range(scale(1, 5)):
            job_id = await submit(client, "wait")
            await job_in(client, job_id, RUNNING, deadline=30)
            await _owned(client, job_id)
            for member in world.members:
                member.broker.reset_client()
            answer = await client.http.post(f"/jobs/{job_id}/cancel", json={"reason": "enough"})
            assert answer.status_code == 200, answer.text
            await job_in(client, job_id, CANCELLED, deadline=REACHED_WITHIN)
            for member in world.members:
                member.broker.lose()
            await world.system.ready(world.urls[0], deadline=60)


async def test_what_waits_for_a_one_sided_cut_is_told(world: World) -> None:
    """While the broker still gives a job's queues to links that are no more, its page says so, or the node does."""
    await world.up(env=parcels_env(world.system.folder))
    async with Client(world.urls[0]) as client:
        job_id = await submit(client, "wait")
        await job_in(client, job_id, RUNNING, deadline=30)
        await _owned(client, job_id)
        world.nodes[0].broker.reset_client()
        answer = await client.http.post(f"/jobs/{job_id}/cancel", json={"reason": "enough"})
        assert answer.status_code == 200, answer.text
        await eventually(lambda: _over_or_told(client, job_id), deadline=SILENCE, message="it is over, or it is told")


async def _owned(client: Client, job_id: str) -> None:
    async def owned() -> bool:
        return bool((await job_of(client, job_id))["ownership"] == "OWNED")

    await eventually(owned, deadline=20, every=0.1, message="a node owns the job")


async def _over_or_told(client: Client, job_id: str) -> bool:
    job = await job_of(client, job_id)
    health = await client.http.get("/health")
    return job["state"] == CANCELLED or job["waitsFor"] is not None or health.status_code == 503
