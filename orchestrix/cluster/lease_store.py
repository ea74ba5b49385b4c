"""Lease store: a node's access to the lease row, also where the answer to a COMMIT is lost."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, Protocol

from orchestrix import clock, crash
from orchestrix.domain.leases import Candidacy, Fence, LeaderMode, Lease
from orchestrix.errors import OutcomeUnknown, RetryableError, Unavailable
from orchestrix.lifecycle import backoff
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.cluster")

CAMPAIGN_TIMEOUT_S: Final = 5.0
"""Seconds in which a campaign is decided, or given up: the node that has the token keeps the others waiting."""
LOCK_WAIT_LIMIT_S: Final = 1.0
"""Seconds after which another session that locks the row counts as a blocker."""


class LeaseStore(Protocol):
    """The lease row, as one node uses it."""

    async def read(self) -> Lease | None:
        """The row now; None before the first term. Raises `Unavailable`."""

    async def campaign(self, candidacy: Candidacy, noticed_at: float) -> Fence | None:
        """Begins the next term; None if the row does not allow it.

        `noticed_at` is when, on the monotonic clock, the former leader was known to be gone. Raises `Unavailable`
        after 5 s.
        """

    async def renew(self, fence: Fence, mode: LeaderMode) -> None:
        """Renews the lease. Raises `StaleTermError` and `RetryableError`."""

    async def record_first_write(self, fence: Fence) -> None:
        """The term's first write. Raises `StaleTermError` and `RetryableError`."""

    async def resign(self, fence: Fence) -> None:
        """Ends the lease now. Raises `StaleTermError` and `RetryableError`."""


class DatabaseLeaseStore:
    """`LeaseStore` in the database. `lease` is in seconds.

    The id is that of one boot, and there is one campaign at a time: so the row shows whether a lost answer was a yes.
    """

    def __init__(self, database: Database, node_id: str, lease: float) -> None:
        self._database = database
        self._node_id = node_id
        self._lease = lease
        self._latest_term = 0
        self._session: int | None = None

    async def read(self) -> Lease | None:
        async with self._database.read() as connection:
            return await leases.read(connection, self._lease)

    async def campaign(self, candidacy: Candidacy, noticed_at: float) -> Fence | None:
        try:
            async with asyncio.timeout(CAMPAIGN_TIMEOUT_S):
                fence = await self._campaign_until_answered(candidacy, noticed_at)
        except TimeoutError as late:
            raise Unavailable("the database did not decide the election in time") from late
        self._latest_term = fence.term if fence is not None else self._latest_term
        return fence

    async def renew(self, fence: Fence, mode: LeaderMode) -> None:
        await self._database.run(lambda tx: leases.renew(tx, fence, mode, self._lease))

    async def record_first_write(self, fence: Fence) -> None:
        await self._database.run(lambda tx: leases.record_first_write(tx, fence))

    async def resign(self, fence: Fence) -> None:
        await self._database.run(lambda tx: leases.resign(tx, fence))

    async def _campaign_until_answered(self, candidacy: Candidacy, noticed_at: float) -> Fence | None:
        failures = 0
        while True:
            try:
                return await self._attempt(candidacy, noticed_at)
            except OutcomeUnknown:
                if (fence := await self._own_term()) is not None:
                    return fence
            except RetryableError as error:
                log.debug("election attempt of %s: %s", self._node_id, error)
            failures += 1
            await asyncio.sleep(backoff(failures))

    async def _own_term(self) -> Fence | None:
        """The term that the lost COMMIT began, if it did."""
        failures = 0
        while True:
            try:
                lease = await self.read()
                break
            except RetryableError:
                failures += 1
                await asyncio.sleep(backoff(failures))
        won = lease is not None and lease.holder == self._node_id and lease.term > self._latest_term
        return lease.fence if lease is not None and won else None

    async def _attempt(self, candidacy: Candidacy, noticed_at: float) -> Fence | None:
        async def work(tx: Transaction) -> Fence | None:
            self._session = await tx.dialect.session(tx)
            fence = await leases.campaign(tx, candidacy, self._lease, clock.monotonic() - noticed_at)
            crash.point("leader.before_commit")
            return fence

        asking = asyncio.ensure_future(self._database.run(work))
        try:
            while not (await asyncio.wait({asking}, timeout=LOCK_WAIT_LIMIT_S))[0]:
                await self._end_blockers()
            return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})

    async def _end_blockers(self) -> None:
        """Terminates sessions that block the row: a former leader may hang in the middle of a write."""
        if self._session is None:
            return
        with suppress(RetryableError):
            async with self._database.read() as connection:
                ended = await self._database.dialect.end_blockers(connection, self._session)
            if ended:
                log.warning("terminated %s blocking the lease row", counted(ended, "database session"))
