"""Does the proxy of the fault tests do to a connection what it says?"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest

from tests.fault.proxy import AtCommit, Proxy, Way, proxied
from tests.support import eventually, holds

COMMITS = {
    "PostgreSQL": b"Q" + struct.pack("!I", 12) + b"COMMIT;\0",
    "MySQL": struct.pack("<I", 7) + b"\x03COMMIT",
}


class Echo:
    """A server that says back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self.open = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(65536):
                self.heard += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()
    await eventually(lambda: server.open == 0, deadline=5, message="every connection is closed")


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    with proxied(f"tcp://127.0.0.1:{echo.port}") as made:
        yield made


class Client:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, size: int, within: float = 5.0) -> bytes:
        async with asyncio.timeout(within):
            return await self.reader.readexactly(size)

    async def ends(self) -> str:
        """How the connection ends: `fin` or `rst`."""
        try:
            async with asyncio.timeout(5):
                while await self.reader.read(65536):
                    pass
        except ConnectionResetError:
            return "rst"
        return "fin"

    async def silent(self, seconds: float = 0.15) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return not await self.reader.read(1)
        except TimeoutError:
            return True


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    made = await connect(proxy)
    yield made
    made.writer.close()


async def connect(proxy: Proxy) -> Client:
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    client.say(b"hello")
    assert await client.hears(5) == b"hello"
    return client


async def test_everything_passes_in_order(client: Client) -> None:
    data = bytes(range(256)) * 4000
    client.say(data)
    assert await client.hears(len(data)) == data


async def test_latency_delays_each_byte_and_keeps_their_order(proxy: Proxy, client: Client) -> None:
    proxy.slow(0.1, jitter=0.05)
    begun = time.monotonic()
    for n in range(20):
        client.say(b"%02d" % n)
        await asyncio.sleep(0)
    assert await client.hears(40) == b"".join(b"%02d" % n for n in range(20))
    assert 0.1 <= time.monotonic() - begun < 2


async def test_a_rate_is_kept(proxy: Proxy, client: Client) -> None:
    proxy.slow(0, rate=400_000)
    begun = time.monotonic()
    client.say(b"x" * 100_000)
    await client.hears(100_000)
    assert 0.2 <= time.monotonic() - begun < 2


async def test_a_black_hole_swallows_nothing_for_ever(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.black_hole()
    client.say(b"later")
    assert await client.silent()
    assert echo.heard == b"hello"
    proxy.heal()
    assert await client.hears(5) == b"later"


async def test_what_a_black_hole_holds_can_be_lost(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.black_hole()
    client.say(b"never")
    assert await client.silent()
    proxy.lose()
    assert await client.ends() == "rst"
    (await connect(proxy)).writer.close()
    assert echo.heard == b"hellohello"


async def test_one_way_alone_can_be_a_black_hole(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.black_hole(Way.DOWN)
    client.say(b"there")
    await eventually(lambda: echo.heard == b"hellothere", deadline=5)
    assert await client.silent()


async def test_who_connects_into_a_black_hole_gets_no_answer_until_it_heals(proxy: Proxy) -> None:
    proxy.black_hole()
    client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    client.say(b"x")
    assert await client.silent()
    proxy.heal()
    assert await client.hears(1) == b"x"
    client.writer.close()


async def test_half_open_means_that_only_the_server_sees_an_end(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.half_open()
    await eventually(lambda: echo.open == 0, deadline=5)
    client.say(b"anybody?")
    assert await client.silent()
    other = await connect(proxy)
    other.writer.close()


async def test_a_reset_of_the_client_alone_is_not_seen_by_the_server(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.reset_client()
    assert await client.ends() == "rst"
    other = await connect(proxy)
    await holds(lambda: echo.open == 2, during=0.3, message="the server has both")
    other.writer.close()
    proxy.reset()
    await eventually(lambda: echo.open == 0, deadline=5)


async def test_reset_and_cut_differ(proxy: Proxy, client: Client) -> None:
    proxy.reset()
    assert await client.ends() == "rst"
    other = await connect(proxy)
    proxy.cut()
    assert await other.ends() == "fin"
    other.writer.close()


async def test_refused_and_dropped_connections(proxy: Proxy, client: Client) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    client.say(b"still")
    assert await client.hears(5) == b"still"
    proxy.heal()
    proxy.drop()
    assert await _end_of_a_new_one(proxy) == "rst"
    proxy.heal()
    (await connect(proxy)).writer.close()


async def _end_of_a_new_one(proxy: Proxy) -> str:
    try:
        client = Client(*await asyncio.open_connection("127.0.0.1", proxy.port))
    except ConnectionResetError:
        return "rst"
    try:
        return await client.ends()
    finally:
        client.writer.close()


@pytest.mark.parametrize("bytes_", COMMITS.values(), ids=COMMITS.keys())
@pytest.mark.parametrize(("what", "arrives"), [("lost", False), ("sent", True), ("answered", True)])
async def test_a_connection_is_cut_at_its_commit(
    echo: Echo, proxy: Proxy, client: Client, what: str, arrives: bool, bytes_: bytes
) -> None:
    proxy.at_commit(AtCommit(what), times=1)
    client.say(b"COMMITTED")  # a word, not a command
    assert await client.hears(9) == b"COMMITTED"
    client.say(bytes_)
    assert await client.ends() in ("rst", "fin")
    assert proxy.commits_met == 1
    await eventually(lambda: echo.open == 0, deadline=5)
    assert (bytes_ in echo.heard) is arrives
    other = await connect(proxy)
    other.say(bytes_)
    assert await other.hears(len(bytes_)) == bytes_, "only the first one is hit"
    other.writer.close()


async def test_a_commit_can_be_held(echo: Echo, proxy: Proxy, client: Client) -> None:
    proxy.at_commit(AtCommit.HELD)
    client.say(COMMITS["PostgreSQL"])
    assert await client.silent()
    assert b"COMMIT" not in echo.heard
    proxy.heal()
    assert await client.hears(13) == COMMITS["PostgreSQL"]


async def test_the_other_side_sees_a_client_leave(echo: Echo, client: Client) -> None:
    client.writer.close()
    await eventually(lambda: echo.open == 0, deadline=5)


def test_an_address_leads_through_the_proxy() -> None:
    with proxied("amqp://guest:guest@localhost:1/%2Fname?heartbeat=5") as proxy:
        through = proxy.through("amqp://guest:guest@localhost:1/%2Fname?heartbeat=5")
        assert through == f"amqp://guest:guest@127.0.0.1:{proxy.port}/%2Fname?heartbeat=5"
