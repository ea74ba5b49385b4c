"""Which brokers does the port's suite run on?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from tests.conformance.port.rig import WORK, Proxy, Rig


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def broker_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The address of an empty broker, of each kind."""
    if request.param == "rabbitmq":
        yield str(request.getfixturevalue("rabbitmq_url"))
        return
    server = EmbeddedBroker()
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def rig(broker_url: str) -> AsyncIterator[Rig]:
    """The broker behind a proxy, and ports to it that are stopped within the 5 s that the port promises."""
    proxy = Proxy(broker_url)
    await proxy.start()
    rig = Rig(proxy)
    yield rig
    for broker in rig.brokers:
        began = time.monotonic()
        await broker.stop()
        assert time.monotonic() - began < 5
    await proxy.stop()


@pytest.fixture
async def broker(rig: Rig) -> AmqpBroker:
    """A connected port with the topology `WORK` declared."""
    broker = await rig.up()
    await broker.declare(WORK)
    return broker


@pytest.fixture
async def embedded() -> AsyncIterator[EmbeddedBroker]:
    """The embedded broker itself, for what cannot be done to a shared one."""
    server = EmbeddedBroker()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def broker_of_embedded(embedded: EmbeddedBroker) -> AsyncIterator[AmqpBroker]:
    """A connected port to `embedded`, with the topology `WORK` declared."""
    broker = AmqpBroker(embedded.url, name="test")
    await broker.start()
    async with asyncio.timeout(5):
        assert await broker.wait_connected()
    await broker.declare(WORK)
    yield broker
    await broker.stop()
