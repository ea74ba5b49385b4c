"""On which brokers and databases do the tests of jobs run?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.persistence.engine import Database
from tests.integration.jobs.cluster_nodes import Cluster
from tests.integration.jobs.plant import Plant
from tests.servers import templates


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def broker_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of an empty broker, of each kind."""
    if request.param == "rabbitmq":
        yield str(request.getfixturevalue("rabbitmq_url"))
        return
    server = EmbeddedBroker()
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def plant(broker_url: str, sqlite_url: str) -> AsyncIterator[Plant]:
    """A broker and a database without nodes."""
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    plant = Plant(database, broker_url)
    yield plant
    await plant.close()
    await database.close()


@pytest.fixture
async def cluster(broker_url: str, sqlite_url: str) -> AsyncIterator[Cluster]:
    """A database with an executor group, whose nodes a test starts."""
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    made = Cluster(database, sqlite_url, broker_url)
    await made.group()
    yield made
    await made.close()
    await database.close()
