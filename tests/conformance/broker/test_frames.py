"""Do large bodies, small frames, long queues and broken byte streams go the same way?"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import aio_pika
import pytest

from tests.conformance.broker.brokers import PATIENCE, Broker
from tests.conformance.broker.plain import QUORUM, Plain, fresh, plain
from tests.conformance.broker.tasks import connecting

FRAME = 131_072
SIZES = [0, 1, FRAME - 9, FRAME - 8, FRAME - 7, FRAME, 1_000_000, 3 * (FRAME - 8)]


def _pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


def test_bodies_of_every_awkward_size_come_through_whole(client: Plain) -> None:
    queue = client.queue(QUORUM)
    for size in SIZES:
        client.publish(queue, _pattern(size))
    for size in SIZES:
        assert client.get(queue, ack=True).body == _pattern(size)


async def test_a_body_of_one_megabyte_by_aio_pika(broker: Broker) -> None:
    async with connecting() as connect:
        connection = await connect(broker.url)
        channel = await connection.channel()
        queue = await channel.declare_queue(fresh(), durable=True, arguments=dict(QUORUM))
        await channel.default_exchange.publish(aio_pika.Message(_pattern(1_000_000)), queue.name)
        message = await queue.get(timeout=PATIENCE)
        assert message is not None
        assert message.body == _pattern(1_000_000)
        await message.ack()


def test_a_client_may_ask_for_small_frames(broker: Broker) -> None:
    with plain(f"{broker.url}?frame_max=8192") as client:
        queue = client.queue(QUORUM)
        client.publish(queue, _pattern(100_000))
        assert client.get(queue, ack=True).body == _pattern(100_000)


def test_a_large_return_comes_back_whole(client: Plain) -> None:
    returned: list[bytes] = []
    client.channel = client.connection.channel()
    client.channel.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    client.channel.basic_publish("", "nowhere", _pattern(300_000), mandatory=True)
    client.until(lambda: returned == [_pattern(300_000)])


def test_ten_thousand_queued_messages_arrive_once_and_in_order(broker: Broker) -> None:
    count = 10_000
    with plain(broker.url) as client:
        queue = client.queue(QUORUM)
        unconfirmed = client.connection.channel()
        for number in range(count):
            unconfirmed.basic_publish("", queue, str(number).encode())
        client.until(lambda: client.depth(queue) == count)
        got = []
        client.channel.basic_qos(prefetch_count=500)
        for method, _properties, body in client.channel.consume(queue, inactivity_timeout=PATIENCE):
            assert method is not None
            assert body is not None
            got.append(int(body))
            if len(got) % 250 == 0:
                client.channel.basic_ack(method.delivery_tag, multiple=True)
            if len(got) == count:
                break
        assert got == list(range(count))
        client.channel.cancel()
        assert client.depth(queue) == 0


def _raw(broker: Broker) -> socket.socket:
    parts = urlsplit(broker.url)
    return socket.create_connection((parts.hostname, parts.port or 5672), timeout=PATIENCE)


def _read_to_end(link: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            more = link.recv(65_536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


@pytest.mark.parametrize(
    "first", [b"AMQP\x01\x01\x00\x0a", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03"]
)
def test_other_protocols_are_told_what_is_spoken_here(broker: Broker, first: bytes) -> None:
    with _raw(broker) as link:
        link.sendall(first)
        assert _read_to_end(link) == b"AMQP\x00\x00\x09\x01"


def test_frames_in_single_bytes_are_understood(broker: Broker) -> None:
    with _raw(broker) as link:
        for byte in b"AMQP\x00\x00\x09\x01":
            link.sendall(bytes((byte,)))
        assert link.recv(1) == b"\x01"
