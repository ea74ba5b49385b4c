"""Does the broker start, refuse, stop and fail as `dev` and the fault tests need it?"""

from __future__ import annotations

import asyncio
import socket

import aio_pika
import pytest
from aiormq.exceptions import ConnectionClosed
from pamqp import commands
from pamqp.heartbeat import Heartbeat

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.errors import ConfigError
from tests.support import eventually
from tests.unit.broker.devserver.conftest import Connect
from tests.unit.broker.devserver.raw import raw


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_an_address_that_others_can_reach_is_refused_with_a_sentence(host: str) -> None:
    with pytest.raises(ConfigError, match="development only"):
        EmbeddedBroker(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
async def test_loopback_is_fine(host: str, connect: Connect) -> None:
    server = EmbeddedBroker(host=host)
    await server.start()
    connection = await connect(server.url)
    assert not connection.is_closed
    await connection.close()
    await server.stop()


async def test_it_takes_over_a_socket_that_listens(connect: Connect) -> None:
    server, listening = EmbeddedBroker(), socket.create_server(("127.0.0.3", 0))
    await server.start(listening)
    assert server.url == f"amqp://guest:guest@127.0.0.3:{listening.getsockname()[1]}/"
    await (await connect(server.url)).close()
    await server.stop()


async def test_a_socket_that_others_can_reach_is_refused() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listening, pytest.raises(ConfigError, match="development only"):
        await EmbeddedBroker().start(listening)


def test_an_unknown_profile_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match="strict, lenient"):
        EmbeddedBroker(profile="4.x")


async def test_a_taken_port_is_an_oserror(server: EmbeddedBroker) -> None:
    with pytest.raises(OSError, match="in use"):
        await EmbeddedBroker(port=server.port).start()


async def test_it_says_loudly_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    server = EmbeddedBroker()
    await server.start()
    await server.stop()
    assert any("development only" in record.message and record.levelname == "WARNING" for record in caplog.records)


async def test_after_a_stop_it_starts_again_on_its_port_and_remembers_nothing(connect: Connect) -> None:
    server = EmbeddedBroker()
    await server.start()
    port = server.port
    channel = await (await connect(server.url)).channel()
    await channel.declare_queue("q", durable=True)
    await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
    assert server.queue_depths() == {"q": 1}
    await server.stop()
    await server.start()
    assert server.port == port
    assert server.queue_depths() == {}
    channel = await (await connect(server.url)).channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await channel.declare_queue("q", passive=True)
    await server.stop()


async def test_stop_does_not_wait_for_a_client_that_says_nothing() -> None:
    server = EmbeddedBroker()
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(b"AMQP\x00\x00\x09\x01")
        async with asyncio.timeout(4):
            await server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


async def test_stop_twice_and_before_start() -> None:
    server = EmbeddedBroker()
    await server.stop()
    await server.start()
    port = server.port
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def _closed(connection: aio_pika.abc.AbstractConnection) -> BaseException | None:
    told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def on_close(_sender: object, error: BaseException | None) -> None:
        if not told.done():
            told.set_result(error)

    connection.close_callbacks.add(on_close)
    return await asyncio.wait_for(told, 5)


async def test_an_operator_closes_all_connections_with_a_reason(server: EmbeddedBroker, connect: Connect) -> None:
    connections = [await connect(server.url) for _ in range(2)]
    waiting = [asyncio.create_task(_closed(one)) for one in connections]
    await asyncio.sleep(0)
    assert server.close_all_connections("maintenance") == 2
    for error in await asyncio.gather(*waiting):
        assert isinstance(error, ConnectionClosed)
        assert "320" in repr(error)
        assert "maintenance" in repr(error)


async def test_cut_connections_lose_their_exclusive_queues_and_give_back_their_messages(
    server: EmbeddedBroker, connect: Connect
) -> None:
    channel = await (await connect(server.url)).channel()
    queue = await channel.declare_queue("q", durable=True)
    await channel.declare_queue("mine", exclusive=True)
    await channel.default_exchange.publish(aio_pika.Message(b"1"), "q")
    assert await queue.get() is not None
    assert server.queue_depths() == {"q": 0, "mine": 0}
    assert server.drop_all_connections() == 1
    await eventually(lambda: server.queue_depths() == {"q": 1}, deadline=5)
    assert server.drop_all_connections() == 0


async def test_virtual_hosts_do_not_see_each_other(server: EmbeddedBroker, connect: Connect) -> None:
    channel = await (await connect(f"{server.url}other")).channel()
    await channel.declare_queue("q", durable=True)
    assert server.queue_depths("other") == {"q": 0}
    assert server.queue_depths() == {}
    assert server.queue_depths("never used") == {}
    elsewhere = await (await connect(server.url)).channel()
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await elsewhere.declare_queue("q", passive=True)


async def test_blocked_publishers_are_told_and_wait_while_consumers_go_on(
    server: EmbeddedBroker, connect: Connect
) -> None:
    consumer = await (await connect(server.url)).channel()
    queue = await consumer.declare_queue("q", durable=True)
    await consumer.default_exchange.publish(aio_pika.Message(b"before"), "q")
    async with raw(server) as publisher:
        await publisher.open(capabilities={"connection.blocked": True})
        server.block_publishers()
        publisher.publish("q", b"during")
        await publisher.until(commands.Connection.Blocked)
        message = await queue.get()
        assert message is not None
        await message.ack()
        await consumer.declare_queue("q", passive=True)
        assert server.queue_depths() == {"q": 0}
        server.unblock_publishers()
        await publisher.until(commands.Connection.Unblocked)
        await eventually(lambda: server.queue_depths() == {"q": 1}, deadline=5)


@pytest.mark.usefixtures("quick_heartbeats")
async def test_a_blocked_connection_is_not_given_up_for_its_silence(server: EmbeddedBroker) -> None:
    async with raw(server) as publisher:
        await publisher.open(heartbeat=1, capabilities={"connection.blocked": True})
        server.block_publishers()
        publisher.publish("q", b"")
        for _ in range(4):  # beats come at least once per interval: more than two of them pass
            await publisher.until(Heartbeat)
        server.unblock_publishers()
        await publisher.until(commands.Connection.Unblocked)


async def test_a_blocked_connection_can_still_be_closed(server: EmbeddedBroker, connect: Connect) -> None:
    connection = await connect(server.url)
    channel = await connection.channel()
    await channel.declare_queue("q", durable=True)
    server.block_publishers()
    publishing = asyncio.create_task(channel.default_exchange.publish(aio_pika.Message(b"1"), "q"))
    told = asyncio.create_task(_closed(connection))
    await asyncio.sleep(0)
    server.close_all_connections("enough")
    assert isinstance(await told, ConnectionClosed)
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await publishing
