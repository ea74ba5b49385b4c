"""How does a test get an embedded broker and a client, and leave both without a trace?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.embedded.connection import HeartbeatTimer

Connect = Callable[[str], Awaitable[AbstractConnection]]


@pytest.fixture(autouse=True)
def _quiet_client() -> None:
    """aiormq logs each lost connection with its traceback; here they are lost on purpose."""
    logging.getLogger("aiormq.connection").setLevel(logging.CRITICAL)


@pytest.fixture
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of heartbeat passes in 0.2 s."""

    def shortened(interval: float, beat: Callable[[], None], dead: Callable[[], None]) -> HeartbeatTimer:
        return HeartbeatTimer(interval / 5, beat, dead)

    monkeypatch.setattr("orchestrix.broker.embedded.connection.HeartbeatTimer", shortened)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedBroker]:
    one = EmbeddedBroker()
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens aio-pika connections; closes them at the end and waits for their callbacks, which run as tasks."""
    opened: list[AbstractConnection] = []
    before = asyncio.all_tasks()

    async def open_one(url: str) -> AbstractConnection:
        opened.append(await aio_pika.connect(url))
        return opened[-1]

    yield open_one
    for connection in opened:
        with suppress(AMQPError):
            await connection.close()
    others = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    if others:
        await asyncio.wait(others, timeout=5)
