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

    The broker gives the messages of a job to one consumer at a time, and no other one gets what that one has
    unacknowledged: a node that can write nothing would keep them from the owner that the leader has found in its place.
    """

    def __init__(
        self,
        ping: Ping,
        handoff_subscriber: JobHandoffSubscriber,
        owned_jobs: OwnedJobs,
        reconcile: OwnershipReconciler,
        *,
        limit: float,
    ) -> None:
        self._ping, self._handoff_subscriber, self._owned_jobs, self._reconcile = (
            ping,
            handoff_subscriber,
            owned_jobs,
            reconcile,
        )
        self._limit = limit
        self._answered_at = 0.0
        self._is_trusted = True
        self._has_released = False
        self._error_logged = False
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
            self._answered_at, self._error_logged = clock.monotonic(), False
            if not self._is_trusted:
                await self._resume()
        elif not self._has_released and clock.monotonic() - self._answered_at >= self._limit:
            await self._release()
        await asyncio.sleep(self._limit / CHECKS_PER_LIMIT)

    async def _answers(self) -> bool:
        """Waits for an answer for a while; a ping without one yet stays open, for to cancel it takes long."""
        asking = self._asking or asyncio.create_task(self._ping(), name="database ping")
        self._asking = asking
        if not (await asyncio.wait({asking}, timeout=self._limit / CHECKS_PER_LIMIT))[0]:
            return False
        self._asking = None
        if (error := None if asking.cancelled() else asking.exception()) is not None:
            self._log_error(error)
        return not asking.cancelled() and error is None

    def _log_error(self, error: BaseException) -> None:
        """An error that no database is known to raise is a bug, and logged once in an outage."""
        if not isinstance(error, RetryableError) and not self._error_logged:
            self._error_logged = True
            log.error("the database ping failed; counted as no answer", exc_info=error)

    async def _release(self) -> None:
        self._is_trusted = False  # first: what fails half-way is taken up again too
        log.warning("database unreachable for %.0f s: releasing owned jobs", self._limit)
        await self._handoff_subscriber.release()
        await self._owned_jobs.leave(self._owned_jobs.epochs)
        self._has_released = True

    async def _resume(self) -> None:
        await self._handoff_subscriber.start()
        self._is_trusted, self._has_released = True, False
        await self._reconcile.run_once()
