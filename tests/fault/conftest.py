"""Which servers may a fault test break?

One RabbitMQ, one PostgreSQL and one MariaDB for all of them, because a start costs seconds; each test gets a virtual
host and a database of its own, and leaves the servers running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.acceptance.system import System
from tests.fault.crashing_jobs import Ground
from tests.fault.executors import REAL, SCALED, Executors, RegistryWorld, Times
from tests.fault.shard_world import ShardTimes, ShardWorld
from tests.fault.world import World
from tests.processes import Processes
from tests.servers import lookup, shared, sql, templates
from tests.servers.base import Server
from tests.servers.maria import MariaServer
from tests.servers.names import Pool
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer
from tests.servers.run import Run
from tests.servers.shared import Broker, Database
from tests.shard_fleet.fleet import Fleet


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


@pytest.fixture(scope="module")
def grounds(
    rabbitmq_server: Broker,
    postgres_server: Database,
    mariadb_server: Database,
    _vhosts: Pool,
    _postgres_databases: Pool,
    _mariadb_databases: Pool,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Ground]]:
    """Where all cases play: at the same time on each database."""
    file = tmp_path_factory.mktemp("sqlite") / "test.db"
    with shared.lent(_postgres_databases) as postgres, shared.lent(_mariadb_databases) as mariadb:
        urls = {
            "postgresql": postgres_server.url(postgres),
            "mariadb": mariadb_server.url(mariadb),
            "sqlite": f"sqlite+aiosqlite:///{file}",
        }
        with shared.lent(_vhosts) as a, shared.lent(_vhosts) as b, shared.lent(_vhosts) as c:
            vhosts = zip(urls, (a, b, c), strict=True)
            yield [Ground(name, templates.upgraded(urls[name]), rabbitmq_server.url(vhost)) for name, vhost in vhosts]


@pytest.fixture
def short(scale: Callable[[int, int], int]) -> bool:
    """Whether this is no soak."""
    return scale(1, 0) == 1


@pytest.fixture
def shard_times(short: bool) -> ShardTimes:
    """The default times in a soak."""
    return ShardTimes.scaled() if short else ShardTimes()


@pytest.fixture
def fleet(server_run: Run, tmp_path: Path, shard_times: ShardTimes) -> Iterator[Fleet]:
    """Starts members of services; ends them with the test and shows their logs if it failed."""
    made = Fleet(server_run, tmp_path, shard_times.timeout)
    yield made
    made.close()


@pytest.fixture
async def start(fleet: Fleet, shard_times: ShardTimes) -> AsyncIterator[Callable[[World], Awaitable[ShardWorld]]]:
    """Starts nodes and members in a world."""
    made: list[ShardWorld] = []

    async def up(world: World) -> ShardWorld:
        made.append(ShardWorld(world, fleet, shard_times))
        await made[-1].up()
        return made[-1]

    yield up
    fleet.close()
    for one in made:
        one.close()
