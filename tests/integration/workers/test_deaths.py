"""Do real workers that die on a real broker cost their neighbours little, and is who ends them found out?"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.broker.devserver import DevServer
from app.broker.rabbitmq import AmqpBroker
from app.broker.topology import saga_topology
from app.persistence.engine import Database
from sagas.engine.messages import Command

from .world import CATALOG, World

WORKER = """
import asyncio, os, sys
from app.broker.rabbitmq import AmqpBroker
from app.config import Settings
from app.persistence.engine import Database
from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.catalog import Catalog
from workers import HandlerTable, Worker

async def work(context, command):
    if context.app_name.startswith("poison"):
        os._exit(9)
    return {"repoUrl": "file:///x"}

async def main(database_url, broker_url):
    broker = AmqpBroker(broker_url, name="mortal")
    await broker.start()
    table = HandlerTable([("cmd.createGitRepo", work)])
    await Worker(broker, Database(database_url), Catalog([APP_PROVISIONING]), table, Settings()).start()
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
POISON, GOOD = 1, 12


@pytest.fixture(params=["strict", "lenient", "rabbitmq"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    """A broker that counts in its own way."""
    server = None
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq_url")
    else:
        server = DevServer(profile=request.param)
        await server.start()
        url = server.url
    broker = AmqpBroker(url, name="test")
    await broker.start()
    assert await broker.wait_up(5.0)
    await broker.declare(saga_topology(CATALOG))
    world = World(database, url, broker)
    yield world
    await world.close()
    await broker.stop()
    if server is not None:
        await server.stop()


class Mortal:
    """A worker that is started again whenever it dies."""

    def __init__(self, *arguments: str) -> None:
        self.deaths = 0
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def live(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, *self._arguments)
                assert await self._process.wait() == 9
                self.deaths += 1
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


async def test_who_ends_its_workers_is_found_out_and_the_others_are_done(world: World, sqlite_url: str) -> None:
    commands: list[Command] = []
    for n in range(POISON + GOOD):
        _, command = await world.app(f"poison-{n}" if n == 3 else f"good-{n}")
        commands.append(command)
    await world.send(*commands)
    mortal = Mortal(sqlite_url, world.url)
    living = asyncio.create_task(mortal.live())
    try:
        async with asyncio.timeout(300):
            first = await world.events(GOOD)
            assert mortal.deaths <= 3 * POISON
            last = await world.events(POISON)
    finally:
        living.cancel()
        await asyncio.wait([living])
    told: Counter[Any] = Counter(event["causationId"] for event in [*first, *last])
    assert told == Counter(command.id for command in commands)
    assert {event["error"]["type"] for event in last} == {"WorkerCrashed"}
