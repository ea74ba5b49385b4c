"""Do real workers that die on a real broker cost their neighbours little, and is who ends them found out?"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.topology import saga_topology
from orchestrix.persistence.engine import Database

from .world import CATALOG, World

WORKER = """
import asyncio, os, sys
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.config.settings import Settings
from orchestrix.persistence.engine import Database
from sagas.app_provisioning import APP_PROVISIONING
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker

async def work(context, command):
    os.write(begun, context.app_name.encode() + b"\\n")
    if context.app_name.startswith("poison"):
        os._exit(9)
    return {"repoUrl": "file:///x"}

async def main(database_url, broker_url):
    broker = AmqpBroker(broker_url, name="mortal")
    await broker.start()
    table = HandlerTable([("cmd.createGitRepo", work)])
    await Worker(broker, Database(database_url), Catalog([APP_PROVISIONING]), table, Settings()).start()
    await asyncio.Event().wait()

begun = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
asyncio.run(main(*sys.argv[1:3]))
"""
POISON, GOOD = "poison-3", [f"good-{n}" for n in range(12)]


@pytest.fixture(params=["strict", "lenient", "rabbitmq"])
async def world(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[World]:
    """A broker that counts in its own way."""
    server = None
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq_url")
    else:
        server = EmbeddedBroker(profile=request.param)
        await server.start()
        url = server.url
    broker = AmqpBroker(url, name="test")
    await broker.start()
    assert await broker.wait_connected(5.0)
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


async def test_who_ends_its_workers_is_found_out_and_the_others_are_done(
    world: World, sqlite_url: str, tmp_path: Path
) -> None:
    """What was in hand beside it may be done, and told of, once more after each death: nobody moves these sagas on."""
    names = {}
    for name in (*GOOD[:3], POISON, *GOOD[3:]):
        _, command = await world.app(name)
        names[command.id] = name
        await world.send(command)
    told: Counter[str] = Counter()
    mortal = Mortal(sqlite_url, world.url, str(tmp_path / "begun"))
    living = asyncio.create_task(mortal.live())
    try:
        async with asyncio.timeout(300):
            while len(told) < len(names):
                (event,) = await world.events(1)
                name = names[event["causationId"]]
                told[name] += 1
                assert event.get("error", {}).get("type") == ("WorkerCrashed" if name == POISON else None), event
    finally:
        living.cancel()
        await asyncio.wait([living])
    begun = Counter((tmp_path / "begun").read_text().split())
    assert told[POISON] == 1
    assert mortal.deaths == begun[POISON]
    assert max(begun[name] for name in GOOD) <= 4, "three deaths make a suspect, which is tried beside few others"
    assert max(told[name] for name in GOOD) <= 4
