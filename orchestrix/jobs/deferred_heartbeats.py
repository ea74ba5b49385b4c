"""Deferred heartbeats: retries heartbeats whose rows were locked when they came, until each is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop, WakeSignal, backoff
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_heartbeats

log = logging.getLogger("orchestrix.jobs")

HEARTBEATS_PER_TRANSACTION: Final = 50
"""Heartbeats of one time that are stored in one transaction."""


class DeferredHeartbeats:
    """Waits for the rows, beside the listener: a row that is locked for long keeps no other heartbeat waiting.

    What is stored is the time of an attempt's heartbeat, so that it may be written late, and twice.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owed: dict[str, datetime] = {}
        self._wake = WakeSignal()
        self._failures = 0
        self._loop = Loop("deferred worker heartbeats", self._round)

    async def start(self) -> None:
        """Begins to wait for rows."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not stored is left to the next heartbeats."""
        await self._loop.stop()

    def owe(self, history_ids: Iterable[str], at: datetime) -> None:
        """These attempts had a heartbeat at that time, which is not stored yet."""
        self._owed |= dict.fromkeys(history_ids, at)
        if self._owed:
            self._wake.set()

    async def _round(self) -> None:
        if not self._owed:
            await self._wake.wait(None)
            return
        at = next(iter(self._owed.values()))
        chunk = dict.fromkeys([name for name, its in self._owed.items() if its == at][:HEARTBEATS_PER_TRANSACTION], at)
        if await self._is_noted(chunk):
            self._failures = 0
            return
        alone = [await self._is_noted({name: at}) for name in chunk] if len(chunk) > 1 else [False]
        self._failures = 0 if any(alone) else self._failures + 1
        if self._failures:
            await asyncio.sleep(backoff(self._failures))

    async def _is_noted(self, chunk: Mapping[str, datetime]) -> bool:
        """Whether all of it, of one time, is stored or obsolete; what is not goes behind all others."""
        (at,) = set(chunk.values())
        try:
            await self._database.run(lambda tx: job_heartbeats.beaten(tx, chunk, at), attempts=1)
        except RetryableError as away:
            log.debug("worker heartbeats deferred, their rows are locked: %s", away)
            self._owed |= {name: self._owed.pop(name) for name in chunk if name in self._owed}
            return False
        self._owed = {name: its for name, its in self._owed.items() if chunk.get(name) != its}
        return True
