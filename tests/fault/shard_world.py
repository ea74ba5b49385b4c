"""How does a fault test run coordinators and a fleet of members, disturb them, and judge what was held?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.fault.executors import CLUSTER_S
from tests.fault.proxy import Proxy
from tests.fault.world import NO_GIT, Member, World
from tests.shard_fleet.fleet import Fleet, MemberProcess, names
from tests.shard_fleet.intervals import FOREVER, Interval
from tests.support import eventually, holds

SERVICE: Final = "orders"
OTHER: Final = "invoices"
"""A second service, which sees nothing of what happens to the first."""
COUNT: Final = 1000
OTHER_COUNT: Final = 7
NODES, PROCESSES, EACH = 3, 4, 5
NAMES: Final = ("ada", "bob", "cyd")
SLACK: Final = 3
"""How many times what is promised a test waits."""


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """The settings of the coordinators, in seconds."""

    window: float = 2.0
    timeout: float = 15.0
    check: float = 5.0

    @classmethod
    def scaled(cls) -> ShardTimes:
        """Shorter ones than the defaults; on a busy machine a heartbeat and its answer may take three seconds."""
        return cls(window=0.5, timeout=9.0, check=1.0)

    @property
    def lease(self) -> float:
        """For how long a member works without an answer."""
        return self.timeout * 2 / 3

    @property
    def again(self) -> float:
        """Within so many seconds of the end of a fault each shard is held again: twice the time-out, with slack."""
        return SLACK * 2 * self.timeout

    @property
    def env(self) -> Mapping[str, str]:
        """The settings of a node."""
        return {
            "ORCHESTRIX_SHARDS__WINDOW": f"{self.window:g}",
            "ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT": f"{self.timeout:g}",
            "ORCHESTRIX_SHARDS__CHECK": f"{self.check:g}",
            "ORCHESTRIX_SHARDS__ALLOCATION": "minimal",
            **NO_GIT,
            **CLUSTER_S,
        }


class FileWorld(World):
    """On a database that is a file, to which there are no links that could break."""

    def _links(self, env: Mapping[str, str]) -> tuple[Proxy, Proxy, dict[str, str]]:
        url = self.system.broker_url
        unused, broker = Proxy.to(url), Proxy.to(url)
        return unused, broker, {**env, "ORCHESTRIX_BROKER_URL": broker.through(url)}


class ShardWorld:
    """Three nodes, and twenty members of a service in four processes, each of these over links of its own."""

    def __init__(self, world: World, fleet: Fleet, times: ShardTimes) -> None:
        self.world, self.fleet, self.times = world, fleet, times
        self.links: list[Proxy] = []

    async def up(self) -> None:
        """Starts everything; each shard is held when this returns."""
        await asyncio.gather(
            *(self.world.up(workers=0, env=self.env_of(name)) for name in NAMES),
            *(self._start_process() for _ in range(PROCESSES + 1)),
        )
        for place in range(PROCESSES):
            await self.join_all(self.fleet.processes[place], place)
        await self.fleet.join(self.fleet.processes[PROCESSES], OTHER, OTHER_COUNT, "clerk-1", "clerk-2")
        await self.settle("all have joined")
        await self.fleet.shared(OTHER, OTHER_COUNT, within=self.times.again)

    def env_of(self, name: str) -> dict[str, str]:
        """The settings of the node of that name."""
        return {**self.times.env, "ORCHESTRIX_NODE_ID": name}

    async def _start_process(self) -> None:
        self.links.append(link := Proxy.to(self.world.system.broker_url))
        await self.fleet.start(link.through(self.world.system.broker_url))

    async def join_all(self, process: MemberProcess, place: int) -> None:
        """The members of the process with that place join."""
        await self.fleet.join(process, SERVICE, COUNT, *names("worker", place * EACH, EACH))

    async def replace(self, place: int) -> None:
        """Starts a process in the place of one that is dead."""
        broker_url = self.world.system.broker_url
        process = await self.fleet.start(self.links[place].through(broker_url))
        self.fleet.processes[place], self.fleet.processes[-1] = process, self.fleet.processes[place]
        await self.join_all(process, place)

    def close(self) -> None:
        """Ends the links; the processes are ended before."""
        for link in self.links:
            link.close()

    # What is asked of it.

    async def settle(self, after: str, count: int = COUNT) -> None:
        """Waits until each shard is held, by all members that are awake, and that none ever had two holders."""
        took = await self.fleet.shared(SERVICE, count, within=self.times.again)
        self.fleet.check()
        print(f"{time.strftime('%H:%M:%S')}  {took:5.2f} s  {after}")

    def ended(self, since: float, *but: str) -> list[Interval]:
        """What members of the service other than these have let go of since then."""
        return [one for one in self.fleet.ended(since) if one.holder.worker not in but and one.shard[0] == SERVICE]

    def of_other_service(self) -> list[Interval]:
        """What the members of the other service ever let go of."""
        return [one for one in self.fleet.intervals() if one.shard[0] == OTHER and one.end < FOREVER]

    async def leading(self) -> Member:
        """The node that leads the cluster."""

        async def leads() -> str | None:
            rows = await self.world.sql("SELECT holder FROM leases WHERE name = 'orchestrix:coordinator:leader'")
            name = str(rows[0][0]).rpartition("-")[0] if rows else ""
            return name if name in NAMES and self.world.nodes[NAMES.index(name)].alive else None

        name = await eventually(leads, deadline=20, message="a node leads")
        return self.world.nodes[NAMES.index(str(name))]

    async def restart(self, *nodes: Member) -> None:
        """Starts nodes again that have ended."""
        for node in nodes:
            node.restart()
        await self.world.ready()

    async def passes(self, seconds: float) -> None:
        """So long nothing else happens."""
        await holds(lambda: True, during=seconds)
