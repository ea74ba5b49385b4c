"""Are the exchanges and queues of the app saga on the broker, with the very names, arguments and bindings promised?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractQueue
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.topology import saga_topology
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.port.rig import Rig
from tests.support import eventually

COMMANDS, EVENTS, DEAD, UNROUTED = (
    "orchestrator.commands",
    "orchestrator.events",
    "orchestrator.dead",
    "orchestrator.unrouted",
)
TO_UNROUTED = {"alternate-exchange": UNROUTED}
EXCHANGES = [
    pytest.param(COMMANDS, "topic", {}, marks=pytest.mark.req("S3-9")),
    pytest.param(EVENTS, "topic", TO_UNROUTED, marks=pytest.mark.req("S3-10")),
    pytest.param(DEAD, "direct", TO_UNROUTED),
    pytest.param(UNROUTED, "fanout", {}),
]
HOME = {
    "cmd.createGitRepo": COMMANDS,
    "cmd.registerApp": COMMANDS,
    "evt.gitRepoCreated": EVENTS,
    "evt.appRegistered": EVENTS,
    "evt.stepFailed": EVENTS,
}
QUEUES = [
    pytest.param("cmd.createGitRepo", marks=pytest.mark.req("S3-11")),
    pytest.param("cmd.registerApp", marks=pytest.mark.req("S3-12")),
    pytest.param("evt.gitRepoCreated", marks=pytest.mark.req("S3-13")),
    pytest.param("evt.appRegistered", marks=pytest.mark.req("S3-14")),
    pytest.param("evt.stepFailed"),
]


@pytest.fixture
async def channel(rig: Rig) -> AsyncIterator[AbstractChannel]:
    """A stranger's channel to a broker on which the product has declared what the app saga needs."""
    product = AmqpBroker(rig.url, name="product", topology=saga_topology(Catalog([APP_PROVISIONING])))
    rig.brokers.append(product)
    await product.start()
    assert await product.wait_connected(10), product.problem
    async with await aio_pika.connect(rig.url) as stranger:
        yield await stranger.channel(on_return_raises=True)


def arguments(queue: str) -> dict[str, Any]:
    """What the queue has been declared with, for ever."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "orchestrator.dead",
        "x-dead-letter-routing-key": queue,
    }


async def count(channel: AbstractChannel, name: str) -> int:
    queue = await channel.declare_queue(name, passive=True)
    return queue.declaration_result.message_count or 0


async def waiting(channel: AbstractChannel) -> dict[str, int]:
    """The queues that hold messages, with their numbers."""
    names = [*HOME, *(f"{name}.dead" for name in HOME), UNROUTED]
    return {name: found for name in names if (found := await count(channel, name))}


async def expect(channel: AbstractChannel, found: dict[str, int]) -> None:
    async def so() -> bool:
        return await waiting(channel) == found

    await eventually(so, deadline=5, message=f"the messages are in {found}")


async def exchange(channel: AbstractChannel, name: str) -> AbstractExchange:
    return await channel.get_exchange(name)


@pytest.mark.parametrize(("name", "kind", "more"), EXCHANGES)
async def test_an_exchange_is_as_promised(channel: AbstractChannel, name: str, kind: str, more: dict[str, Any]) -> None:
    await channel.declare_exchange(name, kind, passive=True)
    await channel.declare_exchange(name, kind, durable=True, arguments=more)  # the same again is no error
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_exchange(name, kind, durable=True, arguments={"alternate-exchange": "another"})


@pytest.mark.parametrize("name", QUEUES)
async def test_a_queue_is_as_promised_and_has_its_own_messages_alone(channel: AbstractChannel, name: str) -> None:
    queue = await channel.declare_queue(name, passive=True)
    await channel.declare_queue(name, durable=True, arguments=arguments(name))
    await (await exchange(channel, HOME[name])).publish(aio_pika.Message(b"{}"), name)
    await expect(channel, {name: 1})
    await _reject(queue)
    await expect(channel, {f"{name}.dead": 1})
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_queue(name, durable=True, arguments={**arguments(name), "x-max-length": 10})


async def _reject(queue: AbstractQueue) -> None:
    message = await queue.get()
    assert message is not None
    await message.reject()


@pytest.mark.parametrize("queue", [*(f"{name}.dead" for name in HOME), UNROUTED])
async def test_what_nobody_consumes_is_kept_in_plain_quorum_queues(channel: AbstractChannel, queue: str) -> None:
    await channel.declare_queue(queue, passive=True)
    await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_queue(queue, durable=True, arguments=arguments(queue))


@pytest.mark.parametrize("name", [EVENTS, DEAD])
async def test_what_is_misspelt_is_kept_as_unrouted(channel: AbstractChannel, name: str) -> None:
    await (await exchange(channel, name)).publish(aio_pika.Message(b"{}"), "evt.gitRepoCreate")
    await expect(channel, {UNROUTED: 1})


async def test_a_command_without_a_queue_comes_back_to_who_sent_it(channel: AbstractChannel) -> None:
    with pytest.raises(DeliveryError):
        await (await exchange(channel, COMMANDS)).publish(aio_pika.Message(b"{}"), "cmd.createGitRepo.more")
    assert await waiting(channel) == {}
