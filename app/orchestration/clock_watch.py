"""Clock watch: was the database's clock set back, and what must not wait for the old time to come again?"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from app import clock
from app.errors import RetryLater
from app.lifecycle import Loop
from app.persistence import set_back
from app.persistence.engine import Database

log = logging.getLogger("orchestrix")

EVERY_S: Final = 15.0


class ClockWatch:
    """Looks before anything else is begun, and again and again; `claim_s` is for how long this node claims messages."""

    def __init__(self, database: Database, claim_s: float) -> None:
        self._database, self._claim_s = database, claim_s
        self._told = False
        self._loop = Loop("clock watch", self._round)

    async def start(self) -> None:
        """Looks, and begins to look again."""
        try:
            await self.look()
        except RetryLater as away:
            log.debug("no look at the clock: %s", away)
        await self._loop.start()

    async def stop(self) -> None:
        """Looks no more."""
        await self._loop.stop()

    async def look(self) -> None:
        """Ends in time what waits for longer than it can. Raises `RetryLater`."""
        async with self._database.read() as connection:
            ahead = await set_back.ahead_s(connection)
        if ahead == 0.0:
            self._told = False
            return
        mended = await set_back.mend(self._database, self._claim_s)
        if not self._told:
            log.warning(
                "the clock went back: stored times lie %.0f s ahead of it; waits are counted from now on (changed: %d)",
                ahead,
                mended,
            )
        self._told = True

    async def _round(self) -> None:
        await asyncio.sleep(clock.uniform(EVERY_S / 2, EVERY_S))
        await self.look()
