"""Is a consumer that does not read given no more than the socket and one buffer hold?"""

from __future__ import annotations

import aio_pika
from pamqp import commands

from orchestrix.broker.embedded import EmbeddedBroker
from tests.support import eventually
from tests.unit.broker.devserver.conftest import Connect
from tests.unit.broker.devserver.raw import raw

COUNT, SIZE = 400, 100_000


async def test_a_consumer_that_does_not_read_leaves_the_rest_in_the_queue(
    server: EmbeddedBroker, connect: Connect
) -> None:
    channel = await (await connect(server.url)).channel(publisher_confirms=False)
    await channel.declare_queue("q", durable=True)
    for _ in range(COUNT):
        await channel.default_exchange.publish(aio_pika.Message(bytes(SIZE)), "q")
    await eventually(lambda: server.queue_depths()["q"] == COUNT, deadline=10)
    async with raw(server) as link:
        await link.open()
        link.writer.transport.pause_reading()  # type: ignore[attr-defined]
        link.send(commands.Basic.Consume(queue="q", consumer_tag="slow", no_ack=True), 1)
        await eventually(lambda: server.queue_depths()["q"] < COUNT, deadline=5)
        await channel.declare_queue("q", passive=True)  # the broker answers others meanwhile
        left = server.queue_depths()["q"]
        assert left > COUNT // 2
        link.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while server.queue_depths()["q"]:
            assert await link.reader.read(1 << 20)
