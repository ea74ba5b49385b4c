"""Does no shard have two holders either where half of the members are plain clients over ZeroMQ, which have no lease?

Ten members of the SDK in two processes, and ten clients that follow what they are assigned in two others, share 1,000
shards. A plain client that stands still, or is cut off from all nodes, is beyond what it can promise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.acceptance.system import System
from tests.fault import shard_acts
from tests.fault.shard_acts import story
from tests.fault.shard_world import COUNT, EACH, NAMES, SERVICE, ShardTimes, ShardWorld
from tests.fault.world import World
from tests.processes import Processes
from tests.shard_fleet.fleet import Fleet, MemberProcess, names
from tests.support import eventually, free_port, holds

PLAIN: Final = (1, 3)
"""The places of the processes of plain clients."""


class MixedWorld(ShardWorld):
    """Each node listens for plain clients too, and these are connected to all of them."""

    def __init__(self, world: World, fleet: Fleet, times: ShardTimes) -> None:
        super().__init__(world, fleet, times)
        self.ports = {name: free_port() for name in NAMES}

    def env_of(self, name: str) -> dict[str, str]:
        return {
            **super().env_of(name),
            "ORCHESTRIX_SHARDS__ZMQ": "on",
            "SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1",
            "SHARD_COORDINATOR_BIND_PORT": str(self.ports[name]),
        }

    async def join_all(self, process: MemberProcess, place: int) -> None:
        """Plain clients in half of the processes."""
        workers = names("worker", place * EACH, EACH)
        more = {"endpoints": [f"tcp://127.0.0.1:{port}" for port in self.ports.values()]} if place in PLAIN else {}
        await self.fleet.join(process, SERVICE, COUNT, *workers, **more)


@pytest.fixture
def world(processes: Processes, tmp_path: Path, postgres_url: str, rabbitmq_url: str) -> Iterator[World]:
    """A world on the shared servers, of which none breaks here."""
    made = World(System(processes, tmp_path, postgres_url, rabbitmq_url))
    made.system.upgrade()
    yield made
    made.close()


@pytest.fixture
async def mixed(fleet: Fleet, world: World, shard_times: ShardTimes) -> AsyncIterator[MixedWorld]:
    """All members take part."""
    made = MixedWorld(world, fleet, shard_times)
    await made.up()
    yield made
    fleet.close()
    made.close()


async def all_nodes_are_killed(shards: ShardWorld) -> None:
    """For longer than a lease: members of the SDK stop all they do by themselves, plain clients do not know."""
    sdk = {worker for place in (0, 2) for worker in shards.fleet.processes[place].members}

    def held() -> dict[str, set[int]]:
        return {worker: some for worker, some in shards.fleet.held(SERVICE).items() if worker in sdk and some}

    for node in shards.world.nodes:
        node.process.kill9()
    await eventually(lambda: not held(), deadline=3 * shards.times.lease)
    await holds(lambda: not held(), during=shards.times.check)
    await shards.restart(*shards.world.nodes)


@pytest.mark.req("X-2")
async def test_half_plain_clients_and_half_members_of_the_sdk(mixed: MixedWorld, short: bool) -> None:
    acts = [shard_acts.nodes_are_killed, shard_acts.members_die_and_stand_still, shard_acts.a_node_stands_still]
    if not short:
        acts += [shard_acts.one_joins_and_leaves, shard_acts.links_are_cut, shard_acts.count_changes]
        acts += [shard_acts.messages_are_late]
    await story(mixed, [*acts, all_nodes_are_killed])
