"""Is it stored why an instance does not go on, and taken back when it goes on?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import update

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import begun_commands, hindered_instances, instances
from orchestrix.persistence.sagas.begun_commands import BegunCommand
from orchestrix.persistence.sagas.hindered_instances import Waiting
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.state import Instance
from tests.conformance.store.build import ended, some, stepped

Of = tuple[SagaTables, str]


async def now(database: Database, pair: SagaTables, *rows: Instance) -> list[Instance]:
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [one.id for one in rows])
    return [found[one.id] for one in rows]


async def hinder(database: Database, pair: SagaTables, by: str | None, *rows: Instance) -> None:
    async with database.begin() as tx:
        await hindered_instances.record(tx, pair, rows, by)


async def waiting(database: Database, pair: SagaTables, wanted: Waiting, after: int = 0, limit: int = 9) -> list[int]:
    async with database.begin() as tx:
        return [one.id for one in await hindered_instances.lock_waiting(tx, pair, wanted, after, limit)]


async def test_a_timer_says_what_hinders_and_that_nothing_does_any_more(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    assert one.hindered_by is None
    at = one.created_at + timedelta(hours=1)
    for by in ("no_consumer", "backlog", None):
        async with database.begin() as tx:
            await instances.update_timers(tx, pair, [TimerUpdate(one.id, 1, at, by or "deadline", 7, None, by)])
        assert [found.hindered_by for found in await now(database, pair, one)] == [by]


async def test_what_moves_an_instance_takes_it_back(database: Database, of: Of) -> None:
    pair, saga = of
    one, begun, late, held = rows = await some(database, 4, pair, saga)
    await hinder(database, pair, "no_consumer", *rows)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, stepped(one))])
        at = database.now() + timedelta(minutes=5)
        await begun_commands.note(tx, pair, [BegunCommand(begun.id, 1, str(begun.command_id), at, 7)])
        await instances.confirmed_late(tx, pair, [(late.id, str(late.command_id), 7_200_000)])
    found = await now(database, pair, *rows)
    assert [each.hindered_by for each in found] == [None, None, None, "no_consumer"]
    assert replace(found[3], hindered_by=None) == held, "neither its version nor its wake-up changes"


async def test_those_that_wait_for_a_worker_are_found(database: Database, of: Of) -> None:
    pair, saga = of
    first, behind, retried, paused, over, elsewhere, other = rows = await some(database, 7, pair, saga)
    changes = [
        (1, stepped(behind, wake_reason="backlog")),
        (1, stepped(retried, wake_reason="retry")),
        (1, stepped(paused, wake_at=None, wake_reason=None, blocker="paused")),
        (1, ended(over)),
        (1, stepped(elsewhere, state="REGISTERING")),
    ]
    async with database.begin() as tx:
        await instances.update(tx, pair, changes)
    unmarked, marked = Waiting(saga, [first.state], False), Waiting(saga, [first.state], True)
    assert await waiting(database, pair, unmarked) == [first.id, behind.id, other.id]
    assert await waiting(database, pair, unmarked, first.id, 1) == [behind.id]
    assert await waiting(database, pair, marked) == []
    assert await waiting(database, pair, Waiting(saga, [first.state, "REGISTERING"], False), behind.id) == [
        elsewhere.id,
        other.id,
    ]
    await hinder(database, pair, "backlog", *await now(database, pair, behind))
    await hinder(database, pair, "no_consumer", *await now(database, pair, first, paused))
    assert await waiting(database, pair, unmarked) == [behind.id, other.id]
    assert await waiting(database, pair, marked) == [first.id]
    assert [one.hindered_by for one in await now(database, pair, *rows)][3] is None, "a person holds it"


async def test_a_wait_that_was_put_off_for_want_of_consumers_is_a_deadline_again(database: Database, of: Of) -> None:
    pair, saga = of
    one, retried = await some(database, 2, pair, saga)
    at = one.created_at + timedelta(hours=1)
    async with database.begin() as tx:
        late = TimerUpdate(one.id, 1, at, "no_consumer", 7, one.created_at, "no_consumer")
        await instances.update_timers(tx, pair, [late, TimerUpdate(retried.id, 1, at, "retry", 7, None, None)])
    assert await waiting(database, pair, Waiting(saga, [one.state], False)) == []
    assert await waiting(database, pair, Waiting(saga, [one.state], True)) == [one.id]
    (before,) = await now(database, pair, one)
    await hinder(database, pair, None, before)
    assert await now(database, pair, one) == [replace(before, wake_reason="deadline", hindered_by=None)]


async def test_other_sagas_are_left_alone(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    mine = Waiting("another", [one.state], False)
    assert await waiting(database, pair, mine) == ([] if pair.saga is None else [one.id])


async def test_a_row_that_has_moved_meanwhile_is_left_alone(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    async with database.begin() as tx:
        await instances.update(tx, pair, [(1, stepped(one))])
    await hinder(database, pair, "no_consumer", one)
    assert [found.hindered_by for found in await now(database, pair, one)] == [None]


async def test_a_mark_that_a_node_of_an_earlier_release_left_is_taken_back_by_the_next_move(
    database: Database, of: Of
) -> None:
    """It moves the row and does not know the column."""
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    await hinder(database, pair, "no_consumer", one)
    table = pair.instances
    async with database.begin() as tx:
        await tx.execute(update(table).where(table.c.id == one.id).values(version=2, state="REGISTERING"))
    (moved,) = await now(database, pair, one)
    assert (moved.version, moved.hindered_by) == (2, "no_consumer")
    async with database.begin() as tx:
        await instances.update(tx, pair, [(2, stepped(replace(moved, hindered_by=None)))])
    assert [found.hindered_by for found in await now(database, pair, one)] == [None]
