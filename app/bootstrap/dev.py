"""What is `dev` made of, and in which order do its parts start?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.bootstrap.node import Node, build_node
from app.bootstrap.ports import listening, nearby
from app.broker.devserver import DevServer
from app.broker.topology import WORKER_HEARTBEAT, is_channel
from app.config import Settings
from app.lifecycle import Service
from app.persistence import schema
from workers import Worker
from workers.sdk import assemble

ROLES = frozenset({"api", "orchestrator", "coordinator"})
HEARD_OUT: Final = 10.0
"""Seconds that the node has, once the worker has ended, to write what workers have said."""
LOOK: Final = 0.02

log = logging.getLogger("orchestrix")


@dataclass(frozen=True, slots=True)
class Development:
    """A node and a worker of one process over SQLite and the embedded broker."""

    settings: Settings
    broker_url: str
    node: Node
    worker: Service


@dataclass(frozen=True, slots=True)
class Hands:
    """The worker of the process. It has ended only when the node has written its last words: the broker that has them
    forgets all at its own end. `events` are the queues by which workers speak of sagas.
    """

    worker: Worker
    broker: DevServer
    events: Collection[str]
    patience: float

    async def start(self) -> None:
        """Begins to take work."""
        await self.worker.start()

    async def stop(self) -> None:
        """Takes no more, and ends as `Worker.stop`; then waits up to `HEARD_OUT` seconds until all is written."""
        if self.worker.jobs is not None and (held := self.worker.jobs.held):
            has = "1 job is" if held == 1 else f"{held} jobs are"
            log.warning("%s at work, with up to %g s to end; a second signal ends all at once", has, self.patience)
        await self.worker.stop()
        try:
            async with asyncio.timeout(HEARD_OUT):
                await self._all_heard()
        except TimeoutError:
            log.warning(
                "workers go on speaking, or not all that they have said could be written: what is missing is done again"
            )

    async def _all_heard(self) -> None:
        while True:
            if not any(left and self._is_said(queue) for queue, left in self.broker.unsettled().items()):
                return
            await asyncio.sleep(LOOK)  # the broker tells nobody what becomes of its messages

    def _is_said(self, queue: str) -> bool:
        """Whether workers speak by this queue: of sagas, of a job, or of themselves."""
        return queue in self.events or is_channel(queue) or queue.startswith(WORKER_HEARTBEAT)


@asynccontextmanager
async def development(settings: Settings, *, folder: Path, broker_ports: Sequence[int]) -> AsyncIterator[Development]:
    """The parts, with the broker and the schema ready and nothing else started; the broker ends with the block.

    Raises `ConfigError`, `DefinitionError` and `SchemaMismatch`.
    """
    local = _local(settings, folder)
    broker = DevServer()
    await broker.start(listening("127.0.0.1", nearby(*broker_ports)))
    try:
        assert local.database_url is not None
        await schema.upgrade(local.database_url)
        node = build_node(local, ROLES, broker.url, alone=True)
        worker = assemble(local, node.database, node.broker, node.catalog, name=node.name)
        hands = Hands(worker, broker, frozenset(node.catalog.events), local.worker.stop_timeout)
        yield Development(local, broker.url, node, hands)
    finally:
        await broker.stop()


def _local(settings: Settings, folder: Path) -> Settings:
    root = folder.resolve()
    root.mkdir(parents=True, exist_ok=True)
    return settings.model_copy(
        update={
            "database_url": settings.database_url or f"sqlite+aiosqlite:///{root / 'orchestrix.db'}",
            "git": settings.git.model_copy(update={"root": str(root / "repos")}),
        }
    )
