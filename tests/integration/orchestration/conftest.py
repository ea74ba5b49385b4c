"""On which database do the tests of the orchestrator run?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.persistence.engine import Database
from tests.integration.orchestration.rig import Rig
from tests.servers import templates


@pytest.fixture
async def rig(sqlite_url: str) -> AsyncIterator[Rig]:
    """A node that runs, over SQLite and a broker in memory."""
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    made = Rig(database)
    await made.start()
    yield made
    await made.stop()
    await database.close()
