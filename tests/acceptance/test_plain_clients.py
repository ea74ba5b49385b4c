"""Are plain clients, S1's own among them, served over ZeroMQ by whichever nodes there are, in both modes?"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx
import pytest

from orchestrix.domain.shards.diagnosis import unreleased
from orchestrix.domain.shards.state import ShardService
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import service_store
from tests.acceptance.system import System
from tests.documents import ROOT, block
from tests.integration.shards.sockets import SERVICE, PlainClient
from tests.processes import Process
from tests.servers.run import Run
from tests.support import NO_TLS, eventually, free_port

pytestmark = pytest.mark.servers

BRIEF: Final = {
    "ORCHESTRIX_SHARDS__WINDOW": "0.3",
    "HEARTBEAT_TIMEOUT_SECONDS": "6",
    "HEARTBEAT_CHECK_INTERVAL_SECONDS": "2",
}
BEAT_S: Final = 2.0
WITHIN_S: Final = 20.0
"""Three times what a change of the members takes at most: the time-out, a check, the window."""


@dataclass(frozen=True)
class Node:
    """A node with a ZeroMQ socket."""

    process: Process
    url: str
    endpoint: str


async def started(system: System, count: int, **env: str) -> list[Node]:
    made = []
    for _ in range(count):
        port = free_port()
        where = {"SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1", "SHARD_COORDINATOR_BIND_PORT": str(port)}
        process, url = system.node(port=None, ORCHESTRIX_SHARDS__ZMQ="on", **where, **env)
        made.append(Node(process, url, f"tcp://127.0.0.1:{port}"))
    for node in made:
        await system.ready(node.url)
    return made


@asynccontextmanager
async def joined(*clients: PlainClient) -> AsyncIterator[None]:
    """They register, and send heartbeats until the end of the block."""
    try:
        for one in clients:
            await one.register()
            one.beats(BEAT_S)
        yield
    finally:
        for one in clients:
            await one.close()


async def shared(clients: Sequence[PlainClient], *shares: range) -> None:
    wanted = [list(one) for one in shares]
    await eventually(lambda: [one.shards for one in clients] == wanted, deadline=WITHIN_S, message=f"shares {wanted}")


async def stored(system: System, service: str = SERVICE) -> ShardService:
    database = Database(system.database_url)
    try:
        async with database.read() as connection:
            found = await service_store.read(connection, service)
    finally:
        await database.close()
    assert found is not None
    return found.state


@pytest.mark.req("S1-21", "S1-22", "S1-23", "S1-24", "S1-25", "S1-26", "S1-27", "S1-28", "S1-29", "S1-30", "S1-31")
@pytest.mark.req("S1-20", "S1-32", "S1-33", "S1-34", "S1-35", "S1-36", "S1-37", "S1-38")
async def test_the_former_coordinators_rules_hold_for_clients_of_two_nodes(system: System) -> None:
    nodes = await started(system, 2, ORCHESTRIX_SHARDS__PLAIN="push", **BRIEF)
    clients = [PlainClient(nodes[place % 2].endpoint, worker_id=f"w-{place}") for place in (0, 1, 2)]
    try:
        for place, shares in enumerate(([range(10)], [range(5), range(5, 10)], [range(4), range(4, 7), range(7, 10)])):
            await clients[place].register()
            clients[place].beats(BEAT_S)
            await shared(clients[: place + 1], *shares)
        number = (await stored(system)).number
        clients[1].shards = None
        await clients[1].register()
        await shared(clients, range(4), range(4, 7), range(7, 10))
        assert (await stored(system)).number == number, "it has its cached assignment"
        clients[0].count = 12
        await shared(clients, range(4), range(4, 8), range(8, 12))
        for one in clients[1:]:
            one.count = 12
        await clients[1].close()
        await shared([clients[0], clients[2]], range(6), range(6, 12))
        assert "w-1" not in (await stored(system)).members
        for one in (clients[0], clients[2]):
            assert len(one.answers) > one.sent, "more than it has asked for, though some was only pushed"
    finally:
        for one in clients:
            await one.close()
    assert "member w-1 is inactive" in "".join(node.process.log() for node in nodes)


async def test_a_node_that_is_killed_takes_no_shard_from_a_client_that_knows_all_nodes(system: System) -> None:
    """By an identity of its own all nodes know the client as the same one, however often it sends heartbeats."""
    nodes = await started(system, 3, **BRIEF)
    client = PlainClient(*(node.endpoint for node in nodes), identity=b"w-1")
    async with joined(client):
        await shared([client], range(10))
        for place in (0, 1):
            nodes[place].process.kill9()
            before = len(client.answers)
            await eventually(lambda: len(client.answers) >= before + 6, deadline=60)  # noqa: B023
    assert [] not in client.answers
    assert client.errors == []
    assert "is inactive" not in "".join(node.process.log() for node in nodes)


async def test_a_client_without_an_identity_of_its_own_follows_to_the_nodes_that_are_left(system: System) -> None:
    """At the rate of S1's client, two thirds of the time-out, each node finds that the last one was silent for long."""
    nodes = await started(system, 3, **BRIEF)
    client = PlainClient(*(node.endpoint for node in nodes))
    try:
        await client.register()
        client.beats(BEAT_S * 2)
        await shared([client], range(10))
        nodes[0].process.kill9()
        before = len(client.answers)
        await eventually(lambda: len(client.answers) >= before + 4, deadline=60)
        await shared([client], range(10))
        known = (await stored(system)).members["w-1"]
        assert known.via is not None
        assert known.reply_to is not None
        assert known.reply_to.startswith("zmq:00")
    finally:
        await client.close()


# S1's own client.


class FormerClient:
    """The example of the manual as a process."""

    def __init__(self, run: Run, folder: Path, endpoint: str, worker_id: str) -> None:
        script = folder / "shard_worker.py"
        script.write_text(block(ROOT / "docs" / "shards-plain-clients.md", "python", "class ShardWorker"))
        self.endpoint, self.log_path = endpoint, folder / f"{worker_id}.log"
        argv = [sys.executable, str(script), endpoint, SERVICE, worker_id, "10"]
        self.popen = run.spawn(argv, env={"PATH": os.environ["PATH"]}, cwd=folder, log=self.log_path)

    def lines(self) -> list[str]:
        return self.log_path.read_text().splitlines()


@pytest.fixture
def former(server_run: Run, tmp_path: Path) -> Iterator[list[FormerClient]]:
    """Clients that the test has started."""
    made: list[FormerClient] = []
    yield made
    for one in made:
        server_run.kill(one.popen)


@pytest.mark.req("S1-39", "S1-40", "S1-41", "S1-52")
@pytest.mark.parametrize("mode", ["push", "protect"])
async def test_s1s_own_client_runs_unchanged(
    system: System, former: list[FormerClient], server_run: Run, tmp_path: Path, mode: str
) -> None:
    """It takes its first assignment and no other: what it has is another's only where the mode says so."""
    (node,) = await started(system, 1, ORCHESTRIX_SHARDS__PLAIN=mode)
    expected = {"push": "5, 6, 7, 8, 9", "protect": ""}[mode]
    for worker, assigned in (("w-1", ", ".join(map(str, range(10)))), ("w-2", expected)):
        former.append(FormerClient(server_run, tmp_path, node.endpoint, worker))
        said = [f"Connected to coordinator at {node.endpoint}", f"Assigned shards: {assigned}"]
        await eventually(lambda: former[-1].lines() == said, deadline=WITHIN_S)  # noqa: B023

    async def has_beaten_twice() -> bool:
        members = (await stored(system)).members
        return all(one.last_seen - one.joined_at > timedelta(seconds=15) for one in members.values())

    await eventually(has_beaten_twice, deadline=90, every=0.5)
    state = await stored(system)
    assert state.number == 2, "none was taken for silent"
    waiting = list(unreleased(state, state.members["w-1"].last_seen))
    assert [(one.worker_id, one.shards.size) for one in waiting] == ([] if mode == "push" else [("w-1", 5)])
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        health = (await http.get(f"{node.url}/health")).json()
    assert health["status"] == "healthy"
    assert health["checks"][0] == {"component": "Coordinator", "isHealthy": True}
    for one in former:
        one.popen.send_signal(signal.SIGINT)
        assert one.popen.wait(20) == 0, one.lines()
        assert one.lines()[2:] == ["Worker shutdown complete"]


# What keeps a node from listening.


async def test_a_port_that_is_taken_ends_the_node_with_a_sentence(system: System) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = {"SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1", "SHARD_COORDINATOR_BIND_PORT": str(port)}
        process, _ = system.node(port=None, ORCHESTRIX_SHARDS__ZMQ="on", **where)
        assert await process.exited(deadline=60) == 2
    assert "another process has that port: stop it, or choose another one" in process.log()
    assert f":{port}" in process.log()
    assert "Traceback" not in process.log()


async def test_a_node_that_anyone_could_reach_does_not_start(system: System) -> None:
    process, _ = system.node(ORCHESTRIX_SHARDS__ZMQ="on")
    assert await process.exited(deadline=60) == 2
    assert "anyone who can reach tcp://0.0.0.0:5555 could take shards" in process.log()
    assert "Traceback" not in process.log()
    port = free_port()
    open_to_all = {"ORCHESTRIX_SHARDS__ZMQ_AUTH": "none", "SHARD_COORDINATOR_BIND_PORT": str(port)}
    process, url = system.node(port=None, ORCHESTRIX_SHARDS__ZMQ="on", **open_to_all)
    await system.ready(url)
    listening = [json.loads(line) for line in process.log().splitlines() if '"shards.clients"' in line]
    assert [one["endpoint"] for one in listening] == [f"tcp://0.0.0.0:{port}"]
