"""Does a node call an executor where its address was judged, and is it told surely what became of the call?"""

from __future__ import annotations

import asyncio
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Any

import pytest
import trustme
from pydantic import SecretStr

from orchestrix import clock
from orchestrix.domain.registry.addresses import ExecutorAddress, IpAddress, parse_address
from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, signature_refusal
from orchestrix.http_client import MAX_ANSWER_BYTES
from orchestrix.registry.address_check import AddressNotAllowed
from orchestrix.registry.executor_client import (
    Busy,
    CallLimits,
    ExecutorClient,
    NotCalled,
    NotReached,
    Refused,
    Taken,
    Unknown,
)
from orchestrix.registry.host_lookups import UnresolvedHost
from tests.support import eventually, free_port, holds

HERE = ip_address("127.0.0.1")
SECRETS = {"shop": SecretStr("s3cret"), "": SecretStr("of-all")}
BODY = {"jobId": "j-1", "historyId": "h-1"}
DEADLINE_S = 20.0
Write = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Rogue:
    """A server on a real port that writes what the test chooses; `heads` and `bodies` are what it was sent."""

    def __init__(self, write: Write, tls: ssl.SSLContext | None = None) -> None:
        self._write, self._tls = write, tls
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.open = self.most_open = 0
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> ExecutorAddress:
        return self.named("127.0.0.1")

    def named(self, host: str) -> ExecutorAddress:
        return parse_address(f"{'http' if self._tls is None else 'https'}://{host}:{self.port}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("content-le")]
            self.heads.append(head)
            self.bodies.append(await reader.readexactly(int(length[0]) if length else 0))
            await self._write(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def rogue(write: Write, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Rogue]:
    made = Rogue(write, tls)
    server = await asyncio.start_server(made.serve, host, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.stop()
        await server.wait_closed()


def answers(status: int, body: Any = None, *more: str) -> Write:
    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(content)}", *more, "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()

    return write


def writes(content: bytes) -> Write:
    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()

    return write


async def nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


def drips(head: bytes) -> Write:
    """The head, then a byte now and then for ever."""

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)

    return write


def floods(head: bytes, megabytes: int) -> tuple[Write, list[int]]:
    """The head, then so many megabytes as fast as they are taken; how many were."""
    taken = [0]

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _number in range(megabytes):
            writer.write(b"x" * 1024 * 1024)
            await writer.drain()
            taken[0] += 1

    return write, taken


async def here(address: ExecutorAddress) -> Collection[IpAddress]:
    return [HERE]


@asynccontextmanager
async def client(
    judge: Callable[[ExecutorAddress], Awaitable[Collection[IpAddress]]] = here,
    timeout_s: float = DEADLINE_S,
    **more: Any,
) -> AsyncIterator[ExecutorClient]:
    made = ExecutorClient(judge, more.pop("secrets", SECRETS), timeout_s, **more)
    try:
        yield made
    finally:
        await made.close()


async def run(write: Write, timeout_s: float = DEADLINE_S) -> Any:
    """The result of a call to a server that writes so."""
    async with rogue(write) as server, client(timeout_s=timeout_s) as caller:
        return await caller.run("shop", server.address, BODY)


@pytest.mark.req("S2-43")
async def test_it_posts_the_body_signed_with_the_trace_and_no_secret() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with rogue(answers(200)) as server, client() as caller:
        assert await caller.run("shop", server.address, BODY, trace) == Taken()
    (head,), (body,) = server.heads, server.bodies
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == "POST /run HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["traceparent"] == trace["traceparent"]
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == BODY
    signature, now = headers[SIGNATURE_HEADER.lower()], clock.now().timestamp()
    assert signature_refusal("s3cret", signature, body, now) is None
    assert "s3cret" not in head
    assert b"s3cret" not in body
    assert "cookie" not in headers


async def test_an_app_without_a_secret_of_its_own_has_that_of_all() -> None:
    async with rogue(answers(200)) as server, client() as caller:
        await caller.run("other", server.address, BODY)
    line = next(one for one in server.heads[0].split("\r\n") if one.startswith(SIGNATURE_HEADER))
    header = line.partition(": ")[2]
    assert signature_refusal("of-all", header, server.bodies[0], clock.now().timestamp()) is None


@pytest.mark.parametrize(
    ("write", "result"),
    [
        (answers(200), Taken()),
        (answers(204), Taken()),
        (answers(409, {"detail": "all slots\nare taken"}), Busy(409, "all slots are taken")),
        (answers(503), Busy(503, "Service Unavailable")),
        (answers(422, {"detail": "no function"}), Refused(422, "no function")),
        (answers(404), Refused(404, "Not Found")),
        (answers(499, [1]), Refused(499, "status 499")),
        (answers(500), Unknown("500 Internal Server Error")),
        (answers(502), Unknown("502 Bad Gateway")),
    ],
)
async def test_each_status_is_one_result(write: Write, result: object) -> None:
    assert await run(write) == result


async def test_a_redirect_is_refused_and_not_followed() -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(rogue(answers(200)))
        caller = await stack.enter_async_context(client())
        for status in (301, 302, 303, 307, 308):
            write = answers(status, None, f"Location: http://127.0.0.1:{other.port}/run")
            server = await stack.enter_async_context(rogue(write))
            result = await caller.run("shop", server.address, BODY)
            assert isinstance(result, Refused)
            assert "not followed" in result.reason
            assert await caller.holds("shop", server.address, "h-1") == Unknown(
                f"{status} {result.reason.split(':')[0]}"
            )
        assert other.heads == []


async def test_what_refuses_the_connection_was_surely_not_reached() -> None:
    async with client() as caller:
        result = await caller.run("shop", parse_address(f"http://127.0.0.1:{free_port()}"), BODY)
    assert isinstance(result, NotReached)
    assert result.may_change
    assert "refused" in result.reason.lower() or "failed" in result.reason.lower()


@pytest.mark.parametrize(
    "write",
    [
        writes(b""),
        writes(b"noise\r\n\r\n"),
        writes(b"HTTP/1.1 200"),
        writes(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000_000),
        writes(b"HTTP/1.1 999999 OK\r\n\r\n"),
        writes(b"HTTP/1.1 100 Continue\r\n\r\n" * 10),
    ],
    ids=["end", "noise", "cut", "head", "status", "continue"],
)
async def test_after_the_sending_no_readable_answer_is_unknown(write: Write) -> None:
    assert isinstance(await run(write), Unknown)


@pytest.mark.parametrize(
    "write",
    [nothing, drips(b"HTTP/1.1 200 OK\r\nX: "), drips(b"")],
    ids=["silent", "slow head", "slow status"],
)
async def test_a_slow_answer_ends_with_the_time_and_is_unknown(write: Write) -> None:
    async with asyncio.timeout(DEADLINE_S):
        assert await run(write, timeout_s=0.3) == Unknown("no answer within 0.3 s")


async def test_a_slow_body_changes_nothing_of_the_status() -> None:
    head = b"HTTP/1.1 %d Words\r\nContent-Length: 100000\r\n\r\n"
    async with asyncio.timeout(DEADLINE_S):
        assert await run(drips(head % 200), timeout_s=0.3) == Taken()
        assert await run(drips(head % 404), timeout_s=0.3) == Refused(404, "Not Found")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 404 No\r\nContent-Length: 1073741824\r\n\r\n",
        b"HTTP/1.1 404 No\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
    ],
    ids=["length", "endless", "gzip"],
)
async def test_an_answer_of_a_gigabyte_is_not_read(head: bytes) -> None:
    write, taken = floods(head, 1024)
    tracemalloc.start()
    try:
        assert await run(write) == Refused(404, "Not Found")
        assert tracemalloc.get_traced_memory()[1] < 64 * MAX_ANSWER_BYTES
    finally:
        tracemalloc.stop()
    assert taken[0] < 64, "what lies in the buffers of the system"


async def test_the_ip_that_was_judged_is_connected_to_whatever_the_name_service_says_then() -> None:
    asked: list[str] = []

    async def judge(address: ExecutorAddress) -> Collection[IpAddress]:
        asked.append(address.host)
        return [HERE]

    async with rogue(answers(200)) as server, client(judge) as caller:
        # No name service knows this name: a look-up of its own would fail.
        address = server.named("executor.invalid")
        assert await caller.run("shop", address, BODY) == Taken()
        assert await caller.holds("shop", address, "h-1") == "held"
    assert asked == ["executor.invalid"] * 2, "judged at each call"
    assert all(f"\r\nHost: executor.invalid:{server.port}\r\n" in head for head in server.heads)


async def test_the_next_ip_is_tried_only_where_the_one_before_was_not_reached() -> None:
    async def both(address: ExecutorAddress) -> Sequence[IpAddress]:
        return [ip_address("127.0.0.2"), HERE]

    async with rogue(answers(200)) as server, client(both) as caller:
        assert await caller.run("shop", server.address, BODY) == Taken()
    async with rogue(nothing, host="127.0.0.2") as hangs, client(both, timeout_s=0.3) as caller:
        assert isinstance(await caller.run("shop", hangs.address, BODY), Unknown)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (AddressNotAllowed("it is not in the list"), NotReached("it is not in the list", may_change=False)),
        (UnresolvedHost("cannot be resolved now"), NotReached("cannot be resolved now")),
    ],
)
async def test_what_may_not_be_called_is_not_reached(error: Exception, result: NotReached) -> None:
    async def judge(address: ExecutorAddress) -> Collection[IpAddress]:
        raise error

    async with rogue(answers(200)) as server, client(judge) as caller:
        assert await caller.run("shop", server.address, BODY) == result
    assert server.heads == []


async def test_without_a_secret_only_this_machine_is_called_unsigned() -> None:
    async def far(address: ExecutorAddress) -> Collection[IpAddress]:
        return [HERE, ip_address("10.0.0.7")]

    async with rogue(answers(200)) as server:
        async with client(secrets={}) as caller:
            assert await caller.run("shop", server.address, BODY) == Taken()
        async with client(far, secrets={}) as caller:
            result = await caller.run("shop", server.address, BODY)
    assert isinstance(result, NotReached)
    assert not result.may_change
    assert "ORCHESTRIX_REGISTRY__TOKEN" in result.reason
    assert len(server.heads) == 1
    assert SIGNATURE_HEADER not in server.heads[0]


@asynccontextmanager
async def tls_server(name: str) -> AsyncIterator[tuple[Rogue, trustme.CA, list[str | None]]]:
    """A server with a certificate for the name, and the names that it was asked for by SNI."""
    ca = trustme.CA()
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    context.sni_callback = lambda _socket, server_name, _context: asked.append(server_name)
    async with rogue(answers(200), context) as server:
        yield server, ca, asked


def trusting(ca: trustme.CA) -> Callable[[], ssl.SSLContext]:
    def made() -> ssl.SSLContext:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        return context

    return made


async def test_tls_is_verified_by_the_name_that_was_registered() -> None:
    async with tls_server("executor.invalid") as (server, ca, asked), client(tls=trusting(ca)) as caller:
        assert await caller.run("shop", server.named("executor.invalid"), BODY) == Taken()
        other = await caller.run("shop", server.named("other.invalid"), BODY)
        bare = await caller.run("shop", server.named("127.0.0.1"), BODY)
    assert asked == ["executor.invalid", "other.invalid", None]
    for result in (other, bare):
        assert isinstance(result, NotReached)
        assert "mismatch" in result.reason
    assert f"Host: executor.invalid:{server.port}\r\n" in server.heads[0]
    assert len(server.heads) == 1


async def test_a_certificate_of_an_unknown_authority_is_not_reached() -> None:
    async with tls_server("executor.invalid") as (server, _, _), client() as caller:
        result = await caller.run("shop", server.named("executor.invalid"), BODY)
    assert isinstance(result, NotReached)
    assert "certificate" in result.reason
    assert server.heads == []


async def test_the_question_whether_it_has_an_attempt() -> None:
    for status, result in ((200, "held"), (404, "denied"), (500, Unknown("500 Internal Server Error"))):
        async with rogue(answers(status)) as server, client() as caller:
            assert await caller.holds("shop", server.address, "h-1") == result
        assert server.heads[0].startswith("GET /runs/h-1 HTTP/1.1\r\n")
    async with client() as caller:
        gone = await caller.holds("shop", parse_address(f"http://127.0.0.1:{free_port()}"), "h-1")
    assert isinstance(gone, NotReached)


async def test_cancel_and_health() -> None:
    async with rogue(answers(200)) as server, client() as caller:
        assert await caller.cancel("shop", server.address, "j-1", "h-1", "by hand") == Taken()
        assert await caller.healthy("shop", server.address) is None
    assert json.loads(server.bodies[0]) == {"jobId": "j-1", "historyId": "h-1", "reason": "by hand"}
    assert [one.split(" HTTP")[0] for one in server.heads] == ["POST /cancel", "GET /health"]
    async with rogue(answers(500)) as server, client() as caller:
        assert await caller.healthy("shop", server.address) == "500 Internal Server Error"
        assert isinstance(await caller.cancel("shop", server.address, "j-1", "h-1", "by hand"), Unknown)


async def test_four_calls_to_an_address_and_a_number_in_all_are_under_way_at_once() -> None:
    go = asyncio.Event()

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await answers(200)(reader, writer)

    limits = CallLimits(calls=6)
    async with rogue(write) as first, rogue(write) as second, client(limits=limits) as caller:
        calls = [asyncio.create_task(caller.run("shop", one.address, BODY)) for one in [first] * 10 + [second] * 10]
        await eventually(lambda: first.open + second.open == 6, deadline=DEADLINE_S)
        await holds(lambda: first.open + second.open == 6, during=0.2)
        assert (first.open, second.open) == (4, 2), "those that wait for the first take no place of the second"
        go.set()
        assert set(await asyncio.gather(*calls)) == {Taken()}
    assert first.most_open == 4
    assert second.most_open <= 4
    assert limits._addresses == {}, "nothing is kept of addresses that are not called"


async def test_who_gets_no_place_in_the_time_of_a_call_was_surely_not_called() -> None:
    limits = CallLimits(calls=3, of_address=1)
    async with (
        rogue(answers(200)) as server,
        client(limits=limits) as caller,
        client(limits=limits, timeout_s=0.1) as short,
    ):
        async with limits.slot(str(server.address)):  # by a call that has no answer
            result = await short.run("shop", server.address, BODY)
            assert result == NotCalled(f"other calls to {server.address} have had no answer for 0.1 s")
            assert server.heads == []
        assert await caller.run("shop", server.address, BODY) == Taken()
    assert limits._addresses == {}


async def test_a_call_that_is_cancelled_gives_its_place_back() -> None:
    limits = CallLimits(calls=1, of_address=1)
    async with rogue(nothing) as hangs, rogue(answers(200)) as server, client(limits=limits) as caller:
        call = asyncio.create_task(caller.run("shop", hangs.address, BODY))
        await eventually(lambda: hangs.open == 1, deadline=DEADLINE_S)
        call.cancel()
        await asyncio.wait([call])
        assert await caller.run("shop", server.address, BODY) == Taken()
