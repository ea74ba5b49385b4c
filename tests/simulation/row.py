"""What is the lease row without a database?  One lock, one clock, and all that can happen to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from orchestrix.domain.leases import NOBODY, Candidacy, Fence, LeaderMode, Lease, election_reason
from orchestrix.errors import Contention, OutcomeUnknown, StaleTermError, Unavailable
from orchestrix.testing.simulation.virtual_time import VirtualProcess, current_process, elapse, outside_context

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = 1.0
"""Seconds after which a session that holds the row and does nothing is ended."""
PATIENCE = 2.0
"""Seconds for which the row is waited for."""


@dataclass(slots=True, eq=False)
class Session:
    """A transaction that has the row. `ended` says that it will not commit any more."""

    ended: bool = False


class Row:
    """The row, and every write that was committed under it, in order.

    `pace` gives the seconds that a statement takes; `commit_lost` says of a COMMIT whether its answer gets lost, and
    whether it was done then. `caught` hears who has the row and is
    about to commit, `began` of each term and `written` of each write, as they are committed.
    """

    def __init__(self, pace: Callable[[], float]) -> None:
        self.pace = pace
        self.up = True
        self.commit_lost: Callable[[], bool | None] = lambda: None
        self.began: Callable[[Fence, LeaderMode], None] = lambda fence, mode: None
        self.written: Callable[[Fence], None] = lambda fence: None
        self.caught: Callable[[VirtualProcess], None] = lambda process: None
        self.lease = Lease(0, NOBODY, LeaderMode.BROKER, EPOCH, EPOCH, None, EPOCH)
        self._holder: Session | None = None
        self._free = asyncio.Event()
        self._world = outside_context()

    @property
    def now(self) -> datetime:
        """The clock of the database."""
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())

    def fail(self) -> None:
        """It goes away, and with it every transaction."""
        self.up = False
        self._end(self._holder)

    async def read(self) -> Lease | None:
        """What is committed."""
        await elapse(self.pace())
        self._check()
        found = None if self.lease.holder == NOBODY else replace(self.lease, now=self.now)
        await elapse(self.pace())
        return found

    async def change(self, work: Callable[[Lease], tuple[Callable[[], None], T]]) -> T:
        """A transaction that has the row: `work` looks at it and says what is to be written, and what comes of it."""
        session = await self._locked()
        try:
            await elapse(self.pace())
            write, result = work(replace(self.lease, now=self.now))
            if (process := current_process()) is not None:
                self.caught(process)
            await elapse(self.pace())
            self._check(session)
            lost = self.commit_lost()
            if lost is not False:
                write()
        finally:
            self._end(session)
        if lost is not None:
            raise OutcomeUnknown("the commit was not confirmed")
        await elapse(self.pace())
        return result

    def begin_term(self, bid: Candidacy, lease: Lease, seconds: float) -> tuple[Callable[[], None], Fence | None]:
        """What a campaign writes."""
        if election_reason(bid, lease) is None:
            return (lambda: None), None
        fence = Fence(lease.term + 1, bid.node_id)
        until = lease.now + timedelta(seconds=seconds)

        def write() -> None:
            self.lease = Lease(fence.term, fence.holder, bid.mode, until, lease.now, None, lease.now)
            self.began(fence, bid.mode)

        return write, fence

    def _check(self, session: Session | None = None) -> None:
        if not self.up or (session is not None and session.ended):
            raise Unavailable("the connection to the database was lost")

    async def _locked(self) -> Session:
        self._check()
        try:
            async with asyncio.timeout(PATIENCE):
                while self._holder is not None:
                    self._free.clear()
                    await self._free.wait()
        except TimeoutError:
            raise Contention("somebody has the row") from None
        session = self._holder = Session()
        process = current_process()
        if process is not None:
            process.on_death.append(lambda: self._end(session))
        asyncio.get_running_loop().call_later(IDLE, self._end, session, context=self._world)
        return session

    def _end(self, session: Session | None) -> None:
        if session is not None:
            session.ended = True
            if self._holder is session:
                self._holder = None
                self._free.set()


class RowSeat:
    """`Seat` over a row in memory, for one process."""

    def __init__(self, row: Row, node_id: str, lease: float) -> None:
        self._row, self._node_id, self._lease = row, node_id, lease
        self._held = 0

    async def read(self) -> Lease | None:
        return await self._row.read()

    async def campaign(self, candidacy: Candidacy, noticed_at: float) -> Fence | None:
        try:
            fence = await self._row.change(lambda lease: self._row.begin_term(candidacy, lease, self._lease))
        except OutcomeUnknown:
            lease = await self._row.read()
            mine = lease is not None and lease.holder == self._node_id and lease.term > self._held
            fence = lease.fence if lease is not None and mine else None
        self._held = fence.term if fence is not None else self._held
        return fence

    async def renew(self, fence: Fence, mode: LeaderMode) -> None:
        def work(lease: Lease) -> tuple[Callable[[], None], None]:
            refuse(lease, fence)
            until = lease.now + timedelta(seconds=self._lease)
            return (lambda: self._put(mode=mode, lease_until=until, resigned_at=None)), None

        await self._row.change(work)

    async def record_first_write(self, fence: Fence) -> None:
        await self.write(fence)

    async def resign(self, fence: Fence) -> None:
        def work(lease: Lease) -> tuple[Callable[[], None], None]:
            refuse(lease, fence)
            return (lambda: self._put(lease_until=lease.now, resigned_at=lease.now)), None

        await self._row.change(work)

    async def write(self, fence: Fence) -> None:
        """A leader's write."""

        def work(lease: Lease) -> tuple[Callable[[], None], None]:
            refuse(lease, fence)
            return (lambda: self._row.written(fence)), None

        await self._row.change(work)

    def _put(self, **values: object) -> None:
        self._row.lease = replace(self._row.lease, **values)  # type: ignore[arg-type]


def refuse(lease: Lease, fence: Fence) -> None:
    """Raises `StaleTermError` if the fence is not the row's."""
    if lease.fence != fence:
        raise StaleTermError(f"{fence} is not {lease.fence}")
