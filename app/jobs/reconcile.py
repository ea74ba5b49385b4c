"""Does a node read exactly what it owns?"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from app import clock
from app.jobs.holdings import Holdings
from app.lifecycle import Loop, Wake
from app.persistence import jobs
from app.persistence.engine import Database
from app.persistence.jobs import Holding

log = logging.getLogger("orchestrix.jobs")

LAST_LINES: Final = timedelta(seconds=30)
"""For so long after its end the last lines of a job's log are waited for."""


class Reconcile:
    """Compares now and then what this node owns, as the database has it, with what it reads, and mends the rest.

    A job whose last lines do not come is cleared away after a while.
    """

    def __init__(self, database: Database, holdings: Holdings, node: str, *, every: float) -> None:
        self._database = database
        self._holdings = holdings
        self._node = node
        self._every = every
        self._wake = Wake()
        self._loop = Loop("job reconciliation", self._round)

    async def start(self) -> None:
        """Begins to compare."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops comparing."""
        await self._loop.stop()

    async def look(self) -> None:
        """Compares once."""
        # What is read before what is owned: a job that is taken in between is owned and read, and nothing is amiss.
        reading = self._holdings.epochs
        async with self._database.read() as connection:
            owned = {one.id: one for one in await jobs.owned_by(connection, self._node)}
        lost = [job_id for job_id, epoch in reading.items() if _is_lost(owned.get(job_id), epoch)]
        if lost:
            log.info("%d jobs that this node reads are not its own any more", len(lost))
            await self._holdings.leave(lost)
        for one in owned.values():
            if one.ended and one.finished_at is not None and self._database.now() - one.finished_at > LAST_LINES:
                await self._holdings.hold(one.id, one.owner_epoch)
                await self._holdings.clear_away(one.id)
            elif reading.get(one.id) != one.owner_epoch:
                await self._holdings.hold(one.id, one.owner_epoch)

    async def _round(self) -> None:
        await self._wake.wait(clock.uniform(0.5, 1.0) * self._every)
        await self.look()


def _is_lost(owned: Holding | None, epoch: int) -> bool:
    return owned is None or owned.owner_epoch > epoch
