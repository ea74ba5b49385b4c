"""Pruner: deletes idempotency keys and crash notes that are no longer needed."""

from __future__ import annotations

import asyncio

from orchestrix import clock
from orchestrix.lifecycle import Loop
from orchestrix.persistence import idempotency
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import redelivered_commands

PRUNE_INTERVAL_S = 600.0
KEY_RETENTION_S = 24 * 3600.0
"""Seconds for which a client's Idempotency-Key is remembered."""
ROWS_PER_TRANSACTION = 1000


class Pruner:
    """Deletes idempotency keys after a day, and what was noted of redelivered commands; a thousand at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = Loop("pruner", self._round)

    async def start(self) -> None:
        """Begins."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        forgotten = await self._database.run(
            lambda tx: idempotency.purge(tx, older_than_s=KEY_RETENTION_S, limit=ROWS_PER_TRANSACTION)
        )
        await self._database.run(
            lambda tx: redelivered_commands.purge(tx, older_than_s=KEY_RETENTION_S, limit=ROWS_PER_TRANSACTION)
        )
        await asyncio.sleep(
            1.0 if forgotten >= ROWS_PER_TRANSACTION else clock.uniform(PRUNE_INTERVAL_S / 2, PRUNE_INTERVAL_S)
        )
