"""Does the ZeroMQ socket answer each client, and can none of them, nor all together, harm the node?"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import zmq
import zmq.asyncio
import zmq.auth

from orchestrix.broker.port import Broker
from orchestrix.domain.shards import messages
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.shards.forwarding import ForwardedPushes
from orchestrix.shards.rabbitmq import Handled, MemberAnswer, MemberRequest
from orchestrix.shards.zmq import MAX_FRAME_BYTES, ClientSocket, CurveKeys, ZmqTransport
from orchestrix.telemetry import log_events
from tests.integration.shards.sockets import PlainClient, shaken, taken_of_a_frame
from tests.support import eventually, logged

ANYWHERE = "tcp://127.0.0.1:0"
BIG = 20 * 1024 * 1024


class Echo:
    """Answers each request with an assignment of one shard. `judge` may raise before."""

    def __init__(self) -> None:
        self.seen: list[MemberRequest] = []
        self.judge: Callable[[Sequence[MemberRequest]], None] = lambda requests: None
        self.size = 0

    async def handle(self, requests: Sequence[MemberRequest]) -> Sequence[Handled]:
        self.judge(requests)
        self.seen += requests
        return [self._handled(one) for one in requests]

    async def current(self, addresses: Collection[str]) -> Sequence[MemberAnswer]:
        return [MemberAnswer(one, messages.refusal("pushed")) for one in addresses]

    def refusal(self, problem: str) -> bytes:
        return messages.refusal(problem)

    def _handled(self, one: MemberRequest) -> Handled:
        if one.body == b"bad":
            return Handled(unreadable="type: must be register")
        assert one.reply_to is not None
        body = json.dumps({"type": "assignment", "data": {"assignedShards": [7], "more": "x" * self.size}})
        return Handled([MemberAnswer(one.reply_to, body.encode(), via=one.via)])


class Scene:
    """A socket whose clients are answered by `echo`."""

    def __init__(self, keys: CurveKeys | None = None) -> None:
        self.socket = ClientSocket(ANYWHERE, keys)
        self.echo, self.forwarded, self.node = Echo(), ForwardedPushes(), "n-1"
        self.clients: list[PlainClient] = []
        self.transport = ZmqTransport(self.socket, self.echo, cast(Broker, None), lambda: self.node, self.forwarded)

    def client(self, identity: bytes | None = None) -> PlainClient:
        self.clients.append(PlainClient(self.socket.endpoint, identity=identity))
        return self.clients[-1]

    async def __aenter__(self) -> Scene:
        await self.socket.start()
        await self.transport.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.clients:
            await one.close()
        await self.transport.stop()
        await self.socket.stop()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with Scene() as made:
        yield made


async def answered(client: PlainClient, count: int = 1) -> None:
    await eventually(lambda: len(client.answers) >= count, deadline=10, message=f"{client.worker_id} is answered")


@pytest.mark.req("S1-3", "S1-47", "S1-50", "S1-51")
async def test_each_client_is_answered_with_one_frame_at_its_own_identity(scene: Scene) -> None:
    clients = [scene.client(), scene.client(b"my-own"), scene.client()]
    for one in clients:
        await one.register()
    for one in clients:
        await answered(one)
        assert one.answers == [[7]]
    assert len({one.reply_to for one in scene.echo.seen}) == 3
    assert "zmq:" + b"my-own".hex() in {one.reply_to for one in scene.echo.seen}
    assert {one.via for one in scene.echo.seen} == {"n-1"}
    assert scene.socket.counts.sent == scene.socket.counts.received == 3


async def test_a_client_that_connects_again_under_its_identity_is_answered_there(scene: Scene) -> None:
    """The node may not have noticed yet that its former connection is gone."""
    with await asyncio.to_thread(shaken, scene.socket.endpoint, b"c-1") as former:
        former.sendall(b"\x00\x04body")
        await eventually(lambda: scene.socket.counts.sent == 1, deadline=10)
        client = scene.client(b"c-1")
        await client.register()
        await answered(client)
        scene.forwarded.add(["zmq:" + b"c-1".hex()])
        await answered(client, 2)


async def test_what_cannot_be_read_is_answered_with_what_is_wrong_and_logged_now_and_then(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    client = scene.client()
    wrong = {
        (b"a", b"b"): "2 frames: send one, from a DEALER socket",
        (b"", b"{}"): "2 frames: send one",
        (b"x" * 65_537,): "too-large: 65537 bytes, at most 65536",
        (b"bad",): "type: must be register",
    }
    for place, (frames, said) in enumerate(wrong.items(), 1):
        await client.send(*frames)
        await answered(client, place)
        assert said in client.errors[-1]
        assert client.answers[-1] == []
    long = scene.client(b"i" * 101)
    await long.register()
    await answered(long)
    assert "101 bytes: at most 100" in long.errors[0]
    for place in range(50):
        await client.send(b"a", b"b", str(place).encode())
    await answered(client, len(wrong) + 50)
    assert scene.socket.counts.wrong == len(wrong) + 51
    lines = [one for one in logged(caplog, log_events.SHARD_CLIENTS) if one["level"] == "WARNING"]
    assert len(lines) == 1
    await client.register()
    await answered(client, len(wrong) + 51)
    assert client.answers[-1] == [7]


async def test_a_frame_of_20_mb_is_cut_off_before_it_costs_memory(scene: Scene) -> None:
    for _ in range(10):
        raw = await asyncio.to_thread(shaken, scene.socket.endpoint)
        with raw:
            taken = await asyncio.to_thread(taken_of_a_frame, raw, BIG)
        assert taken < BIG // 2, "it is refused by its size, not when it is there"
    raw = await asyncio.to_thread(shaken, scene.socket.endpoint)
    with raw:
        taken = await asyncio.to_thread(taken_of_a_frame, raw, MAX_FRAME_BYTES)
        assert taken == MAX_FRAME_BYTES, "the raw client speaks as it should"
        await eventually(lambda: scene.socket.counts.wrong == 1, deadline=10)
    client = scene.client()
    await client.register()
    await answered(client)


async def test_answers_for_a_client_that_is_gone_or_does_not_read_are_dropped(scene: Scene) -> None:
    deaf = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.connect(scene.socket.endpoint)
    scene.echo.size = 200_000
    try:
        for place in range(400):
            await deaf.send(str(place).encode())
        await eventually(lambda: scene.socket.counts.full > 0, deadline=20)
    finally:
        deaf.close(linger=0)
    to = scene.echo.seen[0].reply_to
    assert to is not None

    async def is_gone() -> bool:
        await scene.transport.send([MemberAnswer(to, b"{}", via="n-1")])
        return scene.socket.counts.gone > 0

    await eventually(is_gone, deadline=10)
    await scene.transport.send([MemberAnswer("zmq:no", b"{}", via="n-1"), MemberAnswer("queue", b"{}", via="n-1")])
    client = scene.client()
    await client.register()
    await answered(client)


async def test_what_other_nodes_ask_for_is_sent_and_answers_under_a_former_id_are_this_nodes(scene: Scene) -> None:
    client = scene.client(b"c-1")
    await client.register()
    await answered(client)
    pushed = messages.refusal("pushed")
    scene.forwarded.add(["zmq:" + b"c-1".hex()])
    await answered(client, 2)
    scene.node = "n-2"  # it was declared dead, and has joined again
    await client.beat()
    await answered(client, 3)
    assert scene.echo.seen[-1].via == "n-2"
    await scene.transport.send([MemberAnswer("zmq:" + b"c-1".hex(), pushed, via="n-1")])
    await answered(client, 4)
    assert client.errors == ["pushed", "pushed"]


async def test_what_cannot_be_handled_yet_waits_each_clients_equal_heartbeats_as_one(scene: Scene) -> None:
    def away(requests: Sequence[MemberRequest]) -> None:
        raise Unavailable("no database")

    scene.echo.judge = away
    clients = [scene.client(), scene.client()]
    for _ in range(30):
        for one in clients:
            await one.beat()
    await eventually(lambda: scene.socket.counts.received == 60, deadline=10)
    assert len(scene.socket.waiting) == 2
    await scene.transport.stop()  # other nodes may have their database, and this one goes on listening
    late = scene.client()
    await late.register()
    await eventually(lambda: len(scene.socket.waiting) == 3, deadline=10)
    scene.echo.judge = lambda requests: None
    await scene.transport.start()
    for one in (*clients, late):
        await answered(one)
    assert len(scene.echo.seen) == 3
    assert len(scene.socket.waiting) == 0


async def test_one_message_that_fails_for_an_unforeseen_reason_is_refused_alone(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(requests: Sequence[MemberRequest]) -> None:
        if any(one.body == b"bug" for one in requests):
            raise LookupError("a bug")

    scene.echo.judge = fails
    await scene.transport.stop()
    clients = [scene.client() for _ in range(3)]
    for one in clients:
        await (one.send(b"bug") if one is clients[1] else one.register())
    await eventually(lambda: len(scene.socket.waiting) == 3, deadline=10)
    await scene.transport.start()
    for one in clients:
        await answered(one)
    assert [one.answers for one in clients] == [[[7]], [[]], [[7]]]
    assert clients[1].errors == ["failed: LookupError"]
    assert "cannot be handled" in caplog.text


async def test_a_port_that_is_taken_is_a_wrong_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = ClientSocket(f"tcp://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match=f":{port}: another process has that port: stop it, or choose another"):
            await made.start()
        await made.stop()
    await made.start()
    await made.stop()


async def test_an_address_that_this_machine_does_not_have_is_a_wrong_setting() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot listen for shard clients on tcp://192\.0\.2\.1:0 \(.*address\): choose"
    ):
        await ClientSocket("tcp://192.0.2.1:0").start()


# CURVE.


@asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Scene]:
    clients = folder / "clients"
    clients.mkdir()
    _, secret = zmq.auth.create_certificates(folder, "server")
    zmq.auth.create_certificates(clients, "known")
    async with Scene(CurveKeys(Path(secret), clients)) as made:
        yield made


def key(client: PlainClient, server: Path, secret: Path) -> None:
    public, mine = zmq.auth.load_certificate(secret)
    assert mine is not None
    client.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    client.socket.setsockopt(zmq.CURVE_SECRETKEY, mine)
    client.socket.setsockopt(zmq.CURVE_SERVERKEY, zmq.auth.load_certificate(server)[0])


async def test_with_curve_only_clients_with_a_known_key_are_read(tmp_path: Path) -> None:
    async with secured(tmp_path) as scene:
        zmq.auth.create_certificates(tmp_path, "stranger")
        strangers = [PlainClient(worker_id="bare"), PlainClient(worker_id="stranger")]
        known = PlainClient(worker_id="known")
        scene.clients += [*strangers, known]
        key(strangers[1], tmp_path / "server.key", tmp_path / "stranger.key_secret")
        key(known, tmp_path / "server.key", tmp_path / "clients" / "known.key_secret")
        for one in scene.clients:
            one.socket.setsockopt(zmq.IMMEDIATE, 0)
            one.socket.connect(scene.socket.endpoint)
            await one.register()
        await answered(known)
        for _ in range(20):
            await known.beat()
        await answered(known, 2)
        assert {one.reply_to for one in scene.echo.seen} == {scene.echo.seen[0].reply_to}
        assert [one.answers for one in strangers] == [[], []]


async def test_a_key_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    zmq.auth.create_certificates(tmp_path, "server")
    for path, said in (
        (tmp_path / "none", "there is no file with the server's keys at .*none"),
        (tmp_path / "server.key", "has no secret key: name the file that ends with .key_secret"),
    ):
        with pytest.raises(ConfigError, match=said):
            await ClientSocket(ANYWHERE, CurveKeys(path, tmp_path)).start()
    with pytest.raises(ConfigError, match="there is no folder with public keys"):
        await ClientSocket(ANYWHERE, CurveKeys(tmp_path / "server.key_secret", tmp_path / "none")).start()


# Many.

CROWD = """
import sys, zmq
endpoint, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
context = zmq.Context()
for number in range(first, last):
    client = context.socket(zmq.DEALER)
    client.linger = 0
    client.identity = b"c-%d" % number
    client.connect(endpoint)
    client.send(b'{"type": "register", "number": %d}' % number)
    assert client.poll(20000), number
    client.recv()
    client.close()
context.term()
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def crowd(scene: Scene, first: int, last: int) -> None:
    arguments = (sys.executable, "-c", CROWD, scene.socket.endpoint, str(first), str(last))
    running = await asyncio.create_subprocess_exec(*arguments)
    assert await running.wait() == 0


async def test_10_000_identities_one_after_another_leave_nothing_behind(scene: Scene) -> None:
    await crowd(scene, 0, 2_000)
    scene.echo.seen.clear()
    files, before = len(os.listdir("/proc/self/fd")), resident_bytes()
    for first in range(2_000, 10_000, 2_000):
        await crowd(scene, first, first + 2_000)
        scene.echo.seen.clear()
    assert scene.socket.counts.received == scene.socket.counts.sent == 10_000
    assert len(scene.socket.waiting) == 0
    assert resident_bytes() - before < 8_000 * 1_000, "less than a kilobyte for each"
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files, deadline=10)
