"""On which databases do the tests of the registry run, and how does time pass there?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from orchestrix import clock
from orchestrix.persistence.engine import Database
from tests.fakes.time import Shifted

SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb")]


@pytest.fixture
def time() -> Iterator[Shifted]:
    """The clock of this process, and of the databases as far as it knows them."""
    shifted = Shifted()
    with clock.use(shifted):
        yield shifted


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest) -> str:
    """A database with all tables."""
    return str(request.getfixturevalue(f"{request.param}_store"))


@pytest.fixture(params=SERVERS)
def served_url(request: pytest.FixtureRequest) -> str:
    """The same on the servers, where two transactions can be under way at once."""
    return str(request.getfixturevalue(f"{request.param}_store"))


@pytest.fixture
async def database(time: Shifted, url: str) -> AsyncIterator[Database]:
    """The database as a node sees it."""
    async for made in _opened(url):
        yield made


@pytest.fixture
async def peer(time: Shifted, url: str) -> AsyncIterator[Database]:
    """The same as another node sees it."""
    async for made in _opened(url):
        yield made


async def _opened(url: str) -> AsyncIterator[Database]:
    made = Database(url)
    await made.ping()
    yield made
    await made.close()
