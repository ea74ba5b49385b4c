"""Broadcast firing: makes the children of a broadcast, one for each executor that its group has at that moment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain import job_broadcasts as rules
from orchestrix.domain.job_broadcasts import CHILDREN_LIMIT, NO_EXECUTORS
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.leases import Fence
from orchestrix.domain.registry.routing import NoExecutors, UnknownExecutor
from orchestrix.errors import NotFound
from orchestrix.jobs import step_results
from orchestrix.jobs.executors.port import PickAddresses
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import broadcasts, jobs
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.jobs")

FIRED_PER_ROUND: Final = 5
"""Broadcasts that are fired between two rounds of dispatching, so that those that wait keep no child waiting."""
WAITING_LIMIT: Final = 1000
"""Children of a group, besides those that may be open, that may be left when another broadcast to it is fired."""


class BroadcastFiring:
    """Fires what is due, one broadcast in each transaction, as the leader of its term.

    The broadcast is RUNNING from then on, and takes no slot, owner or attempt. `pick` finds all executors of its group;
    their addresses and the indexes of their shards stay. `open_limit` jobs may be open at once. One that
    ends here, without children, may be a step of a saga: `sent` says that the outbox has something to send. `on_change`
    is notified of each.
    """

    def __init__(
        self,
        database: Database,
        fence: Fence,
        pick: PickAddresses,
        *,
        open_limit: int,
        sent: Callable[[], None],
        on_change: Callable[[Sequence[str]], None],
    ) -> None:
        self._database, self._fence, self._pick = database, fence, pick
        self._most = open_limit + WAITING_LIMIT
        self._sent, self._on_change = sent, on_change

    async def run_once(self) -> int:
        """Fires up to `FIRED_PER_ROUND`; how many there were. Raises `StaleTermError`."""
        async with self._database.read() as connection:
            if not await broadcasts.any_due(connection):
                return 0
        for number in range(FIRED_PER_ROUND):
            if await self._database.run(self._write) is None:
                return number
            crash.point("jobs.broadcast.after_commit")
        return FIRED_PER_ROUND

    async def _write(self, tx: Transaction) -> str | None:
        """The id of the broadcast that was fired, or that could not be; None if there is none."""
        before = await broadcasts.next_due(tx, self._most)
        if before is None:
            return None
        job, children = await self._fired(tx, before)
        await jobs.insert(tx, children)
        if (await step_results.store_with_results(tx, [(before.version, job)])).results:
            tx.then(self._sent)
        await leases.check_fence(tx, self._fence)
        tx.then(lambda: self._announce(before, job))
        crash.point("jobs.broadcast.before_commit")
        return job.id

    async def _fired(self, tx: Transaction, before: JobRow) -> tuple[JobRow, list[JobRow]]:
        now = self._database.now()
        try:
            addresses = await self._pick(tx, before)
        except (NoExecutors, UnknownExecutor) as error:
            return rules.without_executors(before, str(error), now, clock.uniform(0, 1)), []
        except NotFound:
            return rules.without_group(before, now), []
        if len(addresses) > CHILDREN_LIMIT:
            return rules.too_large(before, len(addresses), now), []
        return rules.fired(before, addresses, [clock.uuid7() for _ in addresses], now)

    def _announce(self, before: JobRow, job: JobRow) -> None:
        if job.has_children:
            log.debug("broadcast %s: fired to %s", job.id, counted(job.children_total or 0, "executor"))
        elif job.ended or not _was_logged(before):
            log.warning("broadcast %s was not fired: %s", job.id, job.error["message"])
        self._on_change([job.id])


def _was_logged(job: JobRow) -> bool:
    """Whether it was logged already that the broadcast's group has no executors."""
    return isinstance(job.error, dict) and job.error.get("type") == NO_EXECUTORS
