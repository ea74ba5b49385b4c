"""Does each message leave the outbox once per claim, the older before the newer?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrix import clock
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database
from orchestrix.persistence.outbox import OutboxRow
from tests.conformance.store.build import message
from tests.fakes.time import Shifted


async def put(database: Database, *rows: OutboxRow, by: str | None = None, lease: float = 30) -> None:
    async with database.begin() as tx:
        await outbox.insert(tx, rows, by, lease)


async def take(database: Database, node: str = "node", lease: float = 30, limit: int = 100) -> list[OutboxRow]:
    async with database.begin() as tx:
        return await outbox.claim(tx, node, lease, limit)


async def left(database: Database, row: OutboxRow) -> OutboxRow:
    async with database.read() as connection:
        (found,) = await outbox.of_instance(connection, row.saga, row.instance_id)
    return found


async def test_a_row_comes_back_as_it_went_in(database: Database) -> None:
    row = message(1, 1, body=bytes(range(256)) * 40, topology=[{"queue": "x"}], traceparent="00-a", tracestate="b=c")
    await put(database, row)
    (found,) = await take(database, "me")
    assert found == replace(row, claimed_by="me", claimed_until=found.claimed_until)
    assert await left(database, row) == found
    assert found.claimed_until is not None
    assert (found.claimed_until - database.now()).total_seconds() == pytest.approx(30, abs=5)


async def test_only_the_first_row_of_an_instance_is_claimed(database: Database) -> None:
    later, first, twin = message(1, 2), message(1, 1, 0), message(1, 1, 1)
    other, foreign = message(2, 5), message(1, 9, saga="order")
    await put(database, later, twin, other, foreign, first)
    taken = await take(database)
    assert {row.id for row in taken} == {first.id, other.id, foreign.id}
    assert await take(database) == []
    async with database.begin() as tx:
        await outbox.delete(tx, [first.id, other.id])
    assert [row.id for row in await take(database)] == [twin.id]
    async with database.begin() as tx:
        await outbox.delete(tx, [twin.id])
        assert [row.id for row in await outbox.claim(tx, "node", 30, 100)] == [later.id]


async def test_claims_of_two_nodes_are_disjoint(database: Database, peer: Database) -> None:
    rows = [message(place, 1) for place in range(20)]
    await put(database, *rows)
    one = await take(database, "one", limit=12)
    other = await take(peer, "other", limit=12)
    assert (len(one), len(other)) == (12, 8)
    assert {row.id for row in one + other} == {row.id for row in rows}


async def test_a_claim_that_ran_out_is_taken_over_in_the_order_of_the_saga(database: Database, peer: Database) -> None:
    older, newer = message(1, 1), message(1, 2)
    await put(database, older, by="dead", lease=-1)
    await put(database, newer)
    assert [row.id for row in await take(peer, "alive")] == [older.id]
    assert await take(database, "dead") == []
    assert (await take(peer, "alive")) == []


async def test_rows_put_by_their_relay_are_its_own_until_its_claim_ends(database: Database, peer: Database) -> None:
    mine, free = message(1, 1), message(2, 1)
    await put(database, mine, by="me")
    await put(database, free)
    assert [row.id for row in await take(peer)] == [free.id]
    async with database.begin() as tx:
        await outbox.release(tx, [mine.id])
    assert [row.id for row in await take(peer)] == [mine.id]


async def test_putting_the_same_message_again_leaves_it_alone(database: Database) -> None:
    row, new = message(1, 1), message(2, 1)
    await put(database, row, by="me")
    before = await left(database, row)
    await put(database, replace(row, body=b"other"), new, new)
    assert await left(database, row) == before
    assert await left(database, new)
    async with database.read() as connection:
        assert await outbox.pending(connection) == 2
        assert await outbox.still_stored(connection, [row.id, "unknown"]) == {row.id}
        assert await outbox.still_stored(connection, []) == set()
        stored = await outbox.several(connection, [row.id, "unknown"])
        assert {id: (one.id, one.type) for id, one in stored.items()} == {row.id: (row.id, row.type)}
        assert await outbox.several(connection, []) == {}


async def test_a_confirm_removes_only_what_its_node_had_in_hand_last(database: Database) -> None:
    """A row that another has claimed, or that was written anew under the same id, is still to be sent."""
    mine, theirs, anew = message(1, 1), message(2, 1), message(3, 1)
    await put(database, mine, anew, by="me")
    await put(database, theirs, by="other")
    async with database.begin() as tx:
        await outbox.replace_all(tx, [anew])
    async with database.begin() as tx:
        await outbox.delete(tx, [mine.id, theirs.id, anew.id], claimed_by="me")
    async with database.read() as connection:
        assert await outbox.still_stored(connection, [mine.id, theirs.id, anew.id]) == {theirs.id, anew.id}


async def test_a_parked_row_blocks_its_own_saga_only(database: Database) -> None:
    bad, behind, other = message(1, 1), message(1, 2), message(2, 1)
    await put(database, bad, behind, other)
    async with database.begin() as tx:
        await outbox.park(tx, bad.id, "no such exchange")
    assert [row.id for row in await take(database)] == [other.id]
    async with database.read() as connection:
        found = await outbox.of_instance(connection, "app", 1)
        assert await outbox.pending(connection) == 3
    assert [(row.id, row.parked_reason) for row in found] == [(bad.id, "no such exchange"), (behind.id, None)]


async def test_of_what_is_withdrawn_those_are_known_that_nobody_had(database: Database, peer: Database) -> None:
    fresh, mine, released, parked, other = [message(place, 1) for place in range(5)]
    await put(database, fresh, other)
    await put(database, mine, released, parked, by="me", lease=-1)
    async with database.begin() as tx:
        await outbox.release(tx, [released.id])
        await outbox.park(tx, parked.id, "bad")
    async with peer.begin() as tx:
        asked = [row.id for row in (parked, released, mine, fresh)]
        assert await outbox.withdraw(tx, [*asked, "unknown"]) == {fresh.id}
        assert await outbox.withdraw(tx, asked) == set()
        assert await outbox.withdraw(tx, []) == set()
    assert [row.id for row in await take(database)] == [other.id]
    async with database.begin() as tx:
        assert await outbox.withdraw(tx, [other.id]) == set(), "it has been in somebody's hands since"


async def test_a_row_is_withdrawn_or_claimed_but_not_both(served: Database, served_peer: Database) -> None:
    row, free = message(1, 1), message(2, 1)
    await put(served, row)
    async with served.begin() as tx:
        await outbox.claim(tx, "me", 30, 10)
        waiting = asyncio.create_task(served_peer.run(lambda other: outbox.withdraw(other, [row.id])))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done, "whether it was claimed is not known yet"
    assert await waiting == set()
    async with served.read() as connection:
        assert await outbox.still_stored(connection, [row.id]) == {row.id}, "it is being sent: nothing may overtake it"
    await put(served, free)
    async with served.begin() as tx:
        assert await outbox.withdraw(tx, [free.id]) == {free.id}
        assert await take(served_peer) == []


async def test_a_parked_row_can_be_let_go(database: Database) -> None:
    bad, other = message(1, 1), message(2, 1)
    await put(database, bad, other, by="me", lease=60)
    async with database.begin() as tx:
        await outbox.park(tx, bad.id, "bad")
        await outbox.park(tx, other.id, "bad")
        await outbox.unpark(tx, [bad.id])
    assert [(row.id, row.parked_reason) for row in await take(database)] == [(bad.id, None)]


async def test_the_next_claim_is_told_in_seconds(database: Database) -> None:
    async def seconds() -> float | None:
        async with database.read() as connection:
            return await outbox.next_claim(connection)

    assert await seconds() is None
    bad, behind, mine = message(1, 1), message(1, 2), message(2, 1)
    await put(database, bad, mine, by="me", lease=60)
    assert await seconds() == pytest.approx(60, abs=5)
    await put(database, behind)
    async with database.begin() as tx:
        await outbox.park(tx, bad.id, "bad")
    assert await seconds() == pytest.approx(60, abs=5), "a row behind a parked one cannot be claimed"
    async with database.begin() as tx:
        await outbox.release(tx, [mine.id])
    assert await seconds() == pytest.approx(0, abs=5)


async def test_nothing_to_do_does_nothing(database: Database) -> None:
    async with database.begin() as tx:
        await outbox.insert(tx, [], None, 1)
        await outbox.delete(tx, [])
        await outbox.release(tx, [])
        assert await outbox.claim(tx, "node", 1, 10) == []


async def test_claims_run_out_by_the_clock_of_the_database(served: Database, served_peer: Database) -> None:
    row = message(1, 1)
    await put(served, row, by="me")
    await served_peer.ping()
    with clock.use(shifted := Shifted()):
        shifted.advance(3600)
        # This machine is an hour ahead, which is no reason to take what is another's.
        stranger = Database(served_peer.url.render_as_string(hide_password=False))
        try:
            assert await take(stranger) == []
            assert abs((stranger.now() - served_peer.now()).total_seconds() + 3600) < 5
        finally:
            await stranger.close()


async def test_a_hundred_rows_of_one_body_size_fit_any_packet(database: Database) -> None:
    rows = [message(place, 1, body=b"x" * 300_000) for place in range(100)]
    await put(database, *rows)
    assert len(await take(database)) == 100
