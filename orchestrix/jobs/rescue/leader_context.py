"""Leader context: what every duty of jobs depends on, and how it writes as the leader of its term."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from orchestrix import crash
from orchestrix.domain.leases import Fence
from orchestrix.jobs.events import StopRequest
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction

T = TypeVar("T")

RESCUE_BATCH_LIMIT: Final = 200
"""Jobs that a duty handles in one transaction."""


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What every duty of the leader depends on.

    `stop` notifies workers; `notify_leader` says that a job waits for another attempt.
    """

    database: Database
    fence: Fence
    relay: OutboxRelay
    stop: Callable[[Sequence[StopRequest]], None]
    notify_leader: Callable[[], None]

    async def write(self, work: Callable[[Transaction], Awaitable[list[T]]]) -> list[T]:
        """What `work` returns, written as the leader of this term unless it is nothing. Raises `StaleTermError`."""
        done = await self.database.run(partial(self._fenced, work))
        if done:
            crash.point("jobs.rescue.after_commit")
        return done

    async def _fenced(self, work: Callable[[Transaction], Awaitable[list[T]]], tx: Transaction) -> list[T]:
        done = await work(tx)
        if done:
            await leases.check_fence(tx, self.fence)
            crash.point("jobs.rescue.before_commit")
        return done
