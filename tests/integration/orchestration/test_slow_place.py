"""Does nobody fail who only waits, however few places there are for the work?"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrix import COMPLETED, NothingToUndo, RetryPolicy, Saga, Step, clock
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.messages import Command
from orchestrix.saga.messages import command as read_command
from tests.integration.orchestration.house import House
from tests.servers import templates
from tests.support import eventually

WORK = 0.1
"""Seconds that each command takes."""
MANY = 60
LEAVES_NOTHING = NothingToUndo("leaves nothing")
BAKE = Step(
    "bake",
    "BAKING",
    "cmd.bake",
    "evt.baked",
    COMPLETED,
    LEAVES_NOTHING,
    timedelta(seconds=1),
    RetryPolicy(attempts=2, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=50)),
)
BREAD = Saga("bread", steps=(BAKE,))


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    """Over SQLite and each kind of broker."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    templates.upgraded(url)
    database, server = Database(url), EmbeddedBroker()
    broker = str(request.getfixturevalue("rabbitmq_url")) if request.param == "rabbitmq" else ""
    if not broker:
        await server.start()
    made = House(database, broker or server.url, Catalog([BREAD]))
    await made.open({})
    await made.serve()
    yield made
    await made.close()
    await database.close()
    if not broker:
        await server.stop()
    shutil.rmtree(tmp_path, ignore_errors=True)


class Place:
    """One worker with one place, that takes one command at a time, and says when it has begun with one that is late."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.begun: list[str] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        consumer = await self._house.hand.consume(["cmd.bake"], prefetch=1)
        while True:
            for delivery in await consumer.receive(1):
                command = read_command(delivery.body)
                self.begun.append(command.id)
                await self._house.send("evt.stepStarted", _said(command, beganMsAgo=0))
                await asyncio.sleep(WORK)
                await self._house.send("evt.baked", _said(command))
                await consumer.acknowledge([delivery])


def _said(command: Command, **more: object) -> bytes:
    told = {"appId": command.app_id, "saga": "bread", "correlationId": command.correlation_id}
    return json.dumps({**told, "causationId": command.id, **more}).encode()


async def test_sixty_at_once_on_one_slow_place(house: House) -> None:
    """The last one waits six times as long as its work may take."""
    begun = clock.monotonic()
    sagas = await asyncio.gather(*(house.begin(f"loaf-{number}", saga="bread") for number in range(MANY)))
    place = Place(house)
    work = asyncio.create_task(place.run())
    reasons: set[str | None] = set()
    lost: list[str] = []

    async def all_done() -> bool:
        rows = [await house.now(one) for one in sagas]
        reasons.update(row.wake_reason for row in rows)
        lost.extend(row.key for row in rows if row.state == "FAILED" or row.attempt > 1)
        return bool(lost) or all(row.state == COMPLETED for row in rows)

    try:
        await eventually(all_done, deadline=60, every=0.2)
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    assert not lost
    assert clock.monotonic() - begun > 3 * BAKE.timeout.total_seconds(), "they had to wait"
    assert "backlog" in reasons
    assert len(place.begun) == len(set(place.begun)) == MANY, "nothing was done twice"
