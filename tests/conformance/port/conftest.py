"""Which brokers does the port's suite run on?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from app.broker.port import Binding, Exchange, Outgoing, Queue, Topology
from app.broker.rabbitmq import AmqpBroker
from app.clock import uuid7
from tests.conformance.port.proxy import Proxy


@dataclass
class Rig:
    """A broker's address behind a proxy whose connections a test can cut, freeze and refuse."""

    proxy: Proxy
    url: str
    direct_url: str
    brokers: list[AmqpBroker]

    def make(self, name: str = "test", **options: int) -> AmqpBroker:
        """A broker port that is stopped with the test."""
        broker = AmqpBroker(self.url, name=name, **options)
        self.brokers.append(broker)
        return broker

    async def up(self, name: str = "test", **options: int) -> AmqpBroker:
        """One that is connected."""
        broker = self.make(name, **options)
        await broker.start()
        assert await broker.wait_up(10), broker.trouble
        return broker


@pytest.fixture(params=[pytest.param("rabbitmq", marks=pytest.mark.servers)])
def direct_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def rig(direct_url: str) -> AsyncIterator[Rig]:
    proxy = Proxy(direct_url)
    await proxy.start()
    rig = Rig(proxy, proxy.url, direct_url, [])
    yield rig
    for broker in rig.brokers:
        async with asyncio.timeout(6):
            await broker.stop()
    await proxy.stop()


@pytest.fixture
async def broker(rig: Rig) -> AmqpBroker:
    """A connected broker port."""
    return await rig.up()


WORK = Topology(
    exchanges=(Exchange("work", "topic"),),
    queues=(Queue("jobs", {"x-queue-type": "quorum"}),),
    bindings=(Binding("jobs", "work", "jobs"),),
)


def message(body: bytes = b"{}", *, key: str = "jobs", exchange: str = "work", id: str = "") -> Outgoing:
    """A message for the queue `jobs`, with a fresh id unless one is given."""
    return Outgoing(exchange=exchange, routing_key=key, body=body, message_id=id or uuid7())
