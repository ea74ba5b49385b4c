"""What does every test of the store get, on each of the three databases?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.schema import migrator
from tests.conformance.store.build import PAIRS
from tests.servers import shared, sql
from tests.servers.names import Pool
from tests.servers.shared import Database as Server

SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in ("postgresql", "mariadb")]
ALL = ["sqlite", *SERVERS]
UNLIKE = [
    pytest.param(name, marks=pytest.mark.servers)
    for name in ("mariadb_latin1", "mariadb_general_ci", "postgresql_unusual")
]
"""Databases whose own defaults are none of ours."""


def upgraded(url: str) -> str:
    """`url`, whose database has all tables from now on."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(migrator.upgrade(url))).result()
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables, to be copied."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    upgraded(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def mariadb_latin1_tables(mariadb_server: Server, _mariadb_databases: Pool) -> Iterator[str]:
    """The same in a database that keeps text as latin1 where nobody says otherwise."""
    with shared.lent(_mariadb_databases) as name:
        url = mariadb_server.url(name)
        sql.run_sql(url, f"ALTER DATABASE `{name}` CHARACTER SET latin1")
        yield upgraded(url)


@pytest.fixture(scope="session")
def mariadb_general_ci_tables(mariadb_server: Server, _mariadb_databases: Pool) -> Iterator[str]:
    """The same in a database to which 'x' is 'X' where nobody says otherwise."""
    with shared.lent(_mariadb_databases) as name:
        url = mariadb_server.url(name)
        sql.run_sql(url, f"ALTER DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        yield upgraded(url)


UNUSUAL = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "statement_timeout": "501",
    "lock_timeout": "501",
    "client_encoding": "LATIN1",
}
"""What a database or a role may be set to, and no statement of ours may notice."""


@pytest.fixture(scope="session")
def postgresql_unusual_tables(postgres_server: Server, _postgres_databases: Pool) -> Iterator[str]:
    """The same in a database with other settings than any of ours."""
    with shared.lent(_postgres_databases) as name:
        url = postgres_server.url(name)
        settings = [f"ALTER DATABASE \"{name}\" SET {what} = '{value}'" for what, value in UNUSUAL.items()]
        sql.run_sql(url, *settings)
        yield upgraded(url)


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "store.db")
        return f"sqlite+aiosqlite:///{tmp_path / 'store.db'}"
    return sql.emptied(str(request.getfixturevalue(f"{request.param}_tables")))


@pytest.fixture(params=ALL)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with empty tables."""
    return _url(request, tmp_path)


@pytest.fixture(params=SERVERS)
def served_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same on the databases that are servers."""
    return _url(request, tmp_path)


@pytest.fixture(params=UNLIKE)
def unlike_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same on servers where nothing is as it usually is."""
    return _url(request, tmp_path)


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    """The store as one process sees it."""
    async for database in _open(store_url):
        yield database


@pytest.fixture
async def peer(store_url: str) -> AsyncIterator[Database]:
    """The same store as another process sees it."""
    async for database in _open(store_url):
        yield database


@pytest.fixture
async def served(served_url: str) -> AsyncIterator[Database]:
    """`database` on the databases that are servers."""
    async for database in _open(served_url):
        yield database


@pytest.fixture
async def served_peer(served_url: str) -> AsyncIterator[Database]:
    """`peer` on the databases that are servers."""
    async for database in _open(served_url):
        yield database


async def _open(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture(params=sorted(PAIRS))
def of(request: pytest.FixtureRequest) -> tuple[SagaTables, str]:
    """A pair of tables and a saga that lives there."""
    return PAIRS[request.param]
