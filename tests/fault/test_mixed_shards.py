"""Does no shard have two holders either where half of the members are plain clients over ZeroMQ, which have no lease?

Ten members of the SDK in two processes, and ten clients that follow what they are assigned in two others, share 1,000
shards. A plain client that stands still, or is cut off from all nodes, is beyond what it can promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.fault.shard_world import COUNT, EACH, NAMES, SCALED, SERVICE, ShardWorld
from tests.fault.test_shards import (
    Act,
    _a_node_stands_still,
    _count_changes,
    _links_are_cut,
    _members_die_and_stand_still,
    _messages_are_late,
    _nodes_are_killed,
    _one_joins_and_leaves,
    _story,
)
from tests.fault.world import World
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run
from tests.shard_fleet.fleet import Fleet, MemberProcess, names
from tests.support import eventually, free_port, holds

PLAIN: Final = (1, 3)
"""The places of the processes of plain clients."""


class MixedWorld(ShardWorld):
    """Each node listens for plain clients too, and these are connected to all of them."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        super().__init__(world, fleet, SCALED)
        self.ports = {name: free_port() for name in NAMES}

    def env_of(self, name: str) -> dict[str, str]:
        where = {"SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1"}
        return {
            **super().env_of(name),
            **where,
            "SHARD_COORDINATOR_BIND_PORT": str(self.ports[name]),
            "ORCHESTRIX_SHARDS__ZMQ": "on",
        }

    async def join_all(self, process: MemberProcess, place: int) -> None:
        """Plain clients in half of the processes."""
        workers = names("worker", place * EACH, EACH)
        more = {"endpoints": [f"tcp://127.0.0.1:{port}" for port in self.ports.values()]} if place in PLAIN else {}
        await self.fleet.join(process, SERVICE, COUNT, *workers, **more)


@pytest.fixture
async def mixed(server_run: Run, tmp_path: Path, world: World) -> AsyncIterator[MixedWorld]:
    """All members take part."""
    made = MixedWorld(world, Fleet(server_run, tmp_path, SCALED.timeout))
    await made.up()
    yield made
    made.fleet.close()
    made.close()


async def _all_nodes_are_killed(shards: ShardWorld) -> None:
    """For longer than a lease: members of the SDK stop all they do by themselves, plain clients do not know."""
    sdk = {worker for place in (0, 2) for worker in shards.fleet.processes[place].members}

    def held() -> dict[str, set[int]]:
        return {worker: some for worker, some in shards.fleet.held(SERVICE).items() if worker in sdk and some}

    for node in shards.world.nodes:
        node.process.kill9()
    await eventually(lambda: not held(), deadline=3 * shards.times.lease)
    await holds(lambda: not held(), during=shards.times.check)
    await shards.restart(*shards.world.nodes)
    await shards.settle("all nodes are there again")


async def _servers_restart(shards: ShardWorld, *servers: RabbitServer | PostgresServer) -> None:
    for one in servers:
        await asyncio.to_thread(one.restart)
        await shards.world.ready()
        await shards.settle("a server restarts")


@pytest.mark.req("X-2")
async def test_half_plain_clients_and_half_members_of_the_sdk(
    mixed: MixedWorld, rabbitmq: RabbitServer, postgres: PostgresServer, scale: Callable[[int, int], int]
) -> None:
    acts: list[Act] = [_nodes_are_killed, _members_die_and_stand_still, _a_node_stands_still]
    if scale(0, 1):
        acts += [_one_joins_and_leaves, _links_are_cut, _count_changes, _messages_are_late]
    await _story(mixed, [*acts, _all_nodes_are_killed])
    await _servers_restart(mixed, rabbitmq, postgres)
