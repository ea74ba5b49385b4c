"""Attempt signs: notes that executors run the attempts which their heartbeats name, many at a time in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from orchestrix.errors import Contention, Unavailable
from orchestrix.jobs.worker_heartbeats import DeferredHeartbeats
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.registry.registrations import Executor

log = logging.getLogger("orchestrix.registry")

BATCH: Final = 2_000
"""Attempts in one statement; a heartbeat may name more."""


@dataclass(slots=True)
class _Batch:
    runs: dict[str, Executor] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None


class AttemptSigns:
    """Notes signs of life of attempts: only of those that were given to the executor which names them, and are live.

    What comes while one transaction is under way shares the next one. It locks jobs alone, by id, and none of the
    registry: the heartbeats of executors without work do not wait for a job. A row that is locked for long is waited
    for beside, so that none of the others is late and no sign is lost.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deferred = DeferredHeartbeats(database)
        self._batch = _Batch()
        self._arrived = WakeSignal()
        self._loop = Loop("signs of life of attempts", self._round)

    async def start(self) -> None:
        """Begins to note."""
        await self._deferred.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; who still waits is refused."""
        await self._loop.stop()
        await self._deferred.stop()
        self._end(self._batch, Unavailable("this node stops; nothing was noted"))

    async def note(self, executor: Executor, history_ids: Sequence[str]) -> None:
        """Notes that the executor runs these attempts; returns after the commit, or when their rows are waited for.

        Raises `Unavailable` while the database is away.
        """
        if not history_ids:
            return
        batch = self._batch
        batch.runs.update(dict.fromkeys(history_ids, executor))
        self._arrived.set()
        await batch.done.wait()
        if batch.error is not None:
            raise Unavailable(str(batch.error)) from batch.error

    async def _round(self) -> None:
        await self._arrived.wait(None)
        batch, self._batch = self._batch, _Batch()
        try:
            runs = iter(batch.runs.items())
            while some := dict(islice(runs, BATCH)):
                await self._store(some)
        except asyncio.CancelledError:
            self._end(batch, Unavailable("this node stops; nothing was noted"))
            raise
        except Exception as error:
            self._end(batch, error)
            raise
        self._end(batch, None)

    @staticmethod
    def _end(batch: _Batch, error: Exception | None) -> None:
        batch.error = error
        batch.done.set()

    async def _store(self, runs: Mapping[str, Executor]) -> None:
        at = self._database.now()
        async with self._database.read() as connection:
            own = await executor_jobs.given_to(connection, runs)
        if not own:
            return
        try:
            await self._database.run(lambda tx: executor_jobs.heard(tx, own, at), attempts=1)
        except Contention as busy:
            log.debug("noting signs of life later: %s", busy)
            self._deferred.defer(own, at)
