"""Is a connection that only takes room closed in time, and does what is no HTTP get an answer that can be read?"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrix.api.guards.connections import ConnectionLimits, Server, config, out_of_descriptors
from orchestrix.bootstrap.listening_socket import listening
from tests.support import eventually

from .answers import BODY
from .world import World

HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /apps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LIMITS = ConnectionLimits(head=0.3, body=0.3, keep_alive=75.0, connections=1000)
SLACK = 6.0
"""Seconds: far more than any of the times below."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.api.guards.connections.TICKS", 1)  # ten looks a second


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def rest(self, within: float = SLACK) -> bytes:
        """All that comes until the server closes the connection."""
        async with asyncio.timeout(within):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        async with asyncio.timeout(SLACK):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body

    async def problem(self, status: int, code: str) -> dict[str, Any]:
        """The next answer, which is a problem, and the last one."""
        found, headers, body = await self.answer()
        assert (found, headers["content-type"], headers["connection"]) == (status, "application/problem+json", "close")
        assert headers["x-correlation-id"]
        told: dict[str, Any] = json.loads(body)
        assert (told["status"], told["code"]) == (status, code)
        assert await self.rest() == b""
        return told


@dataclass
class Served:
    """The API behind a real server."""

    world: World
    server: Server
    port: int
    clients: list[Client] = field(default_factory=list)

    async def connect(self, *sent: bytes) -> Client:
        """A connection on which `sent` was sent."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        for one in sent:
            client.writer.write(one)
        await client.writer.drain()
        return client

    async def lives(self) -> None:
        """A request is answered."""
        client = await self.connect(HEAD + b"\r\n")
        assert (await client.answer())[0] == 200
        client.writer.close()


async def serving(world: World, limits: ConnectionLimits) -> AsyncIterator[Served]:
    socket = listening("127.0.0.1", [0])
    server = Server(config(world.app, limits, stop=1))
    task = asyncio.create_task(server.serve(sockets=[socket]))
    served = Served(world, server, socket.getsockname()[1])
    try:
        await eventually(lambda: server.started, deadline=5)
        yield served
    finally:
        for client in served.clients:
            client.writer.close()
        server.should_exit = True
        await task


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    async for one in serving(world, LIMITS):
        yield one


@pytest.fixture
async def narrow(world: World) -> AsyncIterator[Served]:
    """With room for eight connections."""
    async for one in serving(world, replace(LIMITS, head=60.0, connections=8)):
        yield one


async def test_who_says_nothing_is_hung_up_on(served: Served) -> None:
    client = await served.connect()
    assert await client.rest() == b""


@pytest.mark.parametrize("begun", [b"G", b"GET /apps HTTP/1.1\r\n", HEAD])
async def test_a_head_that_does_not_end_is_408(served: Served, begun: bytes) -> None:
    await (await served.connect(begun)).problem(408, "request_timeout")


async def test_a_head_that_comes_byte_by_byte_has_no_more_time(served: Served) -> None:
    client = await served.connect()
    answer = asyncio.create_task(client.problem(408, "request_timeout"))
    for byte in HEAD * 100:
        client.writer.write(bytes([byte]))
        await asyncio.wait([answer], timeout=0.02)
        if answer.done():
            break
    await answer


async def test_a_later_head_has_the_same_time(served: Served) -> None:
    client = await served.connect(HEAD + b"\r\n")
    assert (await client.answer())[0] == 200
    with pytest.raises(TimeoutError):  # idle is allowed, for it is kept alive
        await client.rest(3 * LIMITS.head)
    client.writer.write(HEAD)
    await client.problem(408, "request_timeout")


async def test_a_pipelined_head_has_the_same_time(served: Served) -> None:
    client = await served.connect(HEAD + b"\r\n" + HEAD)
    assert (await client.answer())[0] == 200
    await client.problem(408, "request_timeout")


async def test_idle_connections_end_with_keep_alive(world: World) -> None:
    async for served in serving(world, replace(LIMITS, keep_alive=1.0)):
        client = await served.connect(HEAD + b"\r\n")
        assert (await client.answer())[0] == 200
        assert await client.rest() == b""


@pytest.mark.parametrize("size", [b"Content-Length: 100\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_a_body_that_does_not_come_is_408(served: Served, size: bytes) -> None:
    client = await served.connect(POST + size)
    await client.problem(408, "request_timeout")
    assert not served.world.starter.requests


async def test_a_body_that_comes_byte_by_byte_has_no_more_time(served: Served) -> None:
    client = await served.connect(POST + b"Content-Length: 1000\r\n\r\n")
    answer = asyncio.create_task(client.problem(408, "request_timeout"))
    for _ in range(100):
        client.writer.write(b" ")
        await asyncio.wait([answer], timeout=0.02)
        if answer.done():
            break
    await answer


async def test_a_body_that_nobody_wants_has_no_more_time(served: Served) -> None:
    client = await served.connect(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
    assert (await client.answer())[0] == 404
    assert await client.rest() == b""


async def test_head_with_a_slow_body_gets_no_body(served: Served) -> None:
    client = await served.connect(b"HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
    assert (await client.rest()).endswith(b"\r\n\r\n")


async def test_a_request_that_is_complete_has_all_the_time(served: Served) -> None:
    served.world.starter.hold = asyncio.Event()
    body = json.dumps(BODY).encode()
    client = await served.connect(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    answer = asyncio.ensure_future(client.answer())
    assert not (await asyncio.wait([answer], timeout=3 * LIMITS.body))[0]
    served.world.starter.hold.set()
    assert (await answer)[0] == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),  # a TLS greeting
        (b"AMQP\x00\x00\x09\x01\r\n\r\n", 400, "bad_request"),
        (b"\r\n\r\n\r\n", 400, "bad_request"),
        (b"GET /apps\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not_implemented"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431, "head_too_large"),
        (b"G" * 70_000, 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400, "bad_request"),
    ],
)
async def test_what_is_no_request_gets_a_problem(served: Served, sent: bytes, status: int, code: str) -> None:
    client = await served.connect(sent)
    found, headers, body = await client.answer()
    assert (headers["content-type"], headers["connection"]) == ("application/problem+json", "close")
    assert (found, json.loads(body)["code"]) == (status, code)
    await served.lives()


async def test_a_broken_chunk_is_a_problem_and_no_stack_trace(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = await served.connect(POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    await client.problem(400, "bad_request")
    assert not [one for one in caplog.records if one.exc_info]


async def test_garbage_does_not_fill_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(30):
        await (await served.connect(b"\x00\r\n\r\n")).answer()
        await served.connect(HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 1


async def test_who_reads_nothing_is_hung_up_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.api.guards.connections.READER_S", 1.0)
    monkeypatch.setattr("orchestrix.api.guards.connections.FAREWELL_S", 1.0)
    client = await served.connect()
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        client.writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await eventually(lambda: not served.server.server_state.connections, deadline=3 * SLACK)


async def test_idle_connections_make_room_for_new_ones(narrow: Served) -> None:
    silent = [await narrow.connect() for _ in range(40)]
    await narrow.lives()
    await eventually(lambda: len(narrow.server.server_state.connections) <= 8, deadline=SLACK)
    assert [await one.rest() for one in silent[:30]] == [b""] * 30, "the oldest go first"
    for _ in range(20):
        await narrow.lives()


async def test_connections_at_work_are_left_alone(narrow: Served) -> None:
    narrow.world.starter.hold = asyncio.Event()
    body = json.dumps(BODY).encode()
    request = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    busy = [await narrow.connect(request) for _ in range(8)]
    await eventually(lambda: len(narrow.world.starter.requests) == 8, deadline=SLACK)
    refused = await narrow.connect()
    told = await refused.problem(503, "too_many_connections")
    assert "Try again" in told["detail"]
    narrow.world.starter.hold.set()
    assert {(await one.answer())[0] for one in busy} == {200, 409}
    await narrow.lives()


async def test_a_stop_is_not_kept_by_a_connection_that_was_refused(narrow: Served) -> None:
    await narrow.connect(b"\x00\r\n\r\n")
    narrow.server.should_exit = True
    await eventually(lambda: not narrow.server.server_state.connections, deadline=SLACK)


async def test_missing_descriptors_are_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    for _ in range(1000):
        out_of_descriptors(loop, context)
    [line] = caplog.records
    assert "Too many open files" in line.getMessage()
    out_of_descriptors(loop, {"message": "something else"})
    assert caplog.records[-1].getMessage() == "something else"
