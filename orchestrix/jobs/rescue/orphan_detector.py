"""Orphan detector: the leader's periodic check for jobs whose owner is dead, or that never had one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from orchestrix.broker.port import Broker, LinkState
from orchestrix.broker.probe import accepts_messages
from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import NODE_CRASH
from orchestrix.domain.jobs import ORPHAN_PENDING, JobRow
from orchestrix.jobs import outbox_rows, spans
from orchestrix.jobs.rescue.leader_context import RESCUE_BATCH_LIMIT, LeaderContext
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import job_predicates, jobs
from orchestrix.quantities import counted
from orchestrix.telemetry.metrics.catalogue import HANDOFFS, ORPHANED
from orchestrix.telemetry.metrics.instruments import counter

Work = Callable[[Transaction], Awaitable[list[JobRow]]]
log = logging.getLogger("orchestrix.jobs")
_orphaned = counter(HANDOFFS).at(ORPHANED)

RETRY_INTERVAL_S: Final = 1.0
"""Seconds until the next check where something cannot be done just now."""
UNOWNED_TIMEOUT_S: Final = 30.0
"""Seconds for which a job that was dispatched may be without an owner."""


class OrphanJobDetector:
    """The leader's search for orphans: offers jobs whose owner is dead, or that never had one, to the live nodes.

    Which node takes them is decided by `JobHandoffSubscriber`; the attempts themselves are ended by `JobRescuer` alone.

    Not while no offer could be published: each check would write others for the same jobs.
    """

    def __init__(self, leader_context: LeaderContext, broker: Broker, *, interval_s: float) -> None:
        self._leader_context = leader_context
        self._broker = broker
        self._interval_s = interval_s

    async def orphans(self) -> float:
        """Checks once for those whose owner is dead; seconds until the next check."""
        return await self._run_once(0, self._offer, self._interval_s)

    async def unowned(self) -> float:
        """Checks once for those that never had an owner; seconds until the next check."""
        return await self._run_once(1, self._assign, UNOWNED_TIMEOUT_S / 3)

    async def _run_once(self, which: int, work: Work, interval_s: float) -> float:
        if self._broker.blocked is not None:
            return RETRY_INTERVAL_S
        async with self._leader_context.database.read() as connection:
            found = (await job_predicates.ownerless(connection, self._interval_s, UNOWNED_TIMEOUT_S))[which]
        if not found:
            return interval_s
        linked = self._broker.state is LinkState.UP  # else another node may have a connection that takes offers
        if linked and not await accepts_messages(self._broker):
            return RETRY_INTERVAL_S
        # Rows that others have locked are skipped: they are checked again soon, not only at the next turn.
        return interval_s if await self._all(work) else min(interval_s, RETRY_INTERVAL_S)

    async def _all(self, work: Work) -> int:
        count = 0
        while found := await self._leader_context.write(work):
            self._leader_context.relay.notify()
            _orphaned.add(len(found))
            count += len(found)
            if len(found) < RESCUE_BATCH_LIMIT:
                break
        return count

    async def _offer(self, tx: Transaction) -> list[JobRow]:
        found = await jobs.orphans(tx, self._interval_s, RESCUE_BATCH_LIMIT)
        if found:
            owners = sorted({str(job.owner) for job in found})
            need = "needs" if len(found) == 1 else "need"
            log.warning("%s of node %s %s a new owner", counted(len(found), "job"), ", ".join(owners), need)
        now = self._leader_context.database.now()
        fresh = [rules.offered(job, NODE_CRASH, ORPHAN_PENDING, now) for job in found]
        await self._store(tx, found, fresh)
        rows = [outbox_rows.offer(job, NODE_CRASH, now) for job in spans.offer(tx, found, fresh)]
        await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
        return fresh

    async def _assign(self, tx: Transaction) -> list[JobRow]:
        found = await jobs.unowned(tx, UNOWNED_TIMEOUT_S, RESCUE_BATCH_LIMIT)
        now = self._leader_context.database.now()
        fresh = [rules.offered(job, "Unowned", None, now) for job in found]
        await self._store(tx, found, fresh)
        await outbox.insert(tx, [outbox_rows.assigned(job, now) for job in fresh], claimed_by=None, lease_s=0.0)
        return fresh

    @staticmethod
    async def _store(tx: Transaction, found: Sequence[JobRow], fresh: Sequence[JobRow]) -> None:
        await jobs.store(tx, [(before.version, job) for before, job in zip(found, fresh, strict=True)])
