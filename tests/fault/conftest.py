"""Which servers may a fault test break?

One RabbitMQ, one PostgreSQL and one MariaDB for all of them, because a start costs seconds; each test gets a virtual
host and a database of its own, and leaves the servers running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.acceptance.system import System
from tests.fault.executors import REAL, SCALED, Executors, RegistryWorld, Times
from tests.fault.world import World
from tests.processes import Processes
from tests.servers import lookup, shared, sql
from tests.servers.base import Server
from tests.servers.maria import MariaServer
from tests.servers.names import Pool
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run


def _server(kind: lookup.Kind, run: Run) -> Iterator[Server]:
    server = lookup.private_server(kind, run)
    try:
        server.start()
        yield server
    finally:
        server.discard()


@pytest.fixture(scope="package")
def _rabbitmq(server_run: Run) -> Iterator[RabbitServer]:
    yield from cast(Iterator[RabbitServer], _server(lookup.RABBITMQ, server_run))


@pytest.fixture(scope="package")
def _postgres(server_run: Run) -> Iterator[PostgresServer]:
    yield from cast(Iterator[PostgresServer], _server(lookup.POSTGRESQL, server_run))


@pytest.fixture(scope="package")
def _mariadb(server_run: Run) -> Iterator[MariaServer]:
    yield from cast(Iterator[MariaServer], _server(lookup.MARIADB, server_run))


@pytest.fixture(scope="package")
def _breakable_vhosts(_rabbitmq: RabbitServer) -> Pool:
    return Pool(_rabbitmq.change_vhosts, batch=5)


@pytest.fixture(scope="package")
def _postgres_names(_postgres: PostgresServer) -> Pool:
    return Pool(lambda add, drop: sql.change_databases(_postgres.url(), add, drop), batch=5)


@pytest.fixture(scope="package")
def _mariadb_names(_mariadb: MariaServer) -> Pool:
    return Pool(lambda add, drop: sql.change_databases(_mariadb.url(), add, drop), batch=2)


def _running(server: Server) -> Iterator[Server]:
    yield server
    if server.running:
        server.resume()
    server.start()


@pytest.fixture
def rabbitmq(_rabbitmq: RabbitServer) -> Iterator[RabbitServer]:
    """The broker that the test may break; started again after it."""
    yield from cast(Iterator[RabbitServer], _running(_rabbitmq))


@pytest.fixture
def postgres(_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The PostgreSQL that the test may break."""
    yield from cast(Iterator[PostgresServer], _running(_postgres))


@pytest.fixture
def mariadb(_mariadb: MariaServer) -> Iterator[MariaServer]:
    """The MariaDB that the test may break."""
    yield from cast(Iterator[MariaServer], _running(_mariadb))


@pytest.fixture
def vhost(rabbitmq: RabbitServer, _breakable_vhosts: Pool) -> Iterator[str]:
    """The name of an empty virtual host on it."""
    with shared.lent(_breakable_vhosts) as name:
        yield name


@pytest.fixture
def worlds(
    processes: Processes, tmp_path: Path, rabbitmq: RabbitServer, vhost: str
) -> Iterator[Callable[[str], World]]:
    """A world on the database at the given address, with the schema in place and no process yet."""
    made: list[World] = []

    def make(database_url: str) -> World:
        world = World(System(processes, tmp_path, database_url, rabbitmq.url(vhost)))
        made.append(world)
        world.system.upgrade()
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(worlds: Callable[[str], World], postgres: PostgresServer, _postgres_names: Pool) -> Iterator[World]:
    """A world on PostgreSQL."""
    with shared.lent(_postgres_names) as name:
        yield worlds(postgres.url(name))


@pytest.fixture
def maria_world(worlds: Callable[[str], World], mariadb: MariaServer, _mariadb_names: Pool) -> Iterator[World]:
    """A world on MariaDB."""
    with shared.lent(_mariadb_names) as name:
        yield worlds(mariadb.url(name))


@pytest.fixture
def times(scale: Callable[[int, int], int]) -> Times:
    """The default times in a soak."""
    return (SCALED, REAL)[scale(0, 1)]


@pytest.fixture
def executors(server_run: Run, tmp_path: Path, times: Times) -> Iterator[Executors]:
    """Starts executors; ends them with the test and shows their logs if it failed."""
    made = Executors(server_run, tmp_path, times)
    yield made
    made.close()


@pytest.fixture
async def registry(
    processes: Processes, tmp_path: Path, postgres_url: str, rabbitmq_url: str, executors: Executors, times: Times
) -> AsyncIterator[RegistryWorld]:
    """Two nodes on the shared servers, of which none runs yet: links and processes break here, and no server."""
    world = World(System(processes, tmp_path, postgres_url, rabbitmq_url))
    world.system.upgrade()
    made = RegistryWorld(world, executors, times)
    yield made
    await made.close()
    world.close()
