"""Workers that die, on virtual time: what does it cost the commands beside the one that ended them?"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, cast

from orchestrix import Command, Context
from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import COMMANDS, EVENTS, saga_topology
from orchestrix.config.settings import Settings
from orchestrix.persistence.engine import Database
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.virtual_time import VirtualLoop, VirtualProcess, current_process
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from tests.fakes.rows import Rows

from .rig import CATALOG, CREATE, CREATED, FAILED, command

BACK_AFTER = 1.0
"""Seconds after which a dead worker is started again."""


class Town:
    """A broker, the rows of sagas, and workers that are started again whenever they die.

    `work` is the seconds that a command takes, if `long` does not say otherwise; a poisonous one ends its process after
    `fuse` seconds. `deaths` counts the processes that ended, `ended` are the events of each app.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        rows: Rows,
        seed: int,
        *,
        work: float = 0.01,
        poison: Collection[int] = (),
        fuse: float = 0.0,
        limit: int | None = 20,
        **settings: Any,
    ) -> None:
        self.loop, self.rows, self.dice = loop, rows, Random(seed)
        self.poison, self.deaths = set(poison), 0
        self.ended: dict[int, list[Outgoing]] = {}
        self.begun: Counter[int] = Counter()
        self.long: dict[int, float] = {}
        self.workers: dict[str, tuple[VirtualProcess, Worker]] = {}
        self._work, self._fuse, self._settings = work, fuse, Settings.model_validate({"worker": settings})
        self.server = MemoryServer(self.dice, delay=lambda: self.dice.uniform(0.0005, 0.002), delivery_limit=limit)
        self.server.declare(saga_topology(CATALOG))
        self.server.observers.append(self)

    def send(self, ids: Sequence[int], headers: Mapping[str, str | int] | None = None) -> None:
        """Their first commands, in this order."""
        for id in ids:
            self.rows.put(id)
            one = command(id, timeout_ms=7_200_000 if id in self.long else 60_000)
            self.server.put(
                CREATE,
                Outgoing(COMMANDS, CREATE, one.body(), one.id, one.correlation_id, one.type, headers=headers or {}),
            )

    def boot(self, name: str) -> None:
        """Starts a worker, and again whenever it dies."""
        process = self.loop.process(name)
        process.spawn(self._main(process, name))

    def kill(self, name: str) -> None:
        """As `kill -9` does."""
        self.workers[name][0].kill()

    async def until(self, condition: Callable[[], bool], within: float) -> float:
        """The seconds until the condition holds."""
        began = self.loop.time()
        while not condition():
            assert self.loop.time() - began < within, f"not within {within} s"
            await asyncio.sleep(0.1)
        return self.loop.time() - began

    def good(self, ids: Collection[int]) -> bool:
        """Whether each of these has succeeded, and none has failed."""
        assert not [id for id in ids for one in self.ended.get(id, ()) if one.routing_key == FAILED]
        return all(any(one.routing_key == CREATED for one in self.ended.get(id, ())) for id in ids)

    def errors(self, id: int) -> list[str]:
        """The types of the failures of an app."""
        bodies = [json.loads(one.body) for one in self.ended.get(id, ()) if one.routing_key == FAILED]
        return [body["error"]["type"] for body in bodies]

    # What the broker tells of messages.

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        """An event moves its saga, as the orchestrator would have it."""
        if message.exchange == EVENTS and message.routing_key in (CREATED, FAILED):
            id = json.loads(message.body)["appId"]
            self.ended.setdefault(id, []).append(message)
            self.rows.put(id, state="REGISTERING", command_id="m-0")

    def acknowledging(self, delivery: Delivery) -> None:
        """Nobody asks."""

    async def _main(self, process: VirtualProcess, name: str) -> None:
        broker = MemoryBroker(self.server, topology=saga_topology(CATALOG))
        process.on_death += [broker.disconnect, lambda: self._died(name)]
        worker = Worker(
            broker, cast(Database, self.rows), CATALOG, HandlerTable([(CREATE, self._handle)]), self._settings
        )
        self.workers[name] = process, worker
        await broker.start()
        await worker.start()

    def _died(self, name: str) -> None:
        self.deaths += 1
        self.loop.call_later(BACK_AFTER, self.boot, name)

    async def _handle(self, context: Context, command: Command) -> None:
        self.begun[context.app_id] += 1
        if context.app_id not in self.poison:
            return await asyncio.sleep(self.long.get(context.app_id, self._work))
        await asyncio.sleep(self._fuse)
        process = current_process()
        assert process is not None
        process.kill_after(1)  # from outside: what its death starts is not a dead one's
        await asyncio.Event().wait()
        return None
