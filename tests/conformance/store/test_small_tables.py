"""Do notes, idempotency keys, the broker's incarnation and executor groups keep their promises?"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import update

from orchestrix.errors import Contention
from orchestrix.persistence import idempotency
from orchestrix.persistence.cluster import broker_incarnation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.registry import groups
from orchestrix.persistence.sagas import ignored_messages, redelivered_commands
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.persistence.tables import apps
from orchestrix.saga.state import PAUSED
from tests.conformance.store.build import note, started, stored

ANSWER = StoredAnswer("fingerprint", 200, {"ETag": '"1"', "Location": "/apps/1"}, b'{"id":1}\xff')


async def test_equal_notes_are_counted(database: Database) -> None:
    first = database.now()
    later = first + timedelta(seconds=5)
    async with database.begin() as tx:
        await ignored_messages.add(
            tx, [note(1, "late", at=first), note(1, "late", at=later), note(1, "other", at=later)]
        )
        await ignored_messages.add(tx, [])
    async with database.begin() as tx:
        await ignored_messages.add(tx, [note(1, "late", at=later + timedelta(seconds=1), count=3), note(2, "late")])
        await ignored_messages.add(tx, [note(1, "late", saga="order")])
    async with database.read() as connection:
        late, other = await ignored_messages.listing(connection, "app", 1)
        assert len(await ignored_messages.listing(connection, "app", 2)) == 1
        assert len(await ignored_messages.listing(connection, "order", 1)) == 1
    assert (late.reason, late.count) == ("late", 5)
    assert (late.first_at, late.last_at) == (first, later + timedelta(seconds=1))
    assert (other.reason, other.count) == ("other", 1)


async def test_an_instance_keeps_a_hundred_notes(database: Database) -> None:
    async with database.begin() as tx:
        await ignored_messages.add(tx, [note(1, f"reason {place}") for place in range(90)])
    async with database.begin() as tx:
        await ignored_messages.add(tx, [note(1, f"reason {place}") for place in range(60, 140)])
        await ignored_messages.add(tx, [note(2, "other")])
    async with database.read() as connection:
        found = await ignored_messages.listing(connection, "app", 1)
        assert len(await ignored_messages.listing(connection, "app", 2)) == 1
    assert len(found) == ignored_messages.NOTES_PER_INSTANCE
    counts = {one.reason: one.count for one in found}
    assert [counts[f"reason {place}"] for place in (59, 60, 89)] == [1, 2, 2]


async def test_long_and_bad_texts_are_cut_to_fit(database: Database) -> None:
    async with database.begin() as tx:
        await ignored_messages.add(tx, [note(1, "x" * 500), note(1, "x" * 400), note(1, "a\0b")])
    async with database.read() as connection:
        found = {one.reason: one.count for one in await ignored_messages.listing(connection, "app", 1)}
    assert found == {"x" * 110: 2, "a\ufffdb": 1}


async def test_notes_of_two_nodes_add_up(database: Database, peer: Database) -> None:
    async def add(node: Database) -> None:
        for _ in range(10):
            await node.run(lambda tx: ignored_messages.add(tx, [note(id, "late") for id in (3, 1, 2)]))

    await asyncio.gather(add(database), add(peer), add(database), add(peer))
    async with database.read() as connection:
        counts = [(await ignored_messages.listing(connection, "app", id))[0].count for id in (1, 2, 3)]
    assert counts == [40, 40, 40]


async def test_an_answer_is_stored_once_and_found_again(database: Database) -> None:
    async with database.begin() as tx:
        assert await idempotency.insert(tx, "scope", "Key", ANSWER)
        assert await idempotency.insert(tx, "scope", "key", ANSWER)
        assert await idempotency.insert(tx, "other", "Key", ANSWER)
        assert not await idempotency.insert(tx, "scope", "Key", StoredAnswer("other", 200, {}, b""))
    async with database.read() as connection:
        assert await idempotency.find(connection, "scope", "Key") == ANSWER
        assert await idempotency.find(connection, "scope", "KEY") is None


async def test_a_key_is_claimed_before_there_is_an_answer(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        assert await idempotency.claim(tx, "scope", "key", ANSWER.fingerprint)
        assert not await idempotency.claim(tx, "scope", "key", "other")
        assert await idempotency.claim(tx, "scope", "other", "other")
        await idempotency.complete(tx, "scope", "key", ANSWER)
    async with peer.begin() as tx:
        assert not await idempotency.claim(tx, "scope", "key", ANSWER.fingerprint)
        assert await idempotency.find(tx, "scope", "key") == ANSWER


async def test_of_two_requests_with_one_key_one_is_first(database: Database, peer: Database) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def first() -> bool:
        async with database.begin() as tx:
            stored = await idempotency.insert(tx, "scope", "key", ANSWER)
            entered.set()
            await leave.wait()
            return stored

    async def second() -> bool:
        async with peer.begin() as tx:
            return await idempotency.insert(tx, "scope", "key", ANSWER)

    one = asyncio.create_task(first())
    await entered.wait()
    other = asyncio.create_task(second())
    done, _ = await asyncio.wait({other}, timeout=0.2)
    assert not done, "the second has to wait until it is known whether the first commits"
    leave.set()
    assert await one is True
    assert await other is False


async def test_a_key_is_free_again_when_its_transaction_failed(database: Database, peer: Database) -> None:
    async def failing() -> None:
        async with database.begin() as tx:
            await idempotency.insert(tx, "scope", "key", ANSWER)
            raise RuntimeError("the start failed")

    with pytest.raises(RuntimeError):
        await failing()
    async with peer.begin() as tx:
        assert await idempotency.insert(tx, "scope", "key", ANSWER)


async def test_a_request_does_not_wait_for_ever_for_another(served: Database, served_peer: Database) -> None:
    async with served.begin() as tx:
        await idempotency.insert(tx, "scope", "key", ANSWER)
        with pytest.raises(Contention):
            async with asyncio.timeout(10), served_peer.begin() as late:
                await idempotency.insert(late, "scope", "key", ANSWER)


async def test_old_answers_are_removed_some_at_a_time(database: Database) -> None:
    async with database.begin() as tx:
        for place in range(5):
            await idempotency.insert(tx, "scope", f"key-{place}", ANSWER)
        assert await idempotency.purge(tx) == 0
        assert await idempotency.purge(tx, -60, 3) == 3
        assert await idempotency.purge(tx, -60, 3) == 2
        assert await idempotency.find(tx, "scope", "key-0") is None


async def test_one_node_puts_the_next_incarnation(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        assert await broker_incarnation.read(tx) is None
        assert not await broker_incarnation.replace(tx, "unknown", "a")
        assert await broker_incarnation.replace(tx, None, "a")
    async with peer.begin() as tx:
        assert not await broker_incarnation.replace(tx, None, "b")
        assert await broker_incarnation.replace(tx, "a", "b")
    async with database.begin() as tx:
        assert not await broker_incarnation.replace(tx, "a", "c")
        assert await broker_incarnation.read(tx) == "b"


async def test_a_node_that_was_overtaken_is_told_so(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        assert await broker_incarnation.replace(tx, None, "a")
        assert await broker_incarnation.touch(tx, "a")
    async with peer.begin() as tx:
        assert await broker_incarnation.replace(tx, "a", "b")
    async with database.begin() as tx:
        assert not await broker_incarnation.touch(tx, "a")
    async with peer.begin() as tx:
        assert await broker_incarnation.touch(tx, "b")
        assert await broker_incarnation.read(tx) == "b"


async def test_an_app_has_one_group_with_the_marker_of_its_maker(database: Database, peer: Database) -> None:
    now = database.now()
    async with database.begin() as tx:
        made = await groups.insert_if_absent(tx, "billing", "app:1:registerApp", now)
    async with peer.begin() as tx:
        assert await groups.insert_if_absent(tx, "billing", "app:2:registerApp", now) == made
        other = await groups.insert_if_absent(tx, "Billing", "app:2:registerApp", now)
        assert await groups.get(tx, "billing") == made
        assert await groups.get(tx, "unknown") is None
    assert (made.marker, made.address_type, made.address_list) == ("app:1:registerApp", groups.AUTO, "")
    assert other.id != made.id
    assert made.created_at == now


async def test_everybody_registering_at_once_sees_one_group(database: Database, peer: Database) -> None:
    async def register(node: Database, marker: str) -> str | None:
        return (await node.run(lambda tx: groups.insert_if_absent(tx, "x", marker, node.now()))).marker

    nodes = [database, peer] * 4
    seen = await asyncio.gather(*(register(node, f"m{place}") for place, node in enumerate(nodes)))
    assert len(set(seen)) == 1


async def test_of_a_suspect_the_latest_is_known_until_it_is_forgotten(database: Database) -> None:
    one = RedeliveryRecord("c-1", "cmd.pay", "order", 7, 3, "it waits")
    for noted in (
        one,
        RedeliveryRecord("c-2", "cmd.ship", "order", 8, 4, "it waits " + "é" * 300),
        RedeliveryRecord("c-1", "cmd.pay", "order", 7, 5, "x"),
    ):
        await database.run(lambda tx, noted=noted: redelivered_commands.put(tx, noted))  # type: ignore[misc]
    async with database.read() as connection:
        assert await redelivered_commands.of_command(connection, "c-1") == RedeliveryRecord(
            "c-1", "cmd.pay", "order", 7, 5, "x"
        )
        assert await redelivered_commands.of_command(connection, "c-3") is None
        assert [row.command_id for row in await redelivered_commands.page(connection, 10)] == ["c-1", "c-2"]
        assert await redelivered_commands.set_aside(connection, []) == {}
        assert list(await redelivered_commands.set_aside(connection, ["c-1", "c-2", "c-3"])) == ["c-2"]
    assert await database.run(lambda tx: redelivered_commands.purge(tx, 3600, 10)) == 0
    assert await database.run(lambda tx: redelivered_commands.purge(tx, -60, 1)) == 1
    assert await database.run(lambda tx: redelivered_commands.purge(tx, -60, 10)) == 1


async def test_who_waits_for_a_command_that_has_crashed_workers(database: Database) -> None:
    waiting, paused, other = await stored(database, APPS, [started(name) for name in ("waiting", "paused", "other")])
    for one in (waiting, paused):
        record = RedeliveryRecord(str(one.command_id), "cmd.pay", "app", one.id, 3, "x")
        await database.run(lambda tx, record=record: redelivered_commands.put(tx, record))  # type: ignore[misc]
    stale = RedeliveryRecord("of-an-earlier-try", "cmd.pay", "app", other.id, 3, "x")
    elsewhere = RedeliveryRecord(str(other.command_id), "cmd.pay", "order", other.id, 3, "x")
    for record in (stale, elsewhere):
        await database.run(lambda tx, record=record: redelivered_commands.put(tx, record))  # type: ignore[misc]
    hold = update(apps).where(apps.c.id == paused.id).values(blocker=PAUSED, wake_at=None, wake_reason=None)
    async with database.begin() as tx:
        await tx.execute(hold)
    async with database.read() as connection:
        assert await redelivered_commands.waited_for(connection, APPS, 10) == [("app", waiting.id)]
        assert await redelivered_commands.waited_for(connection, APPS, 0) == []
        assert await redelivered_commands.waited_for(connection, INSTANCES, 10) == []
        several = await redelivered_commands.several(connection, [str(waiting.command_id), "none"])
        assert [one.instance_id for one in several.values()] == [waiting.id]
        assert await redelivered_commands.several(connection, []) == {}
