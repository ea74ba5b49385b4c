"""Does a node notice, and say, that nobody leads?"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from sqlalchemy import delete

from orchestrix.cluster.leader_monitor import LeaderMonitor
from orchestrix.domain.leases import Candidacy, LeaderMode
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database
from orchestrix.persistence.tables import leases as table
from tests.support import eventually

LEASE = 0.2


async def led(database: Database, lease: float) -> None:
    """Somebody leads for so many seconds."""
    await database.run(lambda tx: leases.campaign(tx, Candidacy("n-1", LeaderMode.BROKER, by_token=True), lease))


async def test_nobody_for_two_leases_is_trouble_until_somebody_leads(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await led(database, LEASE)
    vacancy = LeaderMonitor(database, LEASE)
    assert vacancy.problem() is None
    await vacancy.start()
    try:
        await eventually(lambda: "the cluster has had no leader" in (vacancy.problem() or ""), deadline=10)
        await eventually(lambda: "the cluster has had no leader" in caplog.text, deadline=10)
        stop = asyncio.Event()

        async def lead() -> None:
            while not stop.is_set():
                await led(database, LEASE)
                await asyncio.wait([asyncio.ensure_future(stop.wait())], timeout=LEASE / 4)

        leading = asyncio.create_task(lead())
        await eventually(lambda: vacancy.problem() is None, deadline=10)
        stop.set()
        await leading
    finally:
        await vacancy.stop()
    assert caplog.text.count("the cluster has had no leader") == 1


async def test_an_emptied_table_is_a_vacancy(database: Database) -> None:
    await led(database, 300.0)
    await database.run(lambda tx: tx.execute(delete(table)))
    vacancy = LeaderMonitor(database, LEASE)
    await vacancy.start()
    try:
        await eventually(lambda: vacancy.problem() is not None, deadline=10)
    finally:
        await vacancy.stop()


async def test_a_database_that_cannot_be_asked_is_no_vacancy(database: Database) -> None:
    vacancy = LeaderMonitor(database, LEASE)
    await vacancy.start()
    try:
        await eventually(lambda: vacancy.problem() is not None, deadline=10)
        Path(str(database.url.database)).unlink()
        await eventually(lambda: vacancy.problem() is None, deadline=10)
    finally:
        await vacancy.stop()
