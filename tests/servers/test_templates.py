"""Is a copy of the template what the migrations would have made?"""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import migrator
from tests.servers import sql
from tests.servers.templates import upgraded

URLS = ["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb"))]


@pytest.mark.parametrize("kind", URLS)
async def test_it_has_the_schema_and_an_installation_of_its_own(kind: str, request: pytest.FixtureRequest) -> None:
    url = upgraded(str(request.getfixturevalue(f"{kind}_url")))
    assert await migrator.check(url) == []
    assert await installation(url) != await installation(upgraded(beside(url)))


def beside(url: str) -> str:
    """Another database on the same server."""
    name = f"{make_url(url).database}_2"
    if not url.startswith("sqlite"):
        sql.change_databases(url, [name], [])
    return sql.with_database(url, name)


async def installation(url: str) -> str:
    database = Database(url)
    try:
        async with database.read() as connection:
            rows = (await connection.execute(text("SELECT installation FROM installation"))).scalars().all()
    finally:
        await database.close()
    (one,) = rows
    return str(one)
