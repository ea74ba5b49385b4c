"""What becomes of the jobs that a node reads while it has no database, so that others may own them by now?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from orchestrix import clock
from orchestrix.errors import RetryableError
from orchestrix.jobs.ownership.handoff_subscriber import JobHandoffSubscriber
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.jobs.ownership.reconciler import OwnershipReconciler
from orchestrix.lifecycle import Loop, abandon

Ping = Callable[[], Coroutine[Any, Any, None]]
"""Asks the database for an answer; whatever it raises, there was none."""
log = logging.getLogger("orchestrix.jobs")

CHECKS_PER_LIMIT: Final = 6
"""So many times within the limit it is looked whether the database has answered."""
LAST_ANSWER_TIMEOUT_S: Final = 1.0


class SelfFencing:
    """Lets go of everything that this node has in hand where the database has not answered for `limit` seconds, and
    takes it up again when it does.

    The broker gives the words of a job to one reader at a time, and to nobody what another has in hand: a node that can
    write nothing would keep them from the owner that the leader has found in its place.
    """

    def __init__(
        self,
        ping: Ping,
        taker: JobHandoffSubscriber,
        holdings: OwnedJobs,
        reconcile: OwnershipReconciler,
        *,
        limit: float,
    ) -> None:
        self._ping, self._taker, self._holdings, self._reconcile = ping, taker, holdings, reconcile
        self._limit = limit
        self._answered_at = 0.0
        self._is_firm = True
        self._has_let_go = False
        self._was_told = False
        self._asking: asyncio.Task[None] | None = None
        self._loop = Loop("footing of jobs", self._round)

    async def start(self) -> None:
        """Begins to ask the database."""
        self._answered_at = clock.monotonic()
        await self._loop.start()

    async def stop(self) -> None:
        """Asks no more; what was let go stays so."""
        await self._loop.stop()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking}, timeout=LAST_ANSWER_TIMEOUT_S)
            abandon(self._asking)

    async def _round(self) -> None:
        if await self._answers():
            self._answered_at, self._was_told = clock.monotonic(), False
            if not self._is_firm:
                await self._take_up()
        elif not self._has_let_go and clock.monotonic() - self._answered_at >= self._limit:
            await self._let_go()
        await asyncio.sleep(self._limit / CHECKS_PER_LIMIT)

    async def _answers(self) -> bool:
        """Waits for an answer for a while; a question that has none yet stays open, for to give it up takes long."""
        asking = self._asking or asyncio.create_task(self._ping(), name="is the database there")
        self._asking = asking
        if not (await asyncio.wait({asking}, timeout=self._limit / CHECKS_PER_LIMIT))[0]:
            return False
        self._asking = None
        if (error := None if asking.cancelled() else asking.exception()) is not None:
            self._tell(error)
        return not asking.cancelled() and error is None

    def _tell(self, error: BaseException) -> None:
        """An error that no database is known to make is a bug, and told once in an outage."""
        if not isinstance(error, RetryableError) and not self._was_told:
            self._was_told = True
            log.error("the question whether the database is there failed; that counts as no answer", exc_info=error)

    async def _let_go(self) -> None:
        self._is_firm = False  # first: what fails half-way is taken up again too
        log.warning("database unreachable for %.0f s: releasing owned jobs", self._limit)
        await self._taker.let_go()
        await self._holdings.leave(self._holdings.epochs)
        self._has_let_go = True

    async def _take_up(self) -> None:
        await self._taker.start()
        self._is_firm, self._has_let_go = True, False
        await self._reconcile.look()
