"""Do the coordinators of two nodes serve members over each broker, as nodes run them?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from orchestrix.bootstrap.context import API, COORDINATOR, NodeContext, NodeSignals
from orchestrix.bootstrap.factories import open_broker
from orchestrix.bootstrap.shards import shard_rules, shard_works
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.config.settings import ShardsSettings, load
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.grants import shards_of
from orchestrix.domain.shards.state import Assignment, MemberLeave, MemberRegistration, PlainMode
from orchestrix.lifecycle import Services
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.shards.rabbitmq import MemberTransport
from tests.support import eventually

SERVICE = "orders"
SETTINGS = load({}, shards__window=0.3, shards__heartbeat_timeout=9)


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
async def database(sqlite_store: str) -> AsyncIterator[Database]:
    made = Database(sqlite_store)
    yield made
    await made.close()


def node_of(database: Database, url: str, name: str, *roles: str) -> Services:
    """Those parts of a node."""
    broker = AmqpBroker(url, name=name)
    context = NodeContext(name, SETTINGS, frozenset(roles), database, broker, Catalog([]), NodeSignals())
    return Services(shard_works(context, partial(open_broker, url)))


class Member:
    """One that registers, and takes what comes."""

    def __init__(self, url: str, worker_id: str) -> None:
        self.worker_id = worker_id
        self.broker = AmqpBroker(url, name=worker_id)
        self.transport = MemberTransport(self.broker, worker_id)

    async def join(self) -> None:
        await self.broker.start()
        assert await self.broker.wait_connected(10)
        await self.transport.start()
        asked = MemberRegistration(worker_id=self.worker_id, instance="i-1", shard_count=10, seq=1)
        body = messages.register(SERVICE, asked)
        await eventually(lambda: self.transport.send(messages.REGISTER, body), deadline=10)

    async def next(self) -> Assignment:
        return messages.read_assignment((await self.transport.receive())[-1].body, self.worker_id)

    async def leave(self) -> None:
        left = messages.leave(SERVICE, MemberLeave(self.worker_id, "i-1"))
        assert await self.transport.send(messages.LEAVE, left)


@pytest.mark.req("S1-1", "S1-3", "S1-4", "S1-15", "S1-16")
async def test_members_are_served_by_whichever_node_is_there(database: Database, broker_url: str) -> None:
    nodes = [node_of(database, broker_url, name, COORDINATOR) for name in ("n-1", "n-2")]
    members = [Member(broker_url, name) for name in ("w-1", "w-2")]
    try:
        for node in nodes:
            await node.start()
        for member in members:
            await member.join()
        given = [shards_of((await member.next()).grants).size for member in members]
        assert sum(given) == 10 or given[0] == 10, "in one window, or the second waits for the first one's release"
        await nodes[0].stop()
        await members[0].leave()

        async def has_all() -> bool:
            return shards_of((await members[1].next()).grants).size == 10

        await eventually(has_all, deadline=30)
    finally:
        for node in nodes:
            await node.stop()
        for member in members:
            await member.transport.stop()
            await member.broker.stop()


async def test_a_node_without_that_role_serves_no_member(database: Database) -> None:
    context = NodeContext(
        "n-1",
        SETTINGS,
        frozenset({API}),
        database,
        AmqpBroker("amqp://nowhere", name="n-1"),
        Catalog([]),
        NodeSignals(),
    )
    assert shard_works(context, partial(open_broker, "amqp://nowhere")) == []


def test_the_rules_are_those_of_the_settings() -> None:
    rules = shard_rules(ShardsSettings(window=3, heartbeat_timeout=30, plain="push", allocation="minimal"))
    assert (rules.window_s, rules.heartbeat_timeout_s, rules.plain) == (3, 30, PlainMode.PUSH)
    assert rules.allocation is Allocation.MINIMAL_MOVE
    assert shard_rules(ShardsSettings()).allocation is Allocation.EVEN
