"""What is thrown away, and when?"""

from __future__ import annotations

import asyncio

from orchestrix import clock
from orchestrix.lifecycle import Loop
from orchestrix.persistence import idempotency, suspects
from orchestrix.persistence.engine import Database

EVERY = 600.0
KEPT = 24 * 3600.0
"""Seconds for which a client's Idempotency-Key is remembered."""
CHUNK = 1000


class Housekeeping:
    """Forgets idempotency keys after a day, and what was noted of suspects; a thousand at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = Loop("housekeeping", self._round)

    async def start(self) -> None:
        """Begins."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        forgotten = await self._database.run(lambda tx: idempotency.purge(tx, older_than_s=KEPT, limit=CHUNK))
        await self._database.run(lambda tx: suspects.purge(tx, older_than_s=KEPT, limit=CHUNK))
        await asyncio.sleep(1.0 if forgotten >= CHUNK else clock.uniform(EVERY / 2, EVERY))
