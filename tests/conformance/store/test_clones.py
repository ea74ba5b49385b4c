"""Does a copy of a database that was reset do nothing for the original, and can each saga go on there by a word?"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.installation import Installation
from orchestrix.domain.nodes import NodeState
from orchestrix.engine.maintenance import clone_reset
from orchestrix.errors import ConflictError, SchemaMismatch, Unavailable
from orchestrix.persistence import outbox
from orchestrix.persistence import tables as t
from orchestrix.persistence.cluster import clone_rows, installation, nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs, schedules
from orchestrix.persistence.registry import groups
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.saga.definition import milliseconds
from orchestrix.saga.effect_keys import effect_key
from orchestrix.saga.state import Instance, InstanceProgress

from .build import message, some, started, stepped, stored
from .test_jobs import dispatched, inserted, pending, running
from .test_schedules import schedule

SECOND = timedelta(seconds=1)
BOTH = ((APPS, "app"), (INSTANCES, "order"))


async def now(database: Database, pair: SagaTables, *before: Instance) -> list[Instance]:
    async with database.read() as connection:
        found = await instances.guard(connection, pair, [one.id for one in before])
    return [found[one.id] for one in before]


async def changed(database: Database, pair: SagaTables, before: Instance, **changes: Any) -> Instance:
    after = stepped(before, **changes)
    async with database.begin() as tx:
        assert await instances.update(tx, pair, [(before.version, after)]) == {before.id}
    return after


async def count(database: Database, *tables: Any) -> list[int]:
    async with database.read() as connection:
        return [(await connection.execute(select(func.count()).select_from(one))).scalar_one() for one in tables]


async def read(database: Database) -> Installation:
    async with database.read() as connection:
        found = await installation.find(connection)
    assert found is not None
    return found


async def test_every_live_saga_is_parked_with_its_history(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_reset, "ROWS_PER_TRANSACTION", 3)
    began = [(pair, await some(database, 7, pair, saga)) for pair, saga in BOTH]
    former = (await read(database)).id
    done = await clone_reset.reset(database)
    assert (done.sagas, done.former, done.installation != former) == (14, former, True)
    for pair, before in began:
        for old, new in zip(before, await now(peer, pair, *before), strict=True):
            assert (new.blocker, new.wake_at, new.wake_reason, new.wait_ms) == ("cloned", None, None, 0)
            assert (new.state, new.version, new.command_id) == (old.state, old.version + 1, old.command_id)
            assert new.progress.resume == "unsent"
            assert (old.installation, new.installation) == (former, done.installation)
        async with peer.read() as connection:
            (row,) = await history.listing(connection, pair, before[0].id, 1, 10)
        assert (row.from_state, row.to_state, row.version) == (old.state, old.state, 2)
        assert row.reason.startswith("cloned: ")


async def test_a_second_reset_parks_nothing_more_and_gives_another_id(database: Database) -> None:
    await some(database, 2)
    first = await clone_reset.reset(database)
    second = await clone_reset.reset(database)
    assert (second.sagas, second.former, second.installation != first.installation) == (0, first.installation, True)


async def test_what_waits_for_a_person_stays_and_a_pause_becomes_a_clone(database: Database) -> None:
    one, held, failed, retry, awaiting = await some(database, 5)
    free: dict[str, Any] = {"wake_at": None, "wake_reason": None}
    await changed(database, APPS, one, blocker="paused", wait_ms=5000, progress=InstanceProgress(resume="job"), **free)
    await changed(database, APPS, held, blocker="unsendable", wait_ms=0, **free)
    await changed(database, APPS, failed, state="FAILED", command_id=None, **free)
    later = database.now() + 60 * SECOND
    await changed(database, APPS, retry, wake_reason="retry", wake_at=later, deadline_at=later + 60 * SECOND)
    gone = InstanceProgress(awaited="createGitRepo", attempts={"createGitRepo": 1})
    await changed(database, APPS, awaiting, state="COMPENSATING", progress=gone)
    assert (await clone_reset.reset(database)).sagas == 3
    found = await now(database, APPS, one, held, failed, retry, awaiting)
    assert [row.blocker for row in found] == ["cloned", "unsendable", None, "cloned", "cloned"]
    assert [row.progress.resume for row in found] == ["unsent", None, None, "retry", "deadline"]
    assert 50_000 < found[3].wait_ms <= 60_000
    assert found[3].progress.run_ms == milliseconds(later + 60 * SECOND - retry.updated_at), "as at its last change"


async def test_what_is_to_be_sent_or_was_answered_is_forgotten(database: Database) -> None:
    (one,) = await some(database, 1)
    async with database.begin() as tx:
        await outbox.insert(tx, [message(one.id, 1), message(one.id, 2)], claimed_by="n-1", lease_s=60.0)
        await tx.execute(insert(t.broker_incarnation).values(id=1, incarnation="x", changed_at=tx.now()))
        key = {"scope": "s", "key": "k", "fingerprint": "f", "status": 200, "headers": {}, "body": b""}
        await tx.execute(insert(t.idempotency_keys).values(**key, created_at=tx.now()))
        await tx.execute(insert(t.write_probes).values(name="n-1", at=tx.now()))
    await clone_reset.reset(database)
    assert await count(database, t.outbox, t.broker_incarnation, t.idempotency_keys, t.write_probes) == [0, 0, 0, 0]


async def test_of_the_original_nobody_leads_or_lives(database: Database) -> None:
    async with database.begin() as tx:
        assert await nodes.join(tx, "n-1", "n", ["coordinator"])
        at = tx.now() + 30 * SECOND
        lease = {"name": "orchestrix:coordinator:leader", "term": 7, "holder": "n-1", "mode": "broker"}
        await tx.execute(insert(t.leases).values(**lease, lease_until=at, gained_at=at))
    await clone_reset.reset(database)
    assert await count(database, t.nodes) == [0]
    async with database.read() as connection:
        (row,) = await connection.execute(select(t.leases.c.term, t.leases.c.lease_until, t.leases.c.resigned_at))
    assert (row.term, row.lease_until < at, row.resigned_at is not None) == (7, True, True)


async def test_jobs_of_the_copy_end_and_those_that_are_steps_are_put_down_anew_later(database: Database) -> None:
    of_saga = pending(database, saga="order", instance_id=1, step="build")
    await inserted(database, of_saga)
    (plain,) = await inserted(database, pending(database))
    at_work, sent = await running(database), await dispatched(database)
    done = await clone_reset.reset(database)
    assert done.jobs == 4
    async with database.read() as connection:
        assert await jobs.get(connection, of_saga.id) is None
        for one in (plain, at_work, sent):
            found = await jobs.get(connection, one.id)
            assert found is not None
            assert (found.state, found.owner, found.channels, found.wake_at) == (rules.CANCELLED, None, 0, None)
            assert (found.cancel_reason or "").startswith("cloned: ")
            assert {one.state for one in await jobs.attempts(connection, one.id)} <= {rules.CANCELLED}


async def test_schedules_are_paused(database: Database) -> None:
    async with database.begin() as tx:
        await schedules.insert(tx, schedule())
        await schedules.insert(tx, schedule("paused", paused_at=database.now(), due_at=None, next_at=None))
    assert (await clone_reset.reset(database)).schedules == 1
    async with database.read() as connection:
        found = await schedules.page(connection, 10)
    assert [(one.state.value, one.next_at) for one in found] == [("PAUSED", None)] * 2


async def test_marks_of_groups_are_those_of_the_copy_also_from_before_there_were_ids(database: Database) -> None:
    one, old = await some(database, 2)
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "one", effect_key(one, "registerApp", undoes=False), tx.now())
        await groups.insert_if_absent(tx, "old", f"app:{old.id}:registerApp:do", tx.now())
        await groups.insert_if_absent(tx, "other", "by hand", tx.now())
    await clone_reset.reset(database)
    after = await now(database, APPS, one, old)
    async with database.read() as connection:
        found = [await groups.get(connection, name) for name in ("one", "old", "other")]
    assert [row and row.marker for row in found] == [
        *(effect_key(row, "registerApp", undoes=False) for row in after),
        "by hand",
    ]


async def test_instances_from_before_there_were_ids_have_the_copys_from_then_on(
    database: Database, peer: Database
) -> None:
    (old,) = await some(database, 1)
    async with database.begin() as tx:
        await tx.execute(update(t.installation).values(last_app_id=old.id))
    assert (await now(peer, APPS, old))[0].installation == ""
    done = await clone_reset.reset(database)
    assert (await now(database, APPS, old))[0].installation == done.installation


async def test_a_reset_that_was_cut_off_lets_nobody_start_and_is_gone_on_with(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone_reset, "ROWS_PER_TRANSACTION", 2)
    before = await some(database, 5)
    former = (await read(database)).id
    whole = clone_rows.end_jobs

    async def cut(*_: Any) -> int:
        raise Unavailable("the connection is gone")

    monkeypatch.setattr(clone_rows, "end_jobs", cut)
    with pytest.raises(Unavailable):
        await clone_reset.reset(database)
    half = await read(peer)
    assert (half.id, half.resetting is not None) == (former, True)
    async with peer.read() as connection:
        with pytest.raises(SchemaMismatch, match="run it again"):
            await installation.known(connection)
    monkeypatch.setattr(clone_rows, "end_jobs", whole)
    done = await clone_reset.reset(peer)
    assert (done.installation, done.sagas) == (half.resetting, 0)
    assert {row.version for row in await now(peer, APPS, *before)} == {2}


async def test_what_was_done_is_in_the_audit(database: Database) -> None:
    await some(database, 1)
    done = await clone_reset.reset(database)
    async with database.read() as connection:
        details = [row.detail for row in await connection.execute(select(t.audit.c.detail).order_by(t.audit.c.id))]
    assert [one.get("begun") for one in details] == [True, None]
    assert (details[1]["former"], details[1]["installation"], details[1]["sagas"]) == (
        done.former,
        done.installation,
        1,
    )


async def test_a_node_that_beats_is_no_copy(database: Database) -> None:
    async with database.begin() as tx:
        await nodes.join(tx, "n-1", "n", [])
    told: list[str] = []

    async def beats() -> None:
        while True:
            await asyncio.sleep(0.05)
            await database.run(lambda tx: nodes.record_heartbeat(tx, "n-1", NodeState.ALIVE, 0))

    beating = asyncio.create_task(beats())
    with pytest.raises(ConflictError, match="node n-1 uses this database"):
        await clone_reset.wait_until_unused(database, 20.0, told.append)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    assert "node n-1" in told[0]


async def test_rows_that_nobody_writes_any_more_are_waited_out(database: Database) -> None:
    async with database.begin() as tx:
        await nodes.join(tx, "n-1", "n", [])
        await tx.execute(insert(t.write_probes).values(name="p-1", at=tx.now() + timedelta(hours=1)))
    told: list[str] = []
    await clone_reset.wait_until_unused(database, 1.0, told.append)
    assert len(told) == 1
    await clone_reset.wait_until_unused(database, 0.0, told.append)


async def test_nothing_is_waited_for_where_nobody_was_heard_of(database: Database) -> None:
    async with database.begin() as tx:
        await nodes.join(tx, "n-1", "n", [])
        await tx.execute(update(t.nodes).values(beat_at=tx.now() - timedelta(minutes=5)))
    begun = clock.monotonic()
    await clone_reset.wait_until_unused(database, 30.0, lambda _: pytest.fail("there is nobody"))
    assert clock.monotonic() - begun < 5.0


async def test_a_new_instance_has_the_id_of_the_database_and_an_older_one_has_none(database: Database) -> None:
    here = (await read(database)).id
    (old,) = await some(database, 1)
    async with database.begin() as tx:
        await tx.execute(update(t.installation).values(last_app_id=old.id))
    fresh = Database(database.url.render_as_string(hide_password=False))
    try:
        (new,) = await stored(fresh, APPS, [started("new")])
        (again,) = await now(fresh, APPS, old)
        assert (new.installation, again.installation) == (here, "")
        (other,) = await some(fresh, 1, INSTANCES, "order")
        assert other.installation == here, "each table has its own last one"
    finally:
        await fresh.close()
    async with database.begin() as tx:
        await tx.execute(update(t.installation).values(last_app_id=0))


async def test_without_its_row_a_database_is_not_worked_on(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        await tx.execute(update(t.installation).values(id=2))
    try:
        async with peer.read() as connection:
            with pytest.raises(SchemaMismatch, match="restore the whole of the backup"):
                await installation.known(connection)
    finally:
        async with database.begin() as tx:
            await tx.execute(update(t.installation).values(id=1))
