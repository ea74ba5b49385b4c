"""Simulated processes: the real node and the real worker, as processes that can be killed and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orchestrix.bootstrap.context import NodeSignals
from orchestrix.bootstrap.health_checks import DatabaseWatch
from orchestrix.broker.topology import saga_topology
from orchestrix.config.settings import Settings
from orchestrix.jobs.step_jobs import StepJobs
from orchestrix.node import Node, build_node
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.job_worker import Do, JobStepWorker
from orchestrix.testing.simulation.virtual_time import VirtualLoop, VirtualProcess, outside_context
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker

SETTINGS: Final = Settings()
PING_INTERVAL_S: Final = 60.0
"""Seconds between two database pings, which always succeed here."""


class SharedWorld:
    """What the processes share. `do` executes the jobs of steps, where there are any."""

    def __init__(self, loop: VirtualLoop, file: SqliteFile, server: MemoryServer, catalog: Catalog) -> None:
        self.loop, self.file, self.server, self.catalog = loop, file, server, catalog
        self.on_event: Callable[[str, str], None] = lambda who, what: None
        self.failed: Callable[[BaseException], None] = lambda error: None
        self.do: Do | None = None


class SimulatedProcess:
    """A process that can be killed and restarted. `ready` is set while it runs, `gone` while it does not."""

    def __init__(self, name: str, world: SharedWorld) -> None:
        self.name = name
        self.world = world
        self.boots = 0
        self.ready, self.gone = asyncio.Event(), asyncio.Event()
        self.process: VirtualProcess | None = None

    def start(self) -> None:
        """Starts it as a new process."""
        self.boots += 1
        self.process = process = self.world.loop.process(f"{self.name}-{self.boots}")
        self.gone.clear()
        process.spawn(self._main(process)).add_done_callback(self._ended)

    def kill(self, back_after: float) -> None:
        """Kills it now, and starts it again later."""
        process, self.process = self.process, None
        if process is not None:
            self.ready.clear()
            self.gone.set()
            process.kill()
            self.world.loop.call_later(back_after, self._again, context=outside_context())

    def is_in(self, process: VirtualProcess | None) -> bool:
        """Whether it currently runs as that process."""
        return process is not None and self.process is process

    def _again(self) -> None:
        self.world.on_event(self.name, "is started again")
        self.start()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.failed(error)

    async def _main(self, process: VirtualProcess) -> None:
        client = SqliteClient(self.world.file)
        broker = MemoryBroker(self.world.server, topology=saga_topology(self.world.catalog))
        process.on_death += [client.disconnect, broker.disconnect]
        await self._live(process.name, client.database(), broker)
        self.ready.set()

    async def _live(self, name: str, database: Database, broker: MemoryBroker) -> None:
        """Starts the parts of the process."""


class NodeProcess(SimulatedProcess):
    """A node with all its roles."""

    node: Node

    async def _live(self, name: str, database: Database, broker: MemoryBroker) -> None:
        signals = NodeSignals()
        self.node = build_node(
            SETTINGS,
            database=database,
            broker=broker,
            roles=frozenset(("api", "orchestrator")),
            catalog=self.world.catalog,
            name=name,
            database_watch=DatabaseWatch(database, interval_s=PING_INTERVAL_S),
            signals=signals,
            step_jobs=await self._job_steps(database, signals.outbox_ready.set),
        )
        await self.node.start()
        await self.node.begin()
        await self.node.settled()

    async def _job_steps(self, database: Database, sent: Callable[[], None]) -> StepJobs | None:
        """The jobs of steps, executed here at once."""
        if self.world.do is None:
            return None
        worker = JobStepWorker(database, self.world.do, sent)
        await worker.start()
        return StepJobs(worker.notify, stop=lambda stops: None, sent=sent, on_change=worker.changed)


class WorkerProcess(SimulatedProcess):
    """A worker for every command."""

    def __init__(self, name: str, world: SharedWorld, handlers: HandlerTable) -> None:
        super().__init__(name, world)
        self._handlers = handlers

    async def _live(self, name: str, database: Database, broker: MemoryBroker) -> None:
        worker = Worker(broker, database, self.world.catalog, self._handlers, SETTINGS)
        await broker.start()
        await worker.start()
        await broker.wait_connected()
