"""Is it kept what has begun, how far each command queue is, and where many steps run out of time at once?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import begun_commands, command_queues, instances
from orchestrix.persistence.sagas.begun_commands import BegunCommand
from orchestrix.persistence.sagas.command_queues import TIMEOUT_BURST_SIZE, TIMEOUT_BURST_WINDOW, TimeoutBurst
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS, SagaTables
from orchestrix.saga.state import Instance
from orchestrix.worker.commands.state_guard import StateGuard
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import PAIRS, ended, some, stepped
from tests.conformance.store.test_time_left import in_hand

Of = tuple[SagaTables, str]
MINUTE = timedelta(minutes=1)


@pytest.fixture(params=PAIRS)
def of(request: pytest.FixtureRequest) -> Of:
    """A pair of tables, and a saga that lives there."""
    return PAIRS[request.param]


async def test_a_begin_moves_the_wake_up_only_while_nothing_else_has(database: Database, of: Of) -> None:
    pair, saga = of
    free, moved, blocked, over, retried, worked = await some(database, 6, pair, saga)
    changes = [
        (1, stepped(moved)),
        (1, stepped(blocked, wake_at=None, wake_reason=None, blocker="paused")),
        (1, ended(over)),
        (1, stepped(retried, wake_reason="retry")),
        (1, stepped(worked, wake_reason="job")),
    ]
    at = database.now() + timedelta(minutes=5)
    async with database.begin() as tx:
        await instances.update(tx, pair, changes)
        rows = [BegunCommand(one.id, one.version, str(one.command_id), at, 7) for _, one in changes[1:]]
        old = BegunCommand(moved.id, moved.version, str(moved.command_id), at, 7)
        began = free.updated_at + timedelta(microseconds=3)
        mine = BegunCommand(free.id, 1, str(free.command_id), at, 7, began)
        done = await begun_commands.note(tx, pair, [*rows, old, mine])
        assert await begun_commands.note(tx, pair, []) == set()
    assert done == {free.id}
    found = await now(database, pair)
    assert found[free.id] == replace(free, wake_at=at, wait_ms=7, begun_id=free.command_id, begun_at=began)
    assert found[free.id].begun
    for _, unchanged in changes:
        assert found[unchanged.id] == unchanged


async def test_when_a_command_was_sent_is_kept_with_its_wait(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    at, sent = database.now() + MINUTE, one.updated_at + timedelta(microseconds=5)
    async with database.begin() as tx:
        await instances.update_timers(tx, pair, [TimerUpdate(one.id, 1, at, "backlog", 9, sent)])
    kept = (await now(database, pair))[one.id]
    assert (kept.wake_reason, kept.sent_at, kept.sending) == ("backlog", sent, sent)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, stepped(kept, wake_reason="deadline", wait_ms=60_000, updated_at=at))])
    moved = (await now(database, pair))[one.id]
    assert moved.sending != sent, "it was that of the command before"


async def test_a_worker_is_not_told_of_the_time_that_only_allows_for_the_queue(database: Database) -> None:
    (one,) = await some(database, 1, APPS, APP_PROVISIONING.name)
    guard, job, at = StateGuard(database), in_hand(one), database.now() + timedelta(minutes=9)
    async with database.begin() as tx:
        await instances.update_timers(tx, APPS, [TimerUpdate(one.id, 1, at, "backlog", 60_000, one.updated_at)])
    assert await guard.time_left(job) == 0.0
    async with database.begin() as tx:
        await begun_commands.note(tx, APPS, [BegunCommand(one.id, 1, str(one.command_id), at, 60_000)])
    assert await guard.time_left(job) == pytest.approx(540, abs=10)


async def test_a_queue_only_ever_gets_further(database: Database) -> None:
    begun = database.now().replace(microsecond=123456)
    for queues in ({"cmd.a": begun, "cmd.b": begun}, {"cmd.a": begun - MINUTE}, {"cmd.b": begun + MINUTE}, {}):
        async with database.begin() as tx:
            await command_queues.advance(tx, queues)
    async with database.read() as connection:
        found = await command_queues.begun_to(connection, ["cmd.a", "cmd.b", "cmd.c"])
        assert await command_queues.begun_to(connection, []) == {}
    assert found == {"cmd.a": begun, "cmd.b": begun + MINUTE}


async def test_two_nodes_write_it_down_at_once(database: Database) -> None:
    begun = database.now().replace(microsecond=0)

    async def write(number: int) -> None:
        later = {f"cmd.{name}": begun + timedelta(seconds=number) for name in ("a", "b", "c")}
        await database.run(lambda tx: command_queues.advance(tx, later))

    await asyncio.gather(*(write(number) for number in range(8)))
    async with database.read() as connection:
        found = await command_queues.begun_to(connection, ["cmd.a", "cmd.b", "cmd.c"])
    assert set(found.values()) == {begun + timedelta(seconds=7)}


async def late(database: Database, **counts: int) -> list[TimeoutBurst]:
    """So many steps of these queues run out of time; the waves that begin with that."""
    return await database.run(lambda tx: command_queues.expired(tx, {f"cmd.{k}": v for k, v in counts.items()}))


async def told(database: Database) -> list[tuple[str, int]]:
    """The waves that a person is told of."""
    async with database.read() as connection:
        return [
            (wave.queue, wave.count) for wave in await command_queues.recent_bursts(connection, timedelta(minutes=10))
        ]


async def test_many_that_run_out_of_time_at_once_are_told_once(database: Database) -> None:
    assert await late(database) == []
    assert await late(database, a=TIMEOUT_BURST_SIZE - 1, b=1) == []
    assert await told(database) == []
    assert [(one.queue, one.count) for one in await late(database, a=1, b=1)] == [("cmd.a", TIMEOUT_BURST_SIZE)]
    assert await late(database, a=5) == [], "it is the same wave"
    assert await told(database) == [("cmd.a", TIMEOUT_BURST_SIZE + 5)]
    async with database.begin() as tx:
        await tx.execute(
            text("UPDATE command_queues SET expired_since = :at"), {"at": before(database, TIMEOUT_BURST_WINDOW)}
        )
    assert await late(database, a=TIMEOUT_BURST_SIZE - 1) == [], "those of the minute before do not count"
    assert [one.count for one in await late(database, a=1)] == [TIMEOUT_BURST_SIZE]


async def test_a_wave_is_told_of_for_a_while(database: Database) -> None:
    await late(database, a=TIMEOUT_BURST_SIZE)
    async with database.begin() as tx:
        await tx.execute(text("UPDATE command_queues SET wave_at = :at"), {"at": before(database, 10 * MINUTE)})
    assert await told(database) == []


def before(database: Database, span: timedelta) -> object:
    """A moment longer ago than `span`, as the database takes it in plain SQL."""
    at = database.now() - span - timedelta(seconds=1)
    return at if database.dialect.name == "postgresql" else at.strftime("%Y-%m-%d %H:%M:%S.%f")


async def now(database: Database, pair: SagaTables) -> dict[int, Instance]:
    """All instances by their ids."""
    async with database.read() as connection:
        return dict(await instances.guard(connection, pair, range(1, 10_000)))


async def test_queues_are_in_the_order_in_which_they_are_locked(database: Database) -> None:
    """By code points, as `advance` sorts them: with another order in the database, two nodes would deadlock."""
    names = ["cmd.B", "cmd.a", "cmd.a-b", "cmd.aB", "cmd.ab"]
    await database.run(lambda tx: command_queues.advance(tx, dict.fromkeys(names, database.now())))
    async with database.read() as connection:
        found = list((await connection.execute(text("SELECT queue FROM command_queues ORDER BY queue"))).scalars())
    assert found == sorted(names)
    if database.dialect.name == "postgresql":
        async with database.read() as connection:
            collation = text(
                "SELECT collation_name FROM information_schema.columns"
                " WHERE table_name = 'command_queues' AND column_name = 'queue'"
            )
            assert (await connection.execute(collation)).scalar_one() == "C"
