"""Is the order for an attempt gone with its queue, though the broker was not?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from app import clock
from app.broker.port import Broker, LinkState
from app.broker.probe import takes_messages
from app.broker.topology import dispatch_queue
from app.domain import jobs as rules
from app.domain.jobs import STRANDED
from app.jobs import ends
from app.jobs.sweeps import BATCH, Office
from app.persistence import job_queues, jobs
from app.persistence.engine import Transaction

log = logging.getLogger("orchestrix.jobs")

EVERY: Final = 30.0
"""Seconds between two looks. A queue that is missing in both is not only away for a moment."""


class GoneOrders:
    """Sends the orders anew that somebody has deleted with their queue: else nobody would begin them, for ever.

    One that no worker has begun, and that was confirmed before the first of two looks, can be nowhere else. That one
    has begun it is known where its owner reads what is said of it, and has not beaten longer than `heard` seconds ago.
    """

    def __init__(self, office: Office, broker: Broker, *, heard: float) -> None:
        self._office = office
        self._broker = broker
        self._heard = heard
        self._missing: set[str] = set()

    async def look(self) -> float:
        """Looks once; in how many seconds again."""
        if self._broker.state is not LinkState.UP:
            self._missing = set()
            return EVERY
        async with self._office.database.read() as connection:
            queues = await job_queues.unbegun(connection)
        missing = {name for name in queues if await self._broker.message_count(dispatch_queue(name)) is None}
        if missing and not await takes_messages(self._broker):  # a worker that has begun one cannot say so
            missing = set()
        gone, self._missing = missing & self._missing, missing
        if gone:
            await self._end(sorted(gone))
        return EVERY

    async def _end(self, queues: Sequence[str]) -> None:
        while ended := await self._office.write(partial(self._write, queues)):
            log.warning("orders were lost with the queues %s, and are sent anew: %d", ", ".join(queues), len(ended))
            self._office.due()
            if len(ended) < BATCH:
                return

    async def _write(self, queues: Sequence[str], tx: Transaction) -> list[str]:
        ids = await job_queues.stranded(tx, queues, EVERY, self._heard, BATCH)  # they are locked, and stay as they are
        found = list((await jobs.lock(tx, ids)).values())
        now = self._office.database.now()
        moved = [rules.ended(job, STRANDED, now, clock.uniform(0, 1)) for job in found]
        changed = [(before.version, one.job) for before, one in zip(found, moved, strict=True)]
        if await ends.store(tx, changed, [one.attempt for one in moved if one.attempt is not None]):
            tx.then(self._office.relay.poke)
        return [job.id for job in found]
