"""What can the tests of workers over a real database and a real broker ask for?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.topology import saga_topology
from orchestrix.persistence.engine import Database
from tests.servers import templates

from .world import CATALOG, World


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    """A database with its schema."""
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    yield database
    await database.close()


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    """A broker with the topology of the app saga, and the database."""
    server = EmbeddedBroker()
    await server.start()
    broker = AmqpBroker(server.url, name="test")
    await broker.start()
    assert await broker.wait_connected(5.0)
    await broker.declare(saga_topology(CATALOG))
    world = World(database, server.url, broker)
    yield world
    await world.close()
    await broker.stop()
    await server.stop()
