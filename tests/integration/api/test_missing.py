"""What is at `/apps` where nobody has put a resource?"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrix.persistence.engine import Database

from .answers import BODY, problem
from .test_resources import ORDERS
from .world import World


@pytest.fixture
async def database(upgraded: Path, tmp_path: Path) -> AsyncIterator[Database]:
    """Empty but for the schema."""
    database = Database(f"sqlite+aiosqlite:///{shutil.copy(upgraded, tmp_path / 'test.db')}")
    yield database
    await database.close()


@pytest.mark.parametrize("path", ["/apps", "/apps/1", "/apps/1/history", "/apps/1/retry"])
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "PUT"])
async def test_it_says_how_to_get_one(database: Database, method: str, path: str) -> None:
    world = World(database, ())
    answer = await world.client.request(method, path, json=BODY)
    detail = problem(answer, 404, "not_found")["detail"]
    assert "no resource is configured" in detail
    assert "`orchestrix init` makes a project to start from" in detail.replace(", which", "")
    await world.client.aclose()


async def test_others_are_named(database: Database) -> None:
    world = World(database, (ORDERS,))
    detail = problem(await world.client.get("/apps"), 404, "not_found")["detail"]
    assert "only /orders" in detail
    assert (await world.client.get("/orders")).json()["items"] == []
    await world.client.aclose()


async def test_apps_are_then_sagas_like_others(database: Database) -> None:
    world = World(database, ())
    answer = await world.client.post("/sagas/app", json={"key": "billing", "createdBy": "ada"})
    assert (answer.status_code, answer.headers["location"]) == (200, "/sagas/app/1")
    assert "appName" not in answer.json()
    document = world.app.openapi()
    assert not [path for path in document["paths"] if path.startswith("/apps")]
    assert "use_apps" not in str(document["paths"]["/sagas/{name}"])
    await world.client.aclose()
