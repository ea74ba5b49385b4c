"""What do transactions do that want the same rows at the same time?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from orchestrix.errors import Contention
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.saga.state import StateChange
from tests.conformance.store.build import message, some, started, stepped


@asynccontextmanager
async def held(database: Database, ids: list[int]) -> AsyncIterator[Transaction]:
    async with database.begin() as tx:
        assert len(await instances.lock(tx, APPS, ids)) == len(ids)
        yield tx


async def locked(database: Database, ids: list[int]) -> list[int]:
    async with database.begin() as tx:
        return [instance.id for instance in await instances.lock(tx, APPS, ids)]


@pytest.mark.req("S3-48")
async def test_what_another_node_has_locked_is_left_out_or_waited_for(database: Database, peer: Database) -> None:
    ids = [instance.id for instance in await some(database, 10)]
    async with held(database, ids[:5]):
        other = asyncio.create_task(locked(peer, ids))
        if database.dialect.single_writer:
            done, _ = await asyncio.wait({other}, timeout=0.2)
            assert not done, "SQLite has one writer, the other one has to wait"
        else:
            assert await other == ids[5:]
    assert await other == (ids if database.dialect.single_writer else ids[5:])
    assert await locked(peer, ids) == ids


async def test_due_rows_are_handed_out_once(served: Database, served_peer: Database) -> None:
    now = served.now()
    begun = await some(served, 6)
    async with served.begin() as tx:
        await instances.update_timers(tx, APPS, [instances.TimerUpdate(one.id, 1, now, "deadline", 1) for one in begun])
    async with served.begin() as tx, served_peer.begin() as other:
        first = await instances.due(tx, APPS, ["app"], 4)
        second = await instances.due(other, APPS, ["app"], 4)
    assert (len(first), len(second)) == (4, 2)
    assert {one.id for one in first + second} == {one.id for one in begun}


async def test_rows_being_claimed_are_left_out(served: Database, served_peer: Database) -> None:
    rows = [message(place, 1) for place in range(6)]
    async with served.begin() as tx:
        await outbox.insert(tx, rows, None, 0)
    async with served.begin() as tx, served_peer.begin() as other:
        one = await outbox.claim(tx, "one", 30, 4)
        two = await outbox.claim(other, "other", 30, 4)
    assert (len(one), len(two)) == (4, 2)
    assert {row.id for row in one + two} == {row.id for row in rows}


async def test_one_row_is_waited_for_until_the_limit_on_locks(served: Database, served_peer: Database) -> None:
    (one,) = await some(served, 1)
    async with held(served, [one.id]) as tx:
        with pytest.raises(Contention):
            async with asyncio.timeout(8), served_peer.begin() as late:
                await instances.lock_one(late, APPS, one.id)
        assert await instances.update(tx, APPS, [(1, stepped(one))]) == {one.id}
    async with served_peer.begin() as tx:
        after = await instances.lock_one(tx, APPS, one.id)
    assert after is not None
    assert after.version == 2


@pytest.mark.req("S3-52")
async def test_of_two_open_transactions_one_moves_the_row(served: Database, served_peer: Database) -> None:
    (one,) = await some(served, 1)

    async def late() -> set[int]:
        async with served_peer.begin() as tx:
            return await instances.update(tx, APPS, [(1, stepped(one, state="GIT_REPO_CREATED"))])

    async with served.begin() as tx:
        assert await instances.update(tx, APPS, [(1, stepped(one, state="REGISTERING"))]) == {one.id}
        waiting = asyncio.create_task(late())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
    assert await waiting == set()


async def test_writing_history_waits_for_nobody_elses_rows(served: Database, served_peer: Database) -> None:
    one, other = await some(served, 2)
    at = one.created_at
    async with served.begin() as tx, served_peer.begin() as second:
        await instances.lock(tx, APPS, [one.id])
        await instances.lock(second, APPS, [other.id])
        for row, transaction in ((one, tx), (other, second)):
            await history.insert(transaction, APPS, [(row.id, _told(2, at))])
            written = await history.listing(transaction, APPS, row.id, 0, 10)
            assert [change.version for change in written][-1] == 2


async def test_the_same_names_at_once_give_each_name_once(database: Database, peer: Database) -> None:
    taken: list[int] = []

    async def start(node: Database, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(6):
            names = dice.sample(range(60), 20)
            async with node.begin() as tx:
                ids = await instances.insert(tx, APPS, [started(f"n{name}") for name in names])
                await instances.insert(tx, INSTANCES, [started(f"n{name}", "order") for name in names])
            taken.extend(id for id in ids if id is not None)

    await asyncio.gather(*(start(node, seed) for seed, node in enumerate([database, peer] * 4)))
    assert len(taken) == len(set(taken))
    async with database.read() as connection:
        found = await instances.page(connection, APPS, "app", instances.InstanceFilter(), limit=200)
    assert {instance.id for instance in found} == set(taken)


async def test_overlapping_batches_do_not_block_each_other(database: Database, peer: Database) -> None:
    ids = [instance.id for instance in await some(database, 60)]
    moved = 0

    async def advance(node: Database, seed: int) -> None:
        nonlocal moved
        dice = random.Random(seed)
        for _ in range(8):
            async with node.begin() as tx:
                mine = await instances.lock(tx, APPS, dice.sample(ids, 30))
                done = await instances.update(tx, APPS, [(one.version, stepped(one)) for one in mine])
                assert done == {one.id for one in mine}
                await history.insert(tx, APPS, [(one.id, _told(one.version + 1, one.created_at)) for one in mine])
                await outbox.insert(tx, [message(one.id, one.version + 1) for one in mine], None, 0)
            moved += len(done)

    await asyncio.gather(*(advance(node, seed) for seed, node in enumerate([database, peer] * 4)))
    async with database.read() as connection:
        versions = await instances.versions(connection, APPS, ids)
        assert await outbox.pending(connection) == moved
    assert sum(versions.values()) == len(ids) + moved


def _told(version: int, at: datetime) -> StateChange:
    return StateChange(version, "A", "B", "x", "a", "c", None, None, at)


async def test_relays_that_compete_send_the_older_first(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        await outbox.insert(tx, [message(place % 10, place // 10) for place in range(60)], None, 0)
    sent: dict[int, list[int]] = {}

    async def relay(node: Database, name: str) -> None:
        while await left(node):
            for row in await node.run(lambda tx: outbox.claim(tx, name, 30, 3)):
                sent.setdefault(row.instance_id, []).append(row.version)
                async with node.begin() as tx:
                    await outbox.delete(tx, [row.id])

    async def left(node: Database) -> int:
        async with node.read() as connection:
            return await outbox.pending(connection)

    async with asyncio.timeout(60):
        await asyncio.gather(*(relay(node, f"r{place}") for place, node in enumerate([database, peer, database])))
    assert sent == {instance: list(range(6)) for instance in range(10)}


async def test_a_late_confirm_waits_for_whoever_holds_the_saga(database: Database, peer: Database) -> None:
    """Left out, the saga would keep a deadline that was counted from before its command could leave."""
    (one,) = await some(database, 1)
    assert one.command_id is not None
    confirmed = [(one.id, one.command_id, 900_000)]
    async with held(database, [one.id]):
        putting_off = asyncio.create_task(peer.run(lambda tx: instances.confirmed_late(tx, APPS, confirmed)))
        done, _ = await asyncio.wait({putting_off}, timeout=0.2)
        assert not done
    await putting_off
    async with database.read() as connection:
        found = (await instances.guard(connection, APPS, [one.id]))[one.id]
    assert found.wake_at is not None
    assert (found.wake_at - database.now()).total_seconds() > 800
