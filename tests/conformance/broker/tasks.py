"""How does a test leave aio-pika without a trace, also after its connection was cut?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractConnection

from tests.conformance.broker.brokers import PATIENCE

Connect = Callable[[str], Awaitable[AbstractConnection]]


@asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """Opens plain aio-pika connections; closes all at the end and waits for their callbacks, which run as tasks."""
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:

        async def connect(url: str) -> AbstractConnection:
            connection = await aio_pika.connect(url)
            stack.push_async_callback(connection.close)
            return connection

        yield connect
    others = asyncio.all_tasks() - before
    if others:
        await asyncio.wait(others, timeout=PATIENCE)
