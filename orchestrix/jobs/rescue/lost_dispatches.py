"""Lost dispatch detector: dispatches again what the broker had and no worker can get any more."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from orchestrix.broker.port import Broker, LinkState
from orchestrix.broker.probe import accepts_messages
from orchestrix.broker.topology import dispatch_queue
from orchestrix.jobs import redispatch
from orchestrix.jobs.rescue.leader_context import RESCUE_BATCH_LIMIT, LeaderContext
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import job_queues
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")

CHECKS_PER_LIMIT: Final = 3
"""How many times within the limit it is checked which queues are empty."""


class LostDispatchDetector:
    """Sends dispatches again that were deleted, purged, or taken and not processed: else no worker would ever start
    them.

    A dispatch is lost that was confirmed `after` seconds ago or earlier, and that no worker has begun or sends
    heartbeats for, where its queue has nothing ready, or does not exist, in two checks; or where a later one of its
    queue was begun long ago. That no worker has started it is known where its owner consumes the job's messages, and
    had its last heartbeat at most `listening_s` seconds ago.
    """

    def __init__(self, leader_context: LeaderContext, broker: Broker, *, after: float, listening_s: float) -> None:
        self._leader_context = leader_context
        self._broker = broker
        self._after = after
        self._listening_s = listening_s
        self._empty: set[str] = set()

    async def run_once(self) -> float:
        """Checks once; seconds until the next check."""
        every = self._after / CHECKS_PER_LIMIT
        if self._broker.state is not LinkState.UP:
            self._empty = set()
            return every
        async with self._leader_context.database.read() as connection:
            queues = await job_queues.not_started_counts(connection)
            passed = await job_queues.last_dispatched_at(connection, queues, self._after)
        empty = {name for name in queues if await self._is_empty(name)}
        if (empty or passed) and not await accepts_messages(self._broker):  # a worker that has begun cannot report it
            empty, passed = set(), {}
        twice, self._empty = empty & self._empty, empty
        if twice or passed:
            await self._send(twice, passed)
        return every

    async def _is_empty(self, queue: str) -> bool:
        found = await self._broker.message_count(dispatch_queue(queue))
        return found is None or found[0] == 0

    async def _send(self, empty: Collection[str], last_dispatched: Mapping[str, datetime]) -> None:
        while sent := await self._leader_context.write(partial(self._write, empty, last_dispatched)):
            self._leader_context.relay.notify()
            log.warning("dispatches were lost with their queues: redispatching %s", counted(len(sent), "job"))
            if len(sent) < RESCUE_BATCH_LIMIT:
                return

    async def _write(
        self, empty: Collection[str], last_dispatched: Mapping[str, datetime], tx: Transaction
    ) -> list[str]:
        ids = await job_queues.lost_dispatches(
            tx, empty, last_dispatched, self._after, self._listening_s, RESCUE_BATCH_LIMIT
        )
        return [job.id for job in await redispatch.redispatch(tx, ids)]
