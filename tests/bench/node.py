"""How does a node of the product start sagas in its own process and tell when each was committed as completed?

It is the node that `orchestrix serve` runs, HTTP included, with somebody inside who starts sagas on order.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from unittest import mock

from orchestrix import clock, server
from orchestrix.config.file import NAME, read
from orchestrix.config.settings import load
from orchestrix.engine.requests import StartedSaga, StartRequest
from orchestrix.node import Node
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart
from orchestrix.telemetry import logs, sinks
from tests.bench.control import PORT, Answer, Order
from tests.bench.product import ROOT


class Inside:
    """Starts sagas and takes the time of their last commit."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._ends: dict[str, float] | None = None
        self._completed = 0
        self._tell = node.engine.changes.committed
        node.engine.changes.committed = self._committed  # type: ignore[method-assign]

    def _committed(self, moved: Iterable[Instance]) -> None:
        moved = list(moved)
        now = time.monotonic()
        for one in moved:
            if one.state == "COMPLETED":
                self._completed += 1
                if self._ends is not None:
                    self._ends[one.key] = now
                if done := self._waiting.pop(one.key, None):
                    done.set_result(None)
        self._tell(moved)

    async def obey(self, order: Order) -> Answer:
        """What came of an order."""
        orders = (self.closed, self.open, self.record, self.ends)
        work: dict[str, Callable[..., Awaitable[Answer]]] = {one.__name__: one for one in orders}
        return await work[order.pop("do")](**order)

    async def closed(self, prefix: str, sagas: int, clients: int) -> Answer:
        """`clients` start one saga after the other, each when its last one has completed."""
        numbers = iter(range(sagas))

        async def client() -> None:
            for number in numbers:
                await self._start(f"{prefix}-{number}")

        await asyncio.gather(*(client() for _ in range(clients)))
        return {}

    async def open(self, prefix: str, sagas: int, rate: float) -> Answer:
        """Starts `rate` sagas a second, whatever becomes of them; milliseconds of each from when it was due."""
        began = time.monotonic()
        tasks = []
        for number in range(sagas):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self._timed(f"{prefix}-{number}", due)))
        return {"ms": await asyncio.gather(*tasks)}

    async def record(self) -> Answer:
        """From now on takes the time of each completion, also of sagas that come by HTTP."""
        self._ends, self._completed = {}, 0
        return {}

    async def ends(self, sagas: int, timeout: float) -> Answer:
        """The times (CLOCK_MONOTONIC) at which the recorded sagas completed, once there are that many."""
        until = time.monotonic() + timeout
        while self._completed < sagas and time.monotonic() < until:
            await asyncio.sleep(0.01)
        ends, self._ends = self._ends, None
        return {"ends": ends}

    async def _timed(self, key: str, due: float) -> float:
        await self._start(key)
        return 1000 * (time.monotonic() - due)

    async def _start(self, key: str) -> None:
        done = self._waiting[key] = asyncio.get_running_loop().create_future()
        started = await self._node.engine.starter.start(StartRequest("app", SagaStart(key, "bench", clock.uuid7(), {})))
        assert isinstance(started, StartedSaga)
        await done


async def serve() -> None:
    """Runs the node until the bench hangs up."""
    nodes: list[Node] = []
    ready: asyncio.Future[server.Running] = asyncio.get_running_loop().create_future()

    def build(*arguments: Any) -> Node:
        nodes.append(open_node(*arguments))
        return nodes[0]

    open_node, settings = server.__dict__["open_node"], load(file=read(ROOT / NAME, "bench"), http__port=0)
    with mock.patch.object(server, "open_node", build):
        serving = asyncio.create_task(
            server.run_serve(
                settings,
                roles=frozenset({"api", "orchestrator"}),
                broker_url=lambda: settings.broker_url or "",
                ready=ready.set_result,
            )
        )
        serving.add_done_callback(lambda _: ready.done() or ready.cancel())
        running = await ready
    await nodes[0].context.broker.wait_connected()
    await _obey(Inside(nodes[0]), running.api_url)


async def _obey(inside: Inside, url: str | None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]), limit=2**24)
    writer.write(json.dumps({"url": url}).encode() + b"\n")
    while line := await reader.readline():
        answer = await inside.obey(json.loads(line))
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    sinks.install()
    logs.setup(load(file=read(ROOT / NAME, "bench")).log, node="bench", role="node")
    asyncio.run(serve())
