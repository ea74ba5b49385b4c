"""What happens while the broker takes no messages, or takes none of this size?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import LinkState, Outcome
from orchestrix.broker.probe import accepts_messages
from tests.conformance.port.rig import WORK, fill, message, outcomes, take
from tests.servers.rabbit import RabbitServer
from tests.support import eventually

CONFIRMED, REFUSED, UNKNOWN = Outcome.CONFIRMED, Outcome.REFUSED, Outcome.UNKNOWN
LIMIT = 16 * 2**20


class Alarming:
    """A broker with an alarm that a test may raise, and RabbitMQ 4's limit on the size of a message."""

    def __init__(self, url: str, raise_alarm: Callable[[], object], end_alarm: Callable[[], object]) -> None:
        self.url = url
        self._raise, self._end = raise_alarm, end_alarm

    async def alarm(self) -> None:
        await asyncio.to_thread(self._raise)

    async def all_clear(self) -> None:
        await asyncio.to_thread(self._end)


class _Embedded(Alarming):
    async def alarm(self) -> None:
        self._raise()

    async def all_clear(self) -> None:
        self._end()


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def alarming(request: pytest.FixtureRequest) -> AsyncIterator[Alarming]:
    if request.param == "embedded":
        server = EmbeddedBroker()
        await server.start()
        yield _Embedded(server.url, server.block_publishers, server.unblock_publishers)
        await server.stop()
        return
    rabbit: RabbitServer = request.getfixturevalue("private_rabbitmq")()
    rabbit.eval(f"application:set_env(rabbit, max_message_size, {LIMIT})")
    yield Alarming(rabbit.url(), rabbit.alarm, rabbit.all_clear)


async def test_alarms_and_large_messages(alarming: Alarming) -> None:
    broker, quiet = (AmqpBroker(alarming.url, name=name) for name in ("test", "quiet"))
    for one in (broker, quiet):
        await one.start()
        assert await one.wait_connected(10)
    await broker.declare(WORK)
    try:
        await a_message_that_is_too_large_is_refused_and_its_neighbours_are_not_blamed(broker)
        await while_the_broker_is_blocked_nothing_is_sent_and_consuming_goes_on(broker, alarming)
        await whoever_is_quiet_finds_out_by_a_message_to_nobody(quiet, alarming)
    finally:
        await broker.stop()
        await quiet.stop()


async def a_message_that_is_too_large_is_refused_and_its_neighbours_are_not_blamed(broker: AmqpBroker) -> None:
    large = message(b"x" * (LIMIT + 1))
    (alone,) = await broker.publish([large])
    assert (alone.outcome, alone.channel_closed) == (REFUSED, True)
    assert "larger than" in alone.detail
    published = await broker.publish([message(), large, message()])
    assert published[1].outcome is REFUSED
    assert {published[0].outcome, published[2].outcome} <= {CONFIRMED, UNKNOWN}
    assert outcomes(await broker.publish([message(b"y" * LIMIT)])) == [CONFIRMED]
    assert broker.generation == 1
    await broker.delete("jobs")
    await broker.declare(WORK)


async def while_the_broker_is_blocked_nothing_is_sent_and_consuming_goes_on(
    broker: AmqpBroker, alarming: Alarming
) -> None:
    await fill(broker, 1)
    assert broker.blocked is None
    await alarming.alarm()
    published = await broker.publish([message(b"late")], timeout=1)  # the alarm shows at the first publish
    assert published[0].outcome is UNKNOWN
    assert await eventually(lambda: broker.blocked, deadline=5)
    published = await broker.publish([message(b"never")], timeout=0.3)
    assert published[0].outcome is UNKNOWN
    assert "takes no messages" in published[0].detail
    assert broker.state is LinkState.UP
    await broker.declare(WORK)
    consumer = await broker.consume(["jobs"], 10)
    await take(consumer, 1)
    waiting = asyncio.create_task(broker.publish([message(b"patient")], timeout=20))
    await alarming.all_clear()
    assert outcomes(await waiting) == [CONFIRMED]
    assert broker.blocked is None
    assert {one.body for one in await take(consumer, 2)} == {b"late", b"patient"}


async def whoever_is_quiet_finds_out_by_a_message_to_nobody(quiet: AmqpBroker, alarming: Alarming) -> None:
    assert await accepts_messages(quiet)
    await alarming.alarm()
    began = clock.monotonic()
    assert not await accepts_messages(quiet)
    assert clock.monotonic() - began < 3, "it says so at the first try"
    assert quiet.blocked
    assert not await accepts_messages(quiet)
    await alarming.all_clear()
    await eventually(lambda: not quiet.blocked, deadline=5)
    assert await accepts_messages(quiet)
    assert quiet.generation == 1
    await quiet.stop()
    assert not await accepts_messages(quiet), "there is no link"
