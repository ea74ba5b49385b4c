"""Does each term have one holder, and is no write of an old term committed after a newer one began?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete, text, update

from orchestrix.domain.leases import Candidacy, ElectionReason, Fence, LeaderMode, Lease
from orchestrix.errors import Contention, RetryableError, StaleTermError
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.tables import leases as table
from tests.support import eventually

A, B = "a-1", "b-1"
LEASE = 30.0


def bid(node: str, *, by_token: bool = False, mode: LeaderMode = LeaderMode.BROKER) -> Candidacy:
    return Candidacy(node, mode, by_token)


async def campaign(database: Database, wanted: Candidacy, noticed: float = 0.0) -> Fence | None:
    return await database.run(lambda tx: leases.campaign(tx, wanted, LEASE, noticed))


async def gained(database: Database, wanted: Candidacy) -> Fence:
    fence = await campaign(database, wanted)
    assert fence is not None
    return fence


async def row(database: Database) -> Lease:
    async with database.read() as connection:
        found = await leases.read(connection)
    assert found is not None
    return found


async def handovers(database: Database) -> list[leases.Handover]:
    async with database.read() as connection:
        return await leases.last_handovers(connection, 10)


async def lapse(database: Database, seconds: float = 1.0) -> None:
    """The lease ended so long ago."""
    async with database.begin() as tx:
        until = (await row(database)).now - timedelta(seconds=seconds)
        await tx.execute(update(table).values(lease_until=until))


async def checked(database: Database, fence: Fence) -> None:
    await database.run(lambda tx: leases.check_fence(tx, fence))


@pytest.mark.req("S0-7", "S0-8")
async def test_the_first_term_is_one_and_leased_for_thirty_seconds(database: Database) -> None:
    async with database.read() as connection:
        assert await leases.read(connection) is None
    assert await campaign(database, bid(A)) == Fence(1, A)
    found = await row(database)
    assert (found.term, found.holder, found.mode, found.resigned_at) == (1, A, LeaderMode.BROKER, None)
    assert found.lease_until - found.gained_at == timedelta(seconds=30)
    assert 29 < found.left <= 30
    async with database.read() as connection:
        name = (await connection.execute(text("SELECT name FROM leases"))).scalar_one()
    assert name == "orchestrix:coordinator:leader"


async def test_a_row_that_was_lost_or_restored_begins_no_term_again(database: Database) -> None:
    for _ in range(3):
        await gained(database, bid(A, by_token=True))
    old = await gained(database, bid(B, by_token=True))
    await database.run(lambda tx: tx.execute(delete(table)))
    with pytest.raises(StaleTermError):
        await checked(database, old)
    assert await campaign(database, bid(A)) == Fence(5, A)
    await database.run(lambda tx: tx.execute(update(table).values(term=2, holder=A)))
    await lapse(database)
    assert await campaign(database, bid(B)) == Fence(6, B)
    assert [one.term for one in await handovers(database)] == [6, 5, 4, 3, 2, 1]
    for fence in (old, Fence(5, A)):
        with pytest.raises(StaleTermError):
            await checked(database, fence)


@pytest.mark.parametrize("ahead", [61.0, 3600.0, 1e7])
async def test_a_lease_from_before_the_clock_was_set_back_is_not_believed(database: Database, ahead: float) -> None:
    await gained(database, bid(A))
    await lapse(database, -ahead)
    moved = {"gained_at": (await row(database)).now + timedelta(seconds=ahead)}
    await database.run(lambda tx: tx.execute(update(table).values(moved)))
    async with database.read() as connection:
        found = await leases.read(connection, LEASE)
    assert found is not None
    assert (found.lapsed, found.left) == (True, 0)
    assert await campaign(database, bid(B)) == Fence(2, B)
    (second, _) = await handovers(database)
    assert second.began_at <= second.gained_at


async def test_a_clock_that_jumps_a_little_deposes_nobody(database: Database) -> None:
    await gained(database, bid(A))
    await lapse(database, -LEASE * 1.5)
    assert await campaign(database, bid(B)) is None


@pytest.mark.req("S0-2")
async def test_of_many_one_begins_a_term(database: Database, peer: Database) -> None:
    stores = [database, peer]
    won = await asyncio.gather(*(campaign(stores[n % 2], bid(f"n-{n}")) for n in range(8)))
    (fence,) = [one for one in won if one is not None]
    assert (await row(database)).fence == fence
    by_token = await asyncio.gather(*(campaign(stores[n % 2], bid(f"n-{n}", by_token=True)) for n in range(8)))
    assert sorted(one.term for one in by_token if one is not None) == list(range(2, 10))
    assert [one.term for one in await handovers(database)] == list(range(9, 0, -1))


@pytest.mark.req("S0-10")
async def test_a_lease_is_taken_when_it_has_lapsed_and_not_before(database: Database) -> None:
    await gained(database, bid(A))
    assert await campaign(database, bid(B)) is None
    await lapse(database)
    assert await campaign(database, bid(B)) == Fence(2, B)
    (second, first) = await handovers(database)
    assert (first.from_holder, first.to_holder, first.reason) == (None, A, ElectionReason.FIRST)
    assert (second.from_holder, second.to_holder, second.reason) == (A, B, ElectionReason.EXPIRED)
    assert second.gained_at - second.began_at >= timedelta(seconds=1)
    assert second.ended_at is None


async def test_the_time_in_which_nobody_could_take_over_is_not_counted(database: Database) -> None:
    await gained(database, bid(A))
    await lapse(database)
    await campaign(database, replace(bid(B), there=0.25), noticed=0.5)
    second = (await handovers(database))[0]
    assert second.reason == ElectionReason.EXPIRED
    assert second.gained_at - second.began_at == timedelta(seconds=0.75)
    await lapse(database)
    await campaign(database, replace(bid(A), there=1e6))
    assert (await handovers(database))[0].gained_at - (await handovers(database))[0].began_at < timedelta(seconds=1e5)


async def test_the_token_takes_a_lease_that_still_runs(database: Database) -> None:
    await gained(database, bid(A))
    assert await campaign(database, bid(B, by_token=True), noticed=0.5) == Fence(2, B)
    (second, _) = await handovers(database)
    assert second.reason == ElectionReason.LOST
    assert second.gained_at - second.began_at == timedelta(seconds=0.5)


async def test_a_leader_without_broker_makes_way_for_one_with(database: Database) -> None:
    await gained(database, bid(A, mode=LeaderMode.BROKERLESS))
    assert (await row(database)).mode is LeaderMode.BROKERLESS
    assert await campaign(database, bid(B, mode=LeaderMode.BROKERLESS)) is None
    assert await campaign(database, bid(B)) == Fence(2, B)
    assert (await handovers(database))[0].reason == ElectionReason.DEPOSED
    assert await campaign(database, bid("c-1")) is None


@pytest.mark.req("S0-9")
async def test_a_renewal_leases_anew_and_says_how_it_is(database: Database) -> None:
    fence = await gained(database, bid(A, mode=LeaderMode.BROKERLESS))
    await lapse(database)
    await database.run(lambda tx: leases.renew(tx, fence, LeaderMode.BROKER, LEASE))
    found = await row(database)
    assert 29 < found.left <= 30
    assert (found.fence, found.mode) == (fence, LeaderMode.BROKER)
    assert await campaign(database, bid(B)) is None


@pytest.mark.req("S0-10")
async def test_a_holder_is_refused_in_a_former_term_of_its_own(database: Database) -> None:
    old = await gained(database, bid(A))
    new = await gained(database, bid(A))
    before = await row(database)
    assert (new, before.fence) == (Fence(2, A), new)
    with pytest.raises(StaleTermError):
        await database.run(lambda tx: leases.renew(tx, old, LeaderMode.BROKERLESS, 2 * LEASE))
    with pytest.raises(StaleTermError):
        await database.run(lambda tx: leases.resign(tx, old))
    with pytest.raises(StaleTermError):
        await checked(database, old)
    assert replace(await row(database), now=before.now) == before


@pytest.mark.req("S0-10")
async def test_everything_of_an_old_term_is_refused(database: Database) -> None:
    old = await gained(database, bid(A))
    await checked(database, old)
    new = await gained(database, bid(B, by_token=True))
    for refused in (
        lambda tx: leases.check_fence(tx, old),
        lambda tx: leases.renew(tx, old, LeaderMode.BROKER, LEASE),
        lambda tx: leases.resign(tx, old),
        lambda tx: leases.record_first_write(tx, old),
        lambda tx: leases.check_fence(tx, Fence(2, A)),
        lambda tx: leases.check_fence(tx, Fence(3, B)),
    ):
        with pytest.raises(StaleTermError, match="nothing was written"):
            await database.run(refused)
    await checked(database, new)
    assert (await row(database)).fence == new
    assert [one.ended_at for one in await handovers(database)] == [None, None]


async def test_who_resigns_leaves_at_once(database: Database) -> None:
    fence = await gained(database, bid(A))
    await database.run(lambda tx: leases.resign(tx, fence))
    assert (await row(database)).lapsed
    assert await campaign(database, bid(B)) == Fence(2, B)
    second = (await handovers(database))[0]
    assert second.reason == ElectionReason.RESIGNED
    assert second.began_at <= second.gained_at
    assert (await row(database)).resigned_at is None


async def test_the_first_write_of_a_term_is_noted_once(database: Database) -> None:
    fence = await gained(database, bid(A))
    await database.run(lambda tx: leases.record_first_write(tx, fence))
    first = (await handovers(database))[0]
    assert first.ended_at is not None
    assert first.ended_at >= first.gained_at
    await database.run(lambda tx: leases.record_first_write(tx, fence))
    assert (await handovers(database))[0].ended_at == first.ended_at


async def test_the_last_hundred_are_remembered(database: Database) -> None:
    for place in range(103):
        await gained(database, bid(f"n-{place}", by_token=True))
    async with database.read() as connection:
        kept = await leases.last_handovers(connection, 1000)
    assert [one.term for one in kept] == list(range(103, 3, -1))


async def test_a_term_waits_for_a_checked_write_and_the_next_write_for_the_term(
    served: Database, served_peer: Database
) -> None:
    old = await gained(served, bid(A))
    order: list[str] = []
    async with served.begin() as tx:
        await leases.check_fence(tx, old)
        rival = asyncio.create_task(campaign(served_peer, bid(B, by_token=True)))
        rival.add_done_callback(lambda _: order.append("term"))
        await eventually(lambda: _someone_waits(served), deadline=1.8, every=0.15, message="the campaign waits")
        order.append("write")
    assert await rival == Fence(2, B)
    assert order == ["write", "term"]
    with pytest.raises(StaleTermError):
        await checked(served, old)


async def test_a_write_that_meets_an_open_campaign_is_refused_or_comes_again(
    served: Database, served_peer: Database
) -> None:
    old = await gained(served, bid(A))
    async with served_peer.begin() as tx:
        assert await leases.campaign(tx, bid(B, by_token=True), LEASE) == Fence(2, B)
        writing = asyncio.create_task(_once(served, old))
        await eventually(lambda: _someone_waits(served_peer), deadline=1.8, every=0.15, message="the write waits")
    with pytest.raises(StaleTermError):
        await writing


async def test_a_renewal_does_not_wait_for_writes(served: Database, served_peer: Database) -> None:
    if served.dialect.name == "mysql":
        return  # has no lock that is weak enough
    fence = await gained(served, bid(A))
    before = (await row(served)).lease_until
    async with served.begin() as tx:
        await leases.check_fence(tx, fence)
        async with asyncio.timeout(1):
            await served_peer.run(lambda other: leases.renew(other, fence, LeaderMode.BROKER, 2 * LEASE))
        assert (await row(served_peer)).lease_until > before


async def test_a_session_that_stands_still_with_the_row_is_ended(served: Database, served_peer: Database) -> None:
    old = await gained(served, bid(A))

    async def freeze(frozen: Transaction) -> None:
        await leases.check_fence(frozen, old)
        assert await _end_until_won(served_peer) == Fence(2, B)

    with pytest.raises(RetryableError):
        await served.run(freeze, attempts=1)
    assert (await row(served_peer)).fence == Fence(2, B)


async def _end_until_won(database: Database) -> Fence | None:
    """Campaigns against somebody who holds the row, and ends him."""
    sessions: list[int] = []

    async def attempt(tx: Transaction) -> Fence | None:
        found = await database.dialect.session(tx)
        assert found is not None
        sessions.append(found)
        return await leases.campaign(tx, bid(B, by_token=True), LEASE)

    rival = asyncio.create_task(database.run(attempt))

    async def ended() -> bool:
        if not sessions:
            return False
        async with database.read() as connection:
            return await database.dialect.end_blockers(connection, sessions[-1]) == 1

    await eventually(ended, deadline=8, every=0.2, message="the one who stands still is ended")
    return await rival


async def _once(database: Database, fence: Fence) -> None:
    try:
        async with database.begin() as tx:
            await leases.check_fence(tx, fence)
    except Contention:
        await _once(database, fence)


async def _someone_waits(database: Database) -> bool:
    async with database.read() as connection:
        if database.dialect.name == "postgresql":
            query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        else:
            query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        return bool((await connection.execute(text(query))).scalar_one())
