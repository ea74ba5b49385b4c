"""Which brokers and databases do the tests of the cluster run on?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.persistence.engine import Database


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
async def database(sqlite_store: str) -> AsyncIterator[Database]:
    """A database with all tables, in a file."""
    made = Database(sqlite_store)
    yield made
    await made.close()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb")])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """The same on each of the servers."""
    made = Database(str(request.getfixturevalue(f"{request.param}_store")))
    yield made
    await made.close()
