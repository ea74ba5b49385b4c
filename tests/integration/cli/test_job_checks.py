"""Does `doctor` tell of a queue's workers what the database knows of them?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.cli.doctor.jobs import facts
from orchestrix.domain.leases import Fence
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Database
from tests.conformance.store.test_jobs import dispatched
from tests.integration.jobs.rows import joined, leading
from tests.servers import templates


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    templates.upgraded(sqlite_url)
    opened = Database(sqlite_url)
    await joined(opened, "node-1")
    yield opened
    await opened.close()


async def test_workers_that_are_full_or_away_or_unknown_are_told_apart(database: Database) -> None:
    for queue in ("full", "empty"):
        await dispatched(database, queue=queue)
    await database.run(lambda tx: nodes.record_worker_heartbeats(tx, [WorkerHeartbeatRow("w-1", ["full"], 4)]))
    unled = await facts(database, 30.0, 1000)
    assert {cause for cause, _ in unled.causes.values()} == {"no leader elected (worker heartbeats are not recorded)"}
    await leading(database, Fence(1, "node-1"))
    known = await facts(database, 30.0, 1000)
    assert known.not_started == {"full": 1, "empty": 1}
    cause, fix = known.causes["full"]
    assert "queue full: its only worker (last heartbeat 0 s ago) is busy" in cause
    assert fix == "orchestrix worker --job-queue full"
    assert known.causes["empty"][0] == "no worker serves queue empty"
