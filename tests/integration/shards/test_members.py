"""Do members of the SDK share and hand off shards over each broker, whatever their connections and nodes do?"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrix import ShardMember
from orchestrix.bootstrap.context import COORDINATOR
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import service_store
from orchestrix.worker.shards.member import MemberState
from tests.conformance.port.rig import Proxy
from tests.integration.cli.test_permissions import allow
from tests.integration.shards.test_coordinators import SERVICE, SETTINGS, node_of
from tests.servers.run import Run
from tests.servers.shared import Broker
from tests.support import eventually

COUNT = 12
TIMEOUT_S = SETTINGS.shards.heartbeat_timeout


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    """The way to an empty broker, of each kind."""
    server = EmbeddedBroker() if request.param == "embedded" else None
    if server is not None:
        await server.start()
    made = Proxy(server.url if server is not None else str(request.getfixturevalue("rabbitmq_url")))
    await made.start()
    yield made
    await made.stop()
    if server is not None:
        await server.stop()


@pytest.fixture
async def database(sqlite_store: str) -> AsyncIterator[Database]:
    made = Database(sqlite_store)
    yield made
    await made.close()


@dataclass
class Log:
    """Who worked for which shard, from when to when."""

    spans: list[tuple[int, str, float, float]] = field(default_factory=list)

    def member(self, url: str, worker_id: str) -> ShardMember:
        """A member that notes its work."""
        began: dict[int, float] = {}

        async def work(shard: int, epoch: int) -> None:
            began[shard] = time.monotonic()
            await asyncio.Event().wait()

        async def flush(shard: int, epoch: int) -> None:
            self.spans.append((shard, worker_id, began.pop(shard), time.monotonic()))

        return ShardMember(SERVICE, worker_id, COUNT, work, flush, broker_url=url, heartbeat_timeout=TIMEOUT_S)

    def overlaps(self) -> list[tuple[object, object]]:
        ordered = sorted(self.spans, key=lambda one: (one[0], one[2]))
        return [(one, other) for one, other in pairwise(ordered) if one[0] == other[0] and one[3] > other[2]]


async def stored_members(database: Database, expected: set[str]) -> bool:
    async with database.read() as connection:
        stored = await service_store.read(connection, SERVICE)
    return stored is not None and set(stored.state.members) == expected


def owned(*members: ShardMember) -> bool:
    """Whether each shard is worked for by one of them."""
    return sorted(shard for member in members for shard in member.shards) == list(range(COUNT))


@pytest.mark.req("S1-4", "S1-37", "S4-23", "S4-25")
async def test_members_share_lose_connections_and_leave(database: Database, proxy: Proxy) -> None:
    log = Log()
    nodes = [node_of(database, proxy._target.human_repr(), name, COORDINATOR) for name in ("n-1", "n-2")]
    members = [log.member(proxy.url, f"w-{number}") for number in range(3)]
    try:
        for node in nodes:
            await node.start()
        for member in members:
            await member.__aenter__()
            assert await member.wait_joined(30)
        await eventually(lambda: owned(*members), deadline=30)
        before = len(log.spans)
        assert [len(member.shards) for member in members] == [4, 4, 4]
        proxy.cut()
        await nodes[0].stop()
        await eventually(lambda: proxy.connections >= 6, deadline=30)
        assert owned(*members)
        assert len(log.spans) == before, "nobody was interrupted"
        await members[0].leave()
        assert members[0].state is MemberState.LEFT
        await eventually(lambda: owned(*members[1:]), deadline=30)
        assert len(log.spans) >= before + 4
        await eventually(lambda: stored_members(database, {"w-1", "w-2"}), deadline=30)
    finally:
        await asyncio.gather(*(member.leave() for member in members))
        for node in nodes:
            await node.stop()
    assert log.overlaps() == []


async def test_a_member_without_its_broker_stops_and_works_again_when_it_is_back(
    database: Database, proxy: Proxy
) -> None:
    log = Log()
    node = node_of(database, proxy._target.human_repr(), "n-1", COORDINATOR)
    one = log.member(proxy.url, "w-1")
    await node.start()
    try:
        await proxy.stop()
        async with one:
            assert not await one.wait_joined(0.5)
            assert one.problem is not None
            await proxy.start()
            assert await one.wait_until(lambda _: owned(one), 30)
            first = dict(one.shards)
            await proxy.stop()
            assert await one.wait_until(lambda member: member.state is MemberState.EXPIRED, TIMEOUT_S * 2)
            assert await one.wait_until(lambda member: not member.revoking, TIMEOUT_S)
            assert len(log.spans) == COUNT
            await proxy.start()
            assert await one.wait_until(lambda _: owned(one), 60)
            assert all(one.shards[shard] >= epoch for shard, epoch in first.items())
    finally:
        await node.stop()
    assert log.overlaps() == []


STEPS = """
import asyncio, sys, time
from orchestrix import ShardMember

async def work(shard, epoch):
    while True:
        await asyncio.sleep(0.01)
        print(shard, epoch, time.monotonic(), flush=True)

async def main():
    async with ShardMember("orders", "w-1", 12, work, broker_url=sys.argv[1], heartbeat_timeout=9) as member:
        await member.wait_for_stop()

asyncio.run(main())
"""


@pytest.mark.req("S4-25")
async def test_a_process_that_stood_still_does_not_work_on_for_what_is_another_s(
    database: Database, server_run: Run, tmp_path: Path
) -> None:
    server = EmbeddedBroker()
    await server.start()
    node = node_of(database, server.url, "n-1", COORDINATOR)
    await node.start()
    log, output = Log(), tmp_path / "steps.log"
    other = log.member(server.url, "w-2")
    argv, environment = [sys.executable, "-c", STEPS, server.url], {"PATH": os.environ["PATH"]}
    process = server_run.spawn(argv, env=environment, cwd=tmp_path, log=output)

    def steps() -> list[tuple[int, int, float]]:
        found = re.findall(r"^(\d+) (\d+) ([\d.]+)$", output.read_text(), re.MULTILINE)
        return [(int(shard), int(epoch), float(at)) for shard, epoch, at in found]

    try:
        await eventually(lambda: len(steps()) > 100, deadline=30)
        process.send_signal(signal.SIGSTOP)
        async with other:
            assert await other.wait_until(lambda _: owned(other), TIMEOUT_S * 4)
            taken_at, before = time.monotonic(), steps()
            process.send_signal(signal.SIGCONT)
            await eventually(lambda: len(steps()) > len(before) + 100, deadline=60, message="it has a share again")
            newest = max(epoch for _, epoch, _ in before)
            late = [one for one in steps() if one[2] > taken_at and one[1] <= newest]
            assert len(late) <= 1, "that which was under way"
    finally:
        server_run.kill(process)
        await node.stop()
        await server.stop()


@pytest.mark.servers
async def test_a_broker_that_refuses_its_queue_is_named_and_tried_again(
    rabbitmq_server: Broker, rabbitmq_url: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(rabbitmq_url)
    host, user = parts.path[1:], parts.username or "guest"
    node = node_of(database, rabbitmq_url, "n-1", COORDINATOR)
    await node.start()
    one = Log().member(rabbitmq_url, "w-1")
    try:
        await node_is_there(rabbitmq_url)
        allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, "^$", ".*", ".*"])
        async with one:
            with pytest.raises(ConfigError, match=r"orchestrix\.shard\.member"):
                await one.wait_joined(30)
            assert "orchestrix.shard.member" in (one.problem or "")
            allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, ".*", ".*", ".*"])
            await eventually(lambda: owned(one), deadline=60)
            assert one.problem is None
        assert caplog.text.count("is refused") == 1
    finally:
        allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, ".*", ".*", ".*"])
        await node.stop()


async def node_is_there(url: str) -> None:
    """Waits for the queue of the coordinators."""
    async with Log().member(url, "first") as member:
        assert await member.wait_joined(30)
