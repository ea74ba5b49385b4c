"""How does a test get an API to ask?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrix.persistence.engine import Database
from orchestrix.persistence.schema import migrator

from .world import World


@pytest.fixture(scope="session")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with nothing but the schema; tests take copies of it, for migrations take their time."""
    path = tmp_path_factory.mktemp("api") / "empty.db"
    asyncio.run(migrator.upgrade(f"sqlite+aiosqlite:///{path}"))
    return path


@pytest.fixture
async def world(upgraded: Path, tmp_path: Path) -> AsyncIterator[World]:
    """The API over an empty SQLite database."""
    copy = shutil.copy(upgraded, tmp_path / "test.db")
    database = Database(f"sqlite+aiosqlite:///{copy}")
    world = World(database)
    await world.registry.registrar.start()
    yield world
    await world.registry.registrar.stop()
    await world.client.aclose()
    await database.close()
