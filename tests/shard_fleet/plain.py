"""How does a plain client work on shards that follows what it is assigned, over ZeroMQ?

It has no lease and no epochs. To all nodes it is the same one, by an identity of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Final

import zmq
import zmq.asyncio

from tests.shard_fleet.intervals import BEGIN, END, STOP, Entry, Holder, machine_time
from tests.shard_fleet.log import Log

BEAT_S: Final = float(os.environ.get("FLEET_PLAIN_BEAT", "1"))
NO_EPOCH: Final = float("nan")
"""Neither above nor below that of another holder."""


class PlainWork:
    """What one client does for its shards."""

    def __init__(self, log: Log, service: str, worker: str, count: int, *, endpoints: list[str]) -> None:
        self._log, self._service, self._count = log, service, count
        self._holder = Holder(worker, f"plain-{os.getpid()}")
        self._running: set[int] = set()
        self._answered = False
        self.leaving = asyncio.Event()
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.IDENTITY, f"{service}/{worker}/{os.getpid()}".encode())
        for one in endpoints:
            self._socket.connect(one)

    async def run(self) -> None:
        """Takes part until `leaving`."""
        tasks = [asyncio.create_task(self._report()), asyncio.create_task(self._follow())]
        await self.leaving.wait()
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)
        self._take([])
        await self._say("leave")
        self._socket.close(linger=1000)

    def set_shard_count(self, count: int) -> None:
        """From the next heartbeat on."""
        self._count = count

    async def _report(self) -> None:
        while True:
            if self._answered:
                await self._say("heartbeat", maxShardCount=self._count, assignedShards=sorted(self._running))
            else:
                await self._say("register", maxShardCount=self._count)
            await asyncio.sleep(BEAT_S)

    async def _follow(self) -> None:
        while True:
            (body,) = await self._socket.recv_multipart()
            self._answered = True
            self._take(json.loads(body)["data"]["assignedShards"])

    async def _say(self, kind: str, **data: Any) -> None:
        about = {"serviceName": self._service, "workerId": self._holder.worker, **data}
        await self._socket.send(json.dumps({"type": kind, "data": about}).encode())

    def _take(self, shards: list[int]) -> None:
        for shard in sorted(self._running - set(shards)):
            self._running.discard(shard)
            self._write(STOP, shard)
            self._write(END, shard)
        for shard in sorted(set(shards) - self._running):
            self._running.add(shard)
            self._write(BEGIN, shard, NO_EPOCH)

    def _write(self, kind: str, shard: int, value: float = 0.0) -> None:
        self._log.write(Entry(kind, machine_time(), self._service, self._holder, shard, value))
