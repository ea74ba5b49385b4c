"""Broadcast reconciler: the leader's periodic check of broadcasts: deadlines, children to cancel, and their count."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain import job_broadcasts as rules
from orchestrix.domain import jobs as job_rules
from orchestrix.domain.jobs import JobTransition
from orchestrix.errors import ConflictError, Contention
from orchestrix.jobs import step_results
from orchestrix.jobs.broadcasts.counting import count
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.rescue.leader_context import LeaderContext
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import broadcasts, jobs

log = logging.getLogger("orchestrix.jobs")

CHECK_INTERVAL_S: Final = 1.0
COUNT_INTERVAL_S: Final = 10.0
"""Seconds between two counts of all children: a count is missing only where a node could not make it."""
BATCH_LIMIT: Final = 50


class BroadcastReconciler:
    """Ends broadcasts whose deadline has passed; cancels the children that are left of those that have ended, or that a
    person cancels; and counts the children again. One broadcast in each transaction, with all of its children locked
    in the order of their ids. `on_change` is notified of each.
    """

    def __init__(self, leader_context: LeaderContext, on_change: Callable[[Sequence[str]], None]) -> None:
        self._context = leader_context
        self._on_change = on_change
        self._counted_at: float | None = None

    async def run_once(self) -> float:
        """Checks once; seconds until the next check."""
        full = await self._each(broadcasts.unsettled, self._settle)
        now = clock.monotonic()
        if self._counted_at is None or now - self._counted_at >= COUNT_INTERVAL_S:
            full = await self._each(broadcasts.miscounted, self._count) or full
            self._counted_at = now
        return 0.0 if full else CHECK_INTERVAL_S

    async def _each(
        self,
        find: Callable[[Connection, int], Awaitable[list[str]]],
        work: Callable[[str, Transaction], Awaitable[None]],
    ) -> bool:
        """Whether there may be more of them."""
        async with self._context.database.read() as connection:
            found = await find(connection, BATCH_LIMIT)
        for id in found:
            try:
                await self._context.database.run(partial(self._write, work, id))
            except (Contention, ConflictError) as busy:
                log.debug("broadcast %s is checked again later: %s", id, busy)
                continue
            crash.point("jobs.children.after_commit")
            self._on_change([id])
        return len(found) == BATCH_LIMIT

    async def _write(self, work: Callable[[str, Transaction], Awaitable[None]], id: str, tx: Transaction) -> None:
        await work(id, tx)
        await leases.check_fence(tx, self._context.fence)
        crash.point("jobs.children.before_commit")

    async def _count(self, id: str, tx: Transaction) -> None:
        changed = await count(tx, [id])
        if changed:
            log.warning("broadcast %s: its children were counted again", id)
        if await step_results.insert_results(tx, [one.job for one in changed if one.has_just_ended]):
            tx.then(self._context.relay.notify)
        tx.then(self._context.notify_leader)

    async def _settle(self, id: str, tx: Transaction) -> None:
        before, children = await broadcasts.lock_family(tx, id)
        now = tx.now()
        if before is None or not before.has_children or before.wake_at is None or before.wake_at > now:
            return
        job = before
        if (state := rules.state_at_deadline(before, now)) is not None:
            log.warning("broadcast %s ended: its deadline has passed", id)
            job = rules.ended(before, state, await broadcasts.ends(tx, id), now)
        reason = rules.cancel_reason(job)
        left = [] if reason is None else [one for one in children if not one.ended]
        moved = [job_rules.cancelled(one, str(reason), now) for one in left]
        job = rules.settled(job, now)
        changed = [(one.version, after.job) for one, after in zip(left, moved, strict=True) if after.job is not one]
        if job.ended and not before.ended:
            changed.append((before.version, job))
        elif job is not before:
            await jobs.store(tx, [(before.version, job)])
        stored = await step_results.store_with_results(tx, changed, [one.attempt for one in moved if one.attempt])
        tx.then(partial(self._stop, moved, reason))
        if stored.results:
            tx.then(self._context.relay.notify)
        tx.then(self._context.notify_leader)

    def _stop(self, moved: Sequence[JobTransition], reason: str | None) -> None:
        stops = [StopRequest(one.job, one.stop, str(reason)) for one in moved if one.stop is not None]
        if stops:
            self._context.stop(stops)
