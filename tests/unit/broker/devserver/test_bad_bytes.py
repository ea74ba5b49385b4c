"""Does a client that sends rubbish hurt nobody but itself?"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import struct

import aio_pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands

from orchestrix.broker.embedded import EmbeddedBroker, errors, frames
from orchestrix.broker.embedded.model import properties
from tests.unit.broker.devserver.conftest import Connect
from tests.unit.broker.devserver.raw import HELLO, PATIENCE, raw


async def test_garbage_of_all_kinds_leaves_the_others_alone(server: EmbeddedBroker, connect: Connect) -> None:
    channel = await (await connect(server.url)).channel()
    queue = await channel.declare_queue("q", durable=True)
    noise = random.Random(7)
    for start in (b"", HELLO, b"AMQP"):
        for size in (1, 7, 8, 100, 5_000):
            async with raw(server) as link:
                with contextlib.suppress(ConnectionError):
                    link.writer.write(start + noise.randbytes(size))
                    link.writer.write_eof()
                    await link.rest()
    await channel.default_exchange.publish(aio_pika.Message(b"alive"), "q")
    message = await queue.get()
    assert message is not None
    assert message.body == b"alive"


async def test_garbage_on_an_open_connection_gets_a_close_with_a_code(server: EmbeddedBroker) -> None:
    noise = random.Random(11)
    for _ in range(30):
        async with raw(server) as link:
            await link.open()
            size = noise.randrange(4, 60)
            link.writer.write(struct.pack(">BHI", noise.choice((1, 2, 3)), 1, size) + noise.randbytes(size) + b"\xce")
            close = await link.until(commands.Connection.Close)
            assert close.reply_code in (501, 502, 503, 504, 505, 540)


@pytest.mark.parametrize(
    "raw_headers",
    [
        pytest.param(b"\x00\x00\x00\x09\x01kS\xff\xff\xff\xff\x00\x00", id="a text beyond its table"),
        pytest.param(b"\x00\x00\x00\x03\x01kZ", id="an unknown type"),
        pytest.param(b"\x00\x00\x00\x02\x01k", id="a name without a value"),
        pytest.param(b"\x00\x00\x00\x02\x09k", id="a name beyond its table"),
        pytest.param(b"\x00\x00\x00\x05\x01kT\x00\x00", id="a time that is cut short"),
        pytest.param(b"\x00\x00\x00\x0b\x01kF\x00\x00\x00\x04\x01nS\x00", id="an inner table that is cut short"),
        pytest.param(b"\x00\x00\x00\x09\x01kA\x00\x00\x00\x02S\x00", id="an array that is cut short"),
    ],
)
async def test_unreadable_message_headers_close_the_connection(server: EmbeddedBroker, raw_headers: bytes) -> None:
    async with raw(server) as link:
        await link.open()
        link.send(commands.Basic.Publish(exchange="", routing_key="q"), 1)
        content = frames.content_header(0, b"\x20\x00" + raw_headers)
        link.writer.write(frames.frame(frames.HEADER, 1, content))
        assert (await link.until(commands.Connection.Close)).reply_code == 502


async def test_a_failure_of_the_broker_itself_closes_one_connection(
    server: EmbeddedBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await (await connect(server.url)).channel()

    def broken(_payload: bytes) -> tuple[int, bool]:
        raise KeyError("a bug")

    async with raw(server) as link:
        await link.open()
        monkeypatch.setattr(frames, "read_ack", broken)
        link.send(commands.Basic.Ack(1), 1)
        assert (await link.until(commands.Connection.Close)).reply_code == 541
    await other.declare_queue("q", durable=True)


async def test_close_ok_ends_the_socket_after_a_close(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        await link.open()
        link.writer.write(b"\xff" * 8)
        await link.until(commands.Connection.Close)
        link.send(commands.Connection.CloseOk())
        assert await link.rest() == b""


async def test_frames_before_negotiation_is_done_are_refused(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        link.writer.write(HELLO)
        await link.until(commands.Connection.Start)
        link.send(commands.Channel.Open(), 1)
        assert (await link.until(commands.Connection.Close)).reply_code == 503


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [("EXTERNAL", "", 503), ("PLAIN", "no nul bytes", 403), ("PLAIN", "\0a\0b", None)],
)
async def test_any_user_may_enter_but_only_by_plain(
    server: EmbeddedBroker, mechanism: str, response: str, code: int | None
) -> None:
    async with raw(server) as link:
        link.writer.write(HELLO)
        await link.until(commands.Connection.Start)
        link.send(commands.Connection.StartOk({}, mechanism, response))
        answer = await link.frame()
        assert getattr(answer, "reply_code", None) == code


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_splitter_raises_refusals_only_and_does_not_care_how_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    def split(pieces: list[bytes]) -> list[object]:
        splitter, found = frames.FrameSplitter(), list[object]()
        try:
            for piece in pieces:
                splitter.feed(piece)
                while (one := splitter.next()) is not None:
                    found.append(one)
        except errors.AmqpError as refusal:
            found.append(refusal.sentence)
        return found

    stream = frames.frame(frames.METHOD, 1, data) + frames.frame(frames.BODY, 2, b"x") + data
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert split([stream[a:b] for a, b in itertools.pairwise(edges)]) == split([stream])


@given(data=st.binary(max_size=120))
def test_properties_are_read_whole_or_refused(data: bytes) -> None:
    try:
        found = properties.parse(data)
        if "headers" in found:
            properties.headers(found["headers"])
    except (errors.AmqpError, IndexError):
        return
    assert properties.build(found) == data


def test_headers_that_are_set_leave_the_others_as_they_came() -> None:
    odd = b"\x02\xff\xfeS\x00\x00\x00\x01\xff" + b"\x01tT" + b"\xff" * 8 + b"\x01nA\x00\x00\x00\x05F\x00\x00\x00\x00"
    before = b"\x20\x00" + struct.pack(">I", len(odd)) + odd
    changed = properties.with_headers(before, {"x-delivery-count": 7})
    assert properties.parse(changed)["headers"][4:] == odd + b"\x10x-delivery-countl" + struct.pack(">q", 7)


async def test_silence_before_the_greeting_ends(server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.broker.embedded.connection.HANDSHAKE_TIMEOUT_S", 0.05)
    async with raw(server) as link:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(link.reader.read(), PATIENCE) == b""
