"""Is a copy of the template what the migrations would have made?"""

from __future__ import annotations

import pytest
from sqlalchemy import select, text
from sqlalchemy.engine import make_url

from orchestrix.persistence import tables
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.persistence.schema import migrator
from tests.conformance.store.build import started, stored
from tests.servers import sql
from tests.servers.templates import upgraded

URLS = ["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb"))]


@pytest.mark.parametrize("kind", URLS)
async def test_it_has_the_schema_and_an_installation_of_its_own(kind: str, request: pytest.FixtureRequest) -> None:
    url = upgraded(str(request.getfixturevalue(f"{kind}_url")))
    assert await migrator.check(url) == []
    assert await installation(url) != await installation(upgraded(beside(url)))


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("kind", URLS)
async def test_nothing_is_left_in_an_emptied_one(
    kind: str, cut_off: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a table has grown, it is cut off."""
    monkeypatch.setattr(sql, "_MOST_BYTES", -1 if cut_off else 250_000)
    url = upgraded(str(request.getfixturevalue(f"{kind}_url")))
    database = Database(url)
    try:
        (first,) = await stored(database, APPS, [started("one", "app")])
        before = await installation(url)
        assert {"apps", "installation"} <= await filled(database)
        sql.emptied(url)
        assert await filled(database) == {"installation"}
        (again,) = await stored(database, APPS, [started("one", "app")])
    finally:
        await database.close()
    assert await installation(url) == before
    assert (again.id == first.id) == (kind != "mariadb")


async def filled(database: Database) -> set[str]:
    """The tables that have a row."""
    async with database.read() as connection:
        return {
            table.name
            for table in tables.metadata.sorted_tables
            if (await connection.execute(select(table).limit(1))).first()
        }


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
