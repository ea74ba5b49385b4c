"""How does the bench run a cluster of real processes, and end some of them?"""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from orchestrix.persistence.schema import migrator
from tests.bench.evidence import Evidence
from tests.bench.product import READY, spawn
from tests.bench.servers import Servers
from tests.servers.sql import change_databases
from tests.support import eventually, free_port

NAMES: Final = ("ada", "bob", "cyd")
AT_ONCE: Final = 16
_ORCHESTRIX: Final = str(Path(sys.executable).with_name("orchestrix"))
_processes = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Node:
    """A node's process, and where it listens."""

    process: subprocess.Popen[bytes]
    url: str


class Cluster:
    """Nodes and workers of one database and one virtual host, both called `name`."""

    def __init__(self, servers: Servers, name: str, evidence: Evidence, settings: Mapping[str, str]) -> None:
        self.evidence = evidence
        self.nodes: dict[str, Node] = {}
        self._servers = servers
        self._name = name
        self._http = httpx.AsyncClient(trust_env=False, timeout=30)
        self._all: list[subprocess.Popen[bytes]] = []
        self._ending: dict[str, subprocess.Popen[bytes]] = {}
        self._env = {
            "ORCHESTRIX_DATABASE_URL": servers.postgres.url(name),
            "ORCHESTRIX_BROKER_URL": servers.rabbit.url(name),
            "ORCHESTRIX_GIT__PROVIDER": "none",
            "ORCHESTRIX_REGISTRATION__PROVIDER": "none",
            "ORCHESTRIX_WORKERS": "tests.bench.work",
            **settings,
        }

    async def start(self, *names: str) -> None:
        """Starts nodes, side by side; returns when all are ready."""
        for name in names:
            port = free_port()
            process = self._spawn(name, "serve", "--port", str(port), ORCHESTRIX_NODE_ID=name)
            self.nodes[name] = Node(process, f"http://127.0.0.1:{port}")
        await asyncio.gather(*(self._ready(name) for name in names))
        await eventually(self._led, deadline=READY, message="somebody leads")

    def work(self, places: int | None = None) -> None:
        """Starts a worker."""
        more = () if places is None else ("--concurrency", str(places))
        self._spawn("worker", "worker", *more)

    def execute(self, group: str, places: int) -> None:
        """Starts an executor."""
        admins = ",".join(node.url for node in self.nodes.values())
        arguments = (group, f"http://127.0.0.1:{free_port()}", admins, str(places))
        name = f"{self._name}-executor-{next(_processes)}"
        command = [sys.executable, "-m", "tests.bench.executor", *arguments]
        self._all.append(spawn(self._servers, name, command, {}))

    async def submit(self, handler: str, jobs: int, **payload: Any) -> None:
        """Puts jobs down, spread over the nodes."""
        turns, urls = asyncio.Semaphore(AT_ONCE), itertools.cycle([node.url for node in self.nodes.values()])

        async def one(url: str) -> None:
            async with turns:
                answer = await self._http.post(
                    f"{url}/jobs", json={"queue": "default", "handler": handler, "payload": payload}
                )
            assert answer.status_code == 201, answer.text

        await asyncio.gather(*(one(next(urls)) for _ in range(jobs)))

    async def run(self, jobs: int, every: float) -> None:
        """Puts jobs down that log a line every so many seconds; returns when so many more than before are at work."""
        wanted = jobs + await self.evidence.running()
        await self.submit("tick", jobs, every=every)

        async def all_run() -> bool:
            return await self.evidence.running() >= wanted

        await eventually(all_run, deadline=READY, every=0.1, message=f"{jobs} jobs run")

    async def follower(self) -> str:
        """The id of a node that does not lead."""
        _, leader = await self.evidence.term()
        return await self.evidence.node(next(name for name in self.nodes if name != name_of(leader)))

    async def end(self, node_id: str, number: signal.Signals) -> datetime:
        """Sends the signal to the node, which is none of the cluster's any more; when that was."""
        process = self._ending[node_id] = self.nodes.pop(name_of(node_id)).process
        at = await self.evidence.now()
        process.send_signal(number)
        return at

    async def ended(self, node_id: str) -> None:
        """Waits until its process is no more."""
        process = self._ending.pop(node_id)
        await asyncio.to_thread(process.wait, READY)
        self._all.remove(process)
        self._servers.run.forget(process)

    async def close(self) -> None:
        """Ends everything."""
        for process in self._all:
            self._servers.run.kill(process)
        await self._http.aclose()
        await self.evidence.close()

    def _spawn(self, what: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        name = f"{self._name}-{what}-{next(_processes)}"
        process = spawn(self._servers, name, [_ORCHESTRIX, *arguments], {**self._env, **more})
        self._all.append(process)
        return process

    async def _ready(self, name: str) -> None:
        async def answers() -> bool:
            try:
                return (await self._http.get(f"{self.nodes[name].url}/health/ready")).status_code == 200
            except httpx.HTTPError:
                return False

        await eventually(answers, deadline=READY, every=0.05, message=f"{name} is ready")

    async def _led(self) -> bool:
        return await self.evidence.led(0) is not None


def name_of(node_id: str) -> str:
    """What the node is called over all its lives."""
    return node_id.rpartition("-")[0]


@asynccontextmanager
async def cluster(servers: Servers, name: str, **settings: str) -> AsyncIterator[Cluster]:
    """A cluster of which nothing runs yet, on a database and a virtual host of its own."""
    await asyncio.to_thread(servers.rabbit.change_vhosts, [name], [])
    await asyncio.to_thread(change_databases, servers.postgres.url(), [name], [])
    await migrator.upgrade(servers.postgres.url(name))
    made = Cluster(servers, name, await Evidence.of(servers.plain_url(name)), settings)
    try:
        yield made
    finally:
        await made.close()
