"""Self-fencing: releases a node's jobs while it cannot reach the database, since others may own them by now."""

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
"""Pings the database; whatever it raises, there was no answer."""
log = logging.getLogger("orchestrix.jobs")

CHECKS_PER_LIMIT: Final = 6
"""How many times within the limit it is checked whether the database has answered."""
LAST_ANSWER_TIMEOUT_S: Final = 1.0


class SelfFencing:
    """Releases everything that this node has unacknowledged where the database has not answered for `limit` seconds,
    and takes it up again when it does.

    The broker gives the messages of a job to one consumer at a time, and nobody gets what another has unacknowledged:
    a node that can write nothing would keep them from the owner that the leader has found in its place.
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
        self._loop = Loop("self-fencing", self._round)

    async def start(self) -> None:
        """Begins to ping the database."""
        self._answered_at = clock.monotonic()
        await self._loop.start()

    async def stop(self) -> None:
        """Pings no more; what was released stays so."""
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
        """Waits for an answer for a while; a ping without one yet stays open, for to cancel it takes long."""
        asking = self._asking or asyncio.create_task(self._ping(), name="database ping")
        self._asking = asking
        if not (await asyncio.wait({asking}, timeout=self._limit / CHECKS_PER_LIMIT))[0]:
            return False
        self._asking = None
        if (error := None if asking.cancelled() else asking.exception()) is not None:
            self._tell(error)
        return not asking.cancelled() and error is None

    def _tell(self, error: BaseException) -> None:
        """An error that no database is known to raise is a bug, and logged once in an outage."""
        if not isinstance(error, RetryableError) and not self._was_told:
            self._was_told = True
            log.error("the database ping failed; counted as no answer", exc_info=error)

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
