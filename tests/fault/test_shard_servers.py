"""Is each shard held again, and none by two, after a restart of the database or of the broker?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tests.fault.shard_acts import server_restarts, story
from tests.fault.shard_world import ShardWorld
from tests.fault.world import World
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer

Start = Callable[[World], Awaitable[ShardWorld]]


async def test_postgresql_and_rabbitmq_restart(
    start: Start, world: World, postgres: PostgresServer, rabbitmq: RabbitServer
) -> None:
    shards = await start(world)
    await story(shards, [partial(server_restarts, postgres), partial(server_restarts, rabbitmq)])


async def test_mariadb_restarts(start: Start, maria_world: World, mariadb: MariaServer, short: bool) -> None:
    shards = await start(maria_world)
    await story(shards, [partial(server_restarts, mariadb)] * (1 if short else 3))
