"""Slowness: which tasks wait before their next transaction, as on a slow link to the database, and until when?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrix.domain.leases import Fence
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.testing.simulation.inline_engine import engine
from orchestrix.testing.simulation.inline_sqlite import SqliteClient
from orchestrix.testing.simulation.virtual_time import VirtualProcess, current_process
from tests.simulation.fences import FENCE

T = TypeVar("T")


@dataclass(eq=False)
class Hold:
    """One transaction waits: the next one of a task of that name in which `fits` holds.

    Like a driver that is giving up a connection, it does not heed that it is cancelled.
    """

    task: str
    fits: Callable[[], bool]
    process: VirtualProcess | None = None
    fence: Fence | None = None
    caught: bool = False
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def catches(self) -> bool:
        """Whether the present task waits."""
        task = asyncio.current_task()
        return not self.caught and not self.free.is_set() and task is not None and self._is_meant(task.get_name())

    def _is_meant(self, name: str) -> bool:
        return name == self.task and self.fits()

    async def wait(self) -> None:
        """Waits until it is let go."""
        self.caught, self.process, self.fence = True, current_process(), FENCE.get()
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue


class Slowness:
    """All that wait. `term` is the present term, by the row."""

    def __init__(self, term: Callable[[], int]) -> None:
        self._term = term
        self._holds: list[Hold] = []

    def hold(self, task: str, fits: Callable[[], bool]) -> Hold:
        """Has the next such transaction wait."""
        hold = Hold(task, fits)
        self._holds.append(hold)
        return hold

    async def heed(self) -> None:
        """Before a transaction."""
        for hold in self._holds:
            if hold.catches():
                await hold.wait()
                return

    def committed(self) -> None:
        """A leader's transaction goes on as soon as another term has begun: before the next leader has looked."""
        for hold in self._holds:
            if hold.caught and hold.fence is not None and self._term() > hold.fence.term:
                hold.free.set()

    def let_go(self) -> None:
        """Nobody waits any more."""
        for hold in self._holds:
            hold.free.set()
        self._holds.clear()


class SlowDatabase(Database):
    """The product's own database, slow at times."""

    def __init__(self, client: SqliteClient, slowness: Slowness) -> None:
        url = f"sqlite+aiosqlite:///{client.file.path}"
        super().__init__(url, engine=engine(url, client))
        self._slowness = slowness

    async def run(self, work: Callable[[Transaction], Awaitable[T]], attempts: int = 4) -> T:
        """Waits first, if it is to."""
        await self._slowness.heed()
        return await super().run(work, attempts)
