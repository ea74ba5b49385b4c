"""Is there always one leader, and one only, among nodes that are killed, stopped, frozen and left without broker?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from orchestrix import clock
from orchestrix.domain.leases import LeaderMode
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.cluster.leases import Handover
from orchestrix.persistence.engine import Database
from tests.acceptance.system import System
from tests.processes import Process
from tests.servers.rabbit import RabbitServer
from tests.support import NO_TLS, eventually

QUICK = {
    "ORCHESTRIX_CLUSTER__LEASE": "4",
    "ORCHESTRIX_CLUSTER__RENEW": "1",
    "ORCHESTRIX_CLUSTER__HEARTBEAT": "1",
    "ORCHESTRIX_CLUSTER__DEAD": "4",
    "ORCHESTRIX_CLUSTER__PRESENCE": "0.5",
    "ORCHESTRIX_LOG__FORMAT": "json",
}
KILLED = timedelta(seconds=3)
LEFT = timedelta(seconds=1.5)
"""Three times what is promised: tests share their machine."""


class Nodes:
    """Three processes, and what the database says of them."""

    def __init__(self, system: System, database: Database) -> None:
        self.system, self._database = system, database
        self.running: dict[str, tuple[Process, str]] = {}

    async def start(self, *names: str) -> None:
        """Starts nodes, and waits until they are ready."""
        for name in names:
            self.running[name] = self.system.node(port=None, **{"ORCHESTRIX_NODE_ID": name, **QUICK})
        for name in names:
            await self.system.ready(self.running[name][1])

    def process(self, node_id: str) -> Process:
        """The process of the node with that id."""
        return self.running[node_id.rpartition("-")[0]][0]

    def gone(self, node_id: str) -> str:
        """Its process is no more; its name."""
        name = node_id.rpartition("-")[0]
        del self.running[name]
        return name

    async def cluster(self) -> dict[str, Any]:
        """`GET /cluster`, which is the same on every node."""
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=10) as http:

            async def same() -> dict[str, Any] | None:
                answers = await asyncio.gather(*(http.get(f"{url}/cluster") for _, url in self.running.values()))
                assert {answer.status_code for answer in answers} == {200}, answers[0].text
                first: dict[str, Any] = answers[0].json()
                stable = [{**answer.json(), "lease": None, "nodes": None} for answer in answers]
                return first if all(one == stable[0] for one in stable) else None

            found: dict[str, Any] | None = await eventually(same, deadline=5, message="every node says the same")
        assert found is not None
        return found

    async def leader(self) -> str:
        """The id of the node that leads."""

        async def led() -> str | None:
            found: str | None = (await self.cluster())["leader"]
            return found

        found = await eventually(led, deadline=15, message="somebody leads")
        assert found is not None
        return found

    async def handovers(self) -> list[Handover]:
        """The last ones, the newest first."""
        async with self._database.read() as connection:
            return await leases.last_handovers(connection, 100)

    async def written(self, after: int, *, deadline: float) -> Handover:
        """The first term after `after` whose leader has written in it."""

        async def found() -> Handover | None:
            later = [one for one in await self.handovers() if one.term > after and one.ended_at is not None]
            return later[-1] if later else None

        handover = await eventually(found, deadline=deadline, every=0.05, message=f"a leader after term {after}")
        assert handover is not None
        return handover

    async def state(self, node_id: str, wanted: str, *, deadline: float = 10.0) -> None:
        """Waits until the node's row says so."""

        async def said() -> bool:
            nodes = (await self.cluster())["nodes"]
            return any(node["id"] == node_id and node["state"] == wanted for node in nodes)

        await eventually(said, deadline=deadline, message=f"{node_id} is {wanted}")


async def term_of(nodes: Nodes) -> int:
    return int((await nodes.cluster())["term"])


def took(handover: Handover, since: datetime) -> timedelta:
    assert handover.ended_at is not None
    return handover.ended_at - since


@pytest.mark.req("DC-7", "S0-2", "S0-7", "S0-10", "S0-54", "S0-72")
async def test_there_is_always_one_leader(
    system_on: Callable[[str, str], System], postgres_url: str, private_rabbitmq: Callable[[], RabbitServer]
) -> None:
    broker = await asyncio.to_thread(private_rabbitmq)
    database = Database(postgres_url, pool_size=2)
    nodes = Nodes(system_on(postgres_url, broker.url()), database)
    await nodes.start("ada", "bob", "cyd")
    await _killed(nodes)
    await _left(nodes)
    await _frozen(nodes)
    await _without_broker(nodes, broker)
    handovers = await nodes.handovers()
    terms = [one.term for one in handovers]
    assert terms == list(range(len(terms), 0, -1)), "each term once, without a gap"
    assert all(one.to_holder for one in handovers)
    await database.close()


async def _killed(nodes: Nodes) -> None:
    """kill -9: the broker hands the token on, and the dead one is missed by its queue."""
    dead, term = await nodes.leader(), await term_of(nodes)
    at = clock.now()
    nodes.process(dead).kill9()
    name = nodes.gone(dead)
    handover = await nodes.written(term, deadline=10)
    assert took(handover, at) < KILLED, handover
    assert (handover.from_holder, handover.reason) == (dead, "lost")
    await nodes.state(dead, "DEAD")
    await nodes.start(name)


async def _left(nodes: Nodes) -> None:
    """SIGTERM: the leader resigns first of all."""
    gone, term = await nodes.leader(), await term_of(nodes)
    at = clock.now()
    process = nodes.process(gone)
    process.terminate()
    handover = await nodes.written(term, deadline=10)
    assert took(handover, at) < LEFT, handover
    assert (handover.from_holder, handover.reason) == (gone, "resigned")
    assert await process.exited(deadline=20) == 0
    name = nodes.gone(gone)
    await nodes.state(gone, "LEFT")
    await nodes.start(name)


async def _frozen(nodes: Nodes) -> None:
    """SIGSTOP: the lease ends. Awake again, the former leader writes nothing, and joins as another node."""
    frozen, term = await nodes.leader(), await term_of(nodes)
    process = nodes.process(frozen)
    process.pause()
    running = nodes.running
    name = frozen.rpartition("-")[0]
    nodes.running = {other: one for other, one in running.items() if other != name}
    handover = await nodes.written(term, deadline=20)
    assert (handover.from_holder, handover.reason) == (frozen, "expired")
    await nodes.state(frozen, "DEAD", deadline=20)
    process.resume()
    refused = await process.wait_for_line(r"[^\n]*nothing was written[^\n]*", deadline=10)
    assert frozen in json.loads(refused[0])["message"]
    await process.wait_for_line("rejoining the cluster as node", deadline=15)
    nodes.running = running


async def _without_broker(nodes: Nodes, broker: RabbitServer) -> None:
    """The broker is away: somebody leads alone, until it is back."""
    term = await term_of(nodes)
    await asyncio.to_thread(broker.stop)
    alone = await nodes.written(term, deadline=15)
    assert alone.mode is LeaderMode.BROKERLESS
    assert (await nodes.cluster())["mode"] == "alone"
    await asyncio.to_thread(broker.start)

    async def linked() -> bool:
        return bool((await nodes.cluster())["mode"] == "broker")

    await eventually(linked, deadline=20, every=0.2, message="a leader has the broker again")
    living = [node["id"] for node in (await nodes.cluster())["nodes"] if node["state"] == "ALIVE"]
    assert len(living) == 3, "nobody died of it"
