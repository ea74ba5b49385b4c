"""Which shards do the members in one process work on, as a test tells them to join and to leave?

    BENCH_PORT=… ORCHESTRIX_BROKER_URL=… python -m tests.shard_fleet.program LOG

does what it is ordered over the socket of `tests.bench.control`, one order a line, and writes to LOG what
`tests.shard_fleet.intervals` reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from orchestrix import ShardMember
from orchestrix.domain.shards.state import Assignment
from tests.bench.control import PORT, Answer, Order
from tests.shard_fleet.intervals import BEGIN, END, LATE, LEASE, STOP, Entry, Holder, machine_time
from tests.shard_fleet.log import Log
from tests.shard_fleet.plain import PlainWork

LAST_WORK_S: Final = float(os.environ.get("FLEET_LAST_WORK", "0.2"))
"""Seconds that the end of the work on a shard takes at most."""
STEP_S: Final = 1.0
"""Seconds of one step of the work, of which none may begin after the lease."""


class Work:
    """What one member does for its shards."""

    def __init__(self, log: Log, service: str, worker: str, count: int, **more: Any) -> None:
        self._log, self._service = log, service
        self._dice = Random(f"{service}:{worker}")
        self.member = ShardMember(service, worker, count, self._work, self._finish, **more)
        self._holder = Holder(worker, self.member.instance)
        self._session = self.member._session  # what it says of its lease
        self._receive, self._session.receive = self._session.receive, self._received  # type: ignore[method-assign]
        self.leaving = asyncio.Event()

    async def run(self) -> None:
        """Takes part until `leaving`."""
        async with self.member:
            await self.leaving.wait()

    def set_shard_count(self, count: int) -> None:
        """From now on."""
        self.member.set_shard_count(count)

    def _received(self, got: Assignment, now: float) -> bool:
        before = self._session.lease_until
        counts = self._receive(got, now)
        if self._session.lease_until > before:
            self._write(LEASE, -1, self._session.lease_until)
        return counts

    async def _work(self, shard: int, epoch: int) -> None:
        self._write(BEGIN, shard, epoch)
        try:
            await asyncio.sleep(self._dice.uniform(0.0, STEP_S))
            while True:
                if machine_time() > self._session.lease_until:
                    self._write(LATE, shard, self._session.lease_until)
                await asyncio.sleep(STEP_S)
        finally:
            self._write(STOP, shard)

    async def _finish(self, shard: int, epoch: int) -> None:
        try:
            if LAST_WORK_S:
                await asyncio.sleep(self._dice.uniform(0.0, LAST_WORK_S))
        finally:
            self._write(END, shard)

    def _write(self, kind: str, shard: int, value: float = 0.0) -> None:
        self._log.write(Entry(kind, machine_time(), self._service, self._holder, shard, value))


class Members:
    """All members of this process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._running: dict[str, tuple[Work | PlainWork, asyncio.Task[None]]] = {}

    async def obey(self, order: Order) -> Answer:
        """What came of an order."""
        orders: dict[str, Callable[..., Awaitable[Answer]]] = {
            "join": self.join,
            "count": self.count,
            "leave": self.leave,
        }
        return await orders[order.pop("do")](**order)

    async def join(self, service: str, worker: str, count: int, **more: Any) -> Answer:
        """A member begins to take part; whether it has is not waited for. One with `endpoints` is a plain client."""
        make = PlainWork if "endpoints" in more else Work
        work = make(self._log, service, worker, count, **more)
        self._running[worker] = work, asyncio.create_task(work.run())
        return {}

    async def count(self, worker: str, count: int) -> Answer:
        """It says that the service has so many shards."""
        self._running[worker][0].set_shard_count(count)
        return {}

    async def leave(self, worker: str) -> Answer:
        """It has left when this returns; how many seconds that took."""
        work, task = self._running.pop(worker)
        began = time.monotonic()
        work.leaving.set()
        await task
        return {"seconds": time.monotonic() - began}


async def main() -> None:
    """Obeys until the test hangs up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]))
    members = Members(Log(sys.argv[1]))
    writer.write(b"{}\n")
    while line := await reader.readline():
        writer.write(json.dumps(await members.obey(json.loads(line))).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
