"""Do members of a service keep their shards while the leading coordinator drains, and sagas and jobs run?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.acceptance.job_world import SCALED, JobWorld
from tests.acceptance.system import Client, System, create_all
from tests.fault.world import NO_GIT
from tests.servers.run import Run
from tests.shard_fleet.fleet import Fleet, names
from tests.shard_fleet.intervals import machine_time
from tests.support import holds

SERVICE, COUNT, PROCESSES, EACH = "orders", 64, 3, 2
TIMEOUT_S = 15.0
"""The default."""
SHARED_S = 3 * 2 * TIMEOUT_S
JOBS, APPS = 10, 60


@pytest.fixture
def fleet(server_run: Run, tmp_path: Path) -> Iterator[Fleet]:
    """Members; ended with the test."""
    made = Fleet(server_run, tmp_path, TIMEOUT_S)
    yield made
    made.close()


@pytest.fixture
async def world(system: System) -> AsyncIterator[JobWorld]:
    """Three nodes and workers with jobs that talk, and a worker for sagas."""
    made = JobWorld(system, SCALED, places=JOBS)
    await made.up()
    worker = system.worker(**NO_GIT)
    await worker.wait_for_line("cmd.createGitRepo")
    yield made
    made.close()


@pytest.mark.req("X-2")
@pytest.mark.parametrize("system", ["postgres", "mariadb"], indirect=True)
async def test_members_keep_their_shards_while_the_leader_drains(world: JobWorld, fleet: Fleet) -> None:
    for place in range(PROCESSES):
        process = await fleet.start(world.system.broker_url)
        await fleet.join(process, SERVICE, COUNT, *names("worker", place * EACH, EACH))
    await fleet.shared(SERVICE, COUNT, within=SHARED_S)
    await world.submit(JOBS)
    await world.owned()
    await world.talking()
    since, apps = machine_time(), asyncio.create_task(_apps(world))
    await _drains(world)
    answered = await apps
    await world.talking()
    await holds(lambda: True, during=TIMEOUT_S)
    (await world.system.all_ended(answered, deadline=60)).check_completed(answered)
    (await world.ended()).check(world.submitted)
    assert fleet.ended(since) == [], "members were interrupted"
    assert {len(shards) for shards in fleet.held(SERVICE).values()} == {COUNT // (PROCESSES * EACH), 11}
    fleet.check()


async def _drains(world: JobWorld) -> None:
    """The node that leads is drained by a person, and when others own its jobs, stopped: another one leads."""
    leader = await world.leader()
    node = world.node(leader)
    async with Client(node.url) as client:
        drained = await client.http.post(f"/cluster/nodes/{leader}/drain")
        assert drained.status_code == 200, drained.text
    await world.owned(leader)
    assert (await world.look()).leader == leader, "it has drained while it led"
    node.process.terminate()
    assert await node.process.exited(deadline=60) == 0
    await world.led(but=leader)


async def _apps(world: JobWorld) -> list[str]:
    """Apps that are created all the while, at every node."""
    clients = [Client(node.url) for node in world.nodes.values()]
    try:
        return await create_all(clients, [f"app-{number}" for number in range(APPS)], at_once=3)
    finally:
        for client in clients:
            await client.http.aclose()
