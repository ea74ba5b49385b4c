"""Does every saga end as it should when the broker dies, stops, chokes or throws everybody out?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.fault.load import HealthWatch
from tests.fault.proxy import Proxy
from tests.fault.world import LOSSLESS, NO_GIT, World
from tests.servers.rabbit import RabbitServer
from tests.support import eventually, holds

NODE, WORKER = 8, 2
"""Connections: one that publishes and one that consumes, for sagas, and at a node also for the cluster, for jobs and
for shards."""


@pytest.mark.req("S3-53")
async def test_the_broker_is_killed_in_the_middle_of_the_work(
    world: World, rabbitmq: RabbitServer, scale: Callable[[int, int], int]
) -> None:
    await world.up(nodes=2, workers=2)
    await asyncio.to_thread(rabbitmq.settle)
    async with world.stream("kill") as stream, HealthWatch(world.urls[0]) as health:
        for _ in range(scale(1, 10)):
            await stream.more(20)
            await asyncio.to_thread(rabbitmq.kill9)
            await health.says("Broker")
            await stream.more(20)
            await asyncio.to_thread(rabbitmq.start)
            await health.is_well(within=40)
    assert not stream.refused, "starts are taken while the broker is away"
    assert not stream.unknown
    await world.all_well(stream, deadline=LOSSLESS)


async def test_a_memory_alarm_holds_messages_up_and_loses_none(
    world: World, rabbitmq: RabbitServer, scale: Callable[[int, int], int]
) -> None:
    await world.up()
    async with world.stream("alarm", rate=10) as stream, HealthWatch(world.urls[0]) as health:
        for _ in range(scale(1, 5)):
            await stream.more(10)
            try:
                await asyncio.to_thread(rabbitmq.alarm)
                await health.says("Broker", "takes no messages")
                await stream.more(10 * scale(1, 30))
            finally:
                await asyncio.to_thread(rabbitmq.all_clear)
            await health.is_well(within=30)
    assert not stream.refused
    assert not stream.unknown
    await world.all_well(stream, deadline=LOSSLESS)


async def test_everybody_is_thrown_out_in_bursts(
    world: World, rabbitmq: RabbitServer, scale: Callable[[int, int], int]
) -> None:
    await world.up(nodes=1, workers=2)
    async with world.stream("burst", rate=40) as stream:
        for _ in range(scale(3, 25)):
            await stream.more(10)
            await asyncio.to_thread(rabbitmq.ctl, "close_all_connections", "orchestrix-test")
    await world.all_well(stream, deadline=LOSSLESS)


def _all_came(node: Proxy, worker: Proxy, least: tuple[int, int]) -> bool:
    return node.served >= least[0] and worker.served >= least[1]


async def test_many_reconnects_leave_nothing_behind(
    world: World, rabbitmq: RabbitServer, vhost: str, scale: Callable[[int, int], int]
) -> None:
    await world.up(env=NO_GIT)
    node, worker = world.nodes[0].broker, world.workers[0].broker
    async with world.stream("again", rate=10) as stream:
        for _ in range(scale(5, 50)):
            await eventually(lambda: (node.connections, worker.connections) == (NODE, WORKER), deadline=45)
            await stream.more(3)
            came = (node.served + NODE, worker.served + WORKER)
            node.reset()
            worker.reset()
            await eventually(partial(_all_came, node, worker, came), deadline=45)
    await world.all_well(stream, deadline=LOSSLESS)
    await eventually(lambda: (node.connections, worker.connections) == (NODE, WORKER), deadline=45)
    await holds(lambda: (node.connections, worker.connections) == (NODE, WORKER), during=1)

    async def only_these() -> bool:
        return await _connections(rabbitmq, vhost) == NODE + WORKER

    await eventually(only_these, deadline=20, every=1, message="I11: the broker knows no others")


async def _connections(rabbitmq: RabbitServer, vhost: str) -> int:
    listed = await asyncio.to_thread(rabbitmq.ctl, "list_connections", "vhost")
    return listed.split().count(vhost)
