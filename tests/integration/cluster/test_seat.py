"""Does a campaign come to an end when its answer is lost, or somebody stands in its way?"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.cluster import lease_store as seats
from orchestrix.cluster.lease_store import DatabaseLeaseStore
from orchestrix.domain.leases import Candidacy, Fence, LeaderMode
from orchestrix.errors import OutcomeUnknown, RetryableError, Unavailable
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction

A, B = "a-1", "b-1"


def bid(node: str, *, by_token: bool = True) -> Candidacy:
    return Candidacy(node, LeaderMode.BROKER, by_token)


class Losing:
    """A database that loses the answers to some COMMITs; `done` says whether they were done."""

    def __init__(self, database: Database, *, done: bool, times: int = 1) -> None:
        self._database, self._done, self._times = database, done, times

    async def run(self, work: Callable[[Transaction], Awaitable[Any]], attempts: int = 4) -> Any:
        if self._times <= 0:
            return await self._database.run(work, attempts)
        self._times -= 1
        if self._done:
            await self._database.run(work, attempts)
        raise OutcomeUnknown("the commit was not confirmed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def losing(database: Database, node: str, *, done: bool, times: int = 1) -> DatabaseLeaseStore:
    return DatabaseLeaseStore(Losing(database, done=done, times=times), node, 30.0)  # type: ignore[arg-type]


async def test_an_answer_that_was_lost_is_looked_up(database: Database) -> None:
    seat = losing(database, A, done=True)
    assert await seat.campaign(bid(A), clock.monotonic()) == Fence(1, A)
    lease = await seat.read()
    assert lease is not None
    assert lease.term == 1


async def test_a_commit_that_was_not_done_is_tried_again(database: Database) -> None:
    seat = losing(database, A, done=False, times=2)
    assert await seat.campaign(bid(A), clock.monotonic()) == Fence(1, A)


async def test_an_older_term_of_ones_own_is_no_answer(database: Database) -> None:
    first = DatabaseLeaseStore(database, A, 30.0)
    assert await first.campaign(bid(A), clock.monotonic()) == Fence(1, A)
    first._database = Losing(database, done=False)  # type: ignore[assignment]
    assert await first.campaign(bid(A), clock.monotonic()) == Fence(2, A)


async def test_a_lease_that_runs_is_a_no_and_not_an_error(database: Database) -> None:
    assert await DatabaseLeaseStore(database, A, 30.0).campaign(bid(A), clock.monotonic()) == Fence(1, A)
    assert await DatabaseLeaseStore(database, B, 30.0).campaign(bid(B, by_token=False), clock.monotonic()) is None


async def test_a_campaign_is_given_up_in_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "CAMPAIGN_TIMEOUT_S", 0.3)
    seat = losing(database, A, done=False, times=1000)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="did not decide"):
        await seat.campaign(bid(A), clock.monotonic())
    assert time.monotonic() - began < 2


async def test_whoever_stands_still_in_the_middle_of_a_write_is_ended(served: Database) -> None:
    """As a leader does that is frozen between its look at the term and its COMMIT."""
    old = await DatabaseLeaseStore(served, A, 30.0).campaign(bid(A), clock.monotonic())
    assert old is not None

    async def frozen(tx: Transaction) -> None:
        await leases.check_fence(tx, old)
        assert await DatabaseLeaseStore(served, B, 30.0).campaign(bid(B), clock.monotonic()) == Fence(2, B)

    began = time.monotonic()
    with pytest.raises(RetryableError):
        await served.run(frozen, attempts=1)
    assert time.monotonic() - began < 4.5, "sooner than the server ends it by itself"
