"""What happens when another client's message is not what AMQP's text promises?"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from orchestrix.broker.amqp import codec
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.amqp.channel import AmqpChannel
from orchestrix.broker.amqp.connection import AmqpConnection
from tests.conformance.port.rig import Rig, message, take

HEADERS, CORRELATION_ID, MESSAGE_ID, TYPE = 1 << 13, 1 << 10, 1 << 7, 1 << 5


@pytest.fixture
async def channel(rig: Rig) -> AsyncIterator[AmqpChannel]:
    """A channel on which a test writes frames of its own making."""
    link = AmqpConnection("foreign")
    await link.open(URL(rig.url), "test", 10)
    async with await link.channel() as channel:
        yield channel
    await link.close()


def send(channel: AmqpChannel, flags: int, properties: bytes, body: bytes = b"x") -> None:
    """Publishes to `jobs` with a hand-made content header."""
    method = struct.pack(">IH", codec.PUBLISH, 0) + b"\x04work\x04jobs\x00"
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    channel.send(codec.frame(codec.METHOD, channel.number, method))
    channel.send(codec.frame(codec.HEADER, channel.number, header))
    channel.send(codec.frame(codec.BODY, channel.number, body))


def table(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = b"\x01nF" + table(content)
    return table(content)


LONG = b"\xff\xfe\x00bad"


ODD = [
    pytest.param(MESSAGE_ID, b"\x03\xff\xfe\xfd", id="message id"),
    pytest.param(CORRELATION_ID | TYPE, b"\x02\xc3\x28" + b"\x02\xed\xa0", id="correlation id and type"),
    pytest.param(HEADERS, table(b"\x01xx" + table(LONG) + b"\x01DD\x02\x00\x00\x01\x00"), id="bytes and decimal"),
    pytest.param(HEADERS, table(b"\x01sS" + table(LONG)), id="text in a header"),
    pytest.param(HEADERS, table(b"\x10x-delivery-countS" + table(b"many")), id="a delivery count that is text"),
    pytest.param(HEADERS, table(b"\x07x-deathS" + table(b"forged") + b"\x0btraceparentV"), id="forged x-death"),
    pytest.param(HEADERS, table(b"\x02\xff\xfeS" + table(b"\xff\xfe")), id="header name"),
    pytest.param(HEADERS, table(b"\x01tT" + b"\xff" * 8), id="a time beyond all years"),
    pytest.param(HEADERS, nested(3000), id="tables nested 3,000 deep"),
]


@pytest.mark.parametrize(("flags", "properties"), ODD)
async def test_an_odd_message_is_delivered_and_its_neighbours_too(
    broker: AmqpBroker, channel: AmqpChannel, flags: int, properties: bytes
) -> None:
    send(channel, flags, properties)
    consumer = await broker.consume(["jobs"], 10)
    (odd,) = await take(consumer, 1, acknowledge=False)
    await consumer.requeue([odd])
    (odd,) = await take(consumer, 1)
    assert (odd.body, odd.delivery_count) == (b"x", 1)
    await broker.publish([message(b"next")])
    assert [one.body for one in await take(consumer, 1)] == [b"next"]
    assert broker.generation == 1


async def test_text_that_is_not_utf8_is_read_with_replacement(broker: AmqpBroker, channel: AmqpChannel) -> None:
    properties = table(b"\x01aS" + table(b"o\xffo")) + b"\x03c\xffc" + b"\x03m\xffm" + b"\x03t\xfft"
    send(channel, HEADERS | CORRELATION_ID | MESSAGE_ID | TYPE, properties)
    (one,) = await take(await broker.consume(["jobs"], 1), 1)
    assert (one.correlation_id, one.message_id, one.type) == ("c\ufffdc", "m\ufffdm", "t\ufffdt")
    assert one.headers["a"] == "o\ufffdo"


async def test_a_body_that_is_not_utf8_comes_as_it_is(broker: AmqpBroker, channel: AmqpChannel) -> None:
    send(channel, 0, b"", b"\xff\x00\xfe")
    (one,) = await take(await broker.consume(["jobs"], 1), 1)
    assert (one.body, one.message_id, dict(one.headers)) == (b"\xff\x00\xfe", None, {})
