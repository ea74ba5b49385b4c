"""How does a process come to a crash point of calls to executors and of their reports, and how do others go on?"""

from __future__ import annotations

import asyncio

import httpx

from tests.fault.crashing import At, died
from tests.fault.crashing_jobs import JobRig
from tests.processes import Process
from tests.support import free_port

GROUP = "shop"


async def caller_dies(rig: JobRig, at: At) -> None:
    """The only node, while it calls an executor or takes its reports; another one takes its place."""
    world = Cluster(rig)
    first = await world.start(0, **at.env)
    await world.ready()
    await rig.wish_of_group(GROUP)
    await died(first, at)
    await world.start(1)


async def reporter_dies(rig: JobRig, at: At) -> None:
    """A node that owns no job, while it takes the reports for another one's."""
    world = Cluster(rig)
    first, _ = await asyncio.gather(world.start(0, "api", **at.env), world.start(1))
    await world.ready()
    await rig.wish_of_group(GROUP)
    await died(first, at)


class Cluster:
    """Two places for nodes, which executors report to in that order."""

    def __init__(self, rig: JobRig) -> None:
        self.rig = rig
        self.ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]

    async def start(self, place: int, roles: str = "api,orchestrator,coordinator", **env: str) -> Process:
        """A node that is ready."""
        urls = ",".join(self.urls)
        more = {"ORCHESTRIX_REGISTRY__ALLOW": "127.0.0.0/8", "ORCHESTRIX_HTTP__PUBLIC_URL": urls, **env}
        self.url = self.urls[place]
        arguments = ("serve", "--port", str(self.ports[place]), "--roles", roles)
        node = self.rig.processes.spawn(*arguments, env=self.rig.env(**more))
        await self.rig.ready(self.url)
        return node

    async def ready(self, group: str = GROUP, count: int = 1) -> None:
        """There is a group, and so many executors in it."""
        async with httpx.AsyncClient(trust_env=False) as http:
            made = await http.put(f"{self.url}/registry/groups/{group}", json={"addressType": "AUTO"})
            assert made.status_code == 200, made.text
        await self.rig.executors_of(group, self.urls, count)
