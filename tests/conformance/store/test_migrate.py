"""Migrate: are the instances of older versions moved in batches, each once, beside others, on every database?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import update

from orchestrix import Saga
from orchestrix.engine.maintenance import version_migration as migration
from orchestrix.engine.maintenance.version_migration import MigrationRequest, MigrationResult, migrate
from orchestrix.errors import ConflictError, Invalid, NotFound
from orchestrix.persistence import audit
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import definitions, held_events, history, instances
from orchestrix.persistence.sagas.definition_store import stored as row_of
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import PAUSED, RETRY, UNSENT, Instance, InstanceProgress
from orchestrix.saga.versions.migration import NameMapping
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import ended, some, stepped
from tests.support import eventually

Of = tuple[SagaTables, str]
MAPS = NameMapping({"REGISTERING": "ENLISTING"}, {"createGitRepo": "createRepo"})


def versions(name: str) -> tuple[Saga, Saga]:
    """The saga as the instances run by it, and its third version."""
    old = replace(APP_PROVISIONING, name=name)
    first, second = old.steps
    steps = (replace(first, name="createRepo"), replace(second, state="ENLISTING"))
    return old, replace(old, version=3, steps=steps, immediate={"GIT_REPO_CREATED": "ENLISTING"})


async def known(database: Database, *sagas: Saga) -> None:
    """Stores the definitions."""
    async with database.begin() as tx:
        for saga in sagas:
            await definitions.insert(tx, row_of(saga))


async def retrying(database: Database, of: Of, count: int) -> list[Instance]:
    """Instances that wait for another try of their first step."""
    pair, name = of
    begun = await some(database, count, pair, name)
    waits = [stepped(one, wake_reason=RETRY, attempt=2, tries=2) for one in begun]
    await changed(database, pair, waits)
    return waits


async def changed(database: Database, pair: SagaTables, rows: Sequence[Instance]) -> None:
    async with database.begin() as tx:
        await instances.update(tx, pair, [(one.version - 1, one) for one in rows])


async def now(database: Database, pair: SagaTables, rows: Sequence[Instance]) -> dict[int, Instance]:
    async with database.read() as connection:
        return await instances.guard(connection, pair, [one.id for one in rows])


def asked(of: Of, **more: object) -> MigrationRequest:
    given: dict[str, object] = {"maps": MAPS, "actor": "bob", "reason": "release 3", **more}
    return MigrationRequest(of[1], 3, **given)  # type: ignore[arg-type]


async def run(database: Database, of: Of, *code: Saga, **more: object) -> MigrationResult:
    """What the command does."""
    return await migrate(database, Catalog(code), asked(of, **more))


async def test_all_are_moved_in_batches_with_a_row_of_history_and_of_audit(database: Database, of: Of) -> None:
    pair, name = of
    old, new = versions(name)
    await known(database, old, new)
    rows = await retrying(database, of, 2 * migration.INSTANCES_PER_TRANSACTION + 50)
    result = await run(database, of)
    assert (result.migrated, result.refused) == (450, [])
    found = await now(database, pair, rows)
    for before in rows:
        after = found[before.id]
        same = replace(
            before,
            version=3,
            definition_version=3,
            command_id=after.command_id,
            updated_at=after.updated_at,
            progress=InstanceProgress(named={"createRepo": "createGitRepo"}),
        )
        assert after == same
        assert after.command_id != before.command_id
    async with database.read() as connection:
        for one in (rows[0], rows[-1]):
            (row,) = await history.listing(connection, pair, one.id, 2, 10)
            assert (row.version, row.from_state, row.to_state) == (3, "APP_INITIATED", "APP_INITIATED")
            assert (row.reason, row.actor, row.command_id) == ("migrated 1 -> 3", "bob", found[one.id].command_id)
            (told,) = await audit.listing(connection, name, one.id)
            assert (told.verb, told.actor, told.reason) == ("migrate", "bob", "release 3")
            assert (told.from_version, told.to_version) == (2, 3)
            assert told.detail == {"from": 1, "to": 3, "map": dict(MAPS.states), "mapStep": dict(MAPS.steps)}
    again = await run(database, of)
    assert (again.migrated, again.refused) == (0, [])


async def test_what_cannot_be_moved_is_told_and_left(database: Database, of: Of) -> None:
    pair, name = of
    await known(database, *versions(name))
    moves, out, held, gone, newer, unknown = await retrying(database, of, 6)
    others = [
        stepped(out, wake_reason="deadline"),
        ended(gone),
        stepped(newer),
    ]
    await changed(database, pair, others)
    async with database.begin() as tx:
        event = HeldEvent("m-1", name, held.id, "evt.gitRepoCreated", b"{}", {}, "unknown-version", tx.now())
        await held_events.add(tx, [event])
        await _runs_by(tx, pair, {newer.id: 4, unknown.id: 2})
    before = await now(database, pair, [out, held, gone, newer, unknown])
    for dry in (True, False):
        result = await run(database, of, dry_run=dry)
        assert result.migrated == 1
        assert [(one.id, one.key, one.version, one.state) for one in result.refused] == [
            (one.id, one.key, version, "APP_INITIATED") for one, version in ((out, 1), (held, 1), (unknown, 2))
        ]
        reasons = [one.reason for one in result.refused]
        assert "was sent and may be running" in reasons[0]
        assert "held events" in reasons[1]
        assert reasons[2] == "version 2 is neither stored nor in this code"
        assert await now(database, pair, [out, held, gone, newer, unknown]) == before
        assert (await now(database, pair, [moves]))[moves.id].definition_version == (1 if dry else 3)


async def _runs_by(tx: Transaction, pair: SagaTables, found: dict[int, int]) -> None:
    table = pair.instances
    for id, version in found.items():
        await tx.execute(update(table).where(table.c.id == id).values(definition_version=version))


async def test_what_is_paused_keeps_its_pause_and_its_progress_has_the_new_names(database: Database, of: Of) -> None:
    pair, name = of
    await known(database, *versions(name))
    (one,) = await some(database, 1, pair, name)
    progress = InstanceProgress(attempts={"createGitRepo": 3}, resume=UNSENT, run=2, left=("createGitRepo",))
    paused = stepped(one, state="REGISTERING", blocker=PAUSED, wake_at=None, wake_reason=None, progress=progress)
    await changed(database, pair, [paused])
    assert (await run(database, of)).migrated == 1
    after = (await now(database, pair, [one]))[one.id]
    assert (after.state, after.blocker, after.wake_at, after.attempt) == ("ENLISTING", PAUSED, None, 1)
    named = {"createRepo": "createGitRepo"}
    assert after.progress == InstanceProgress(
        {"createRepo": 3}, resume=UNSENT, run=2, left=("createRepo",), named=named
    )


async def test_a_step_that_is_out_is_waited_for_and_then_goes_on(database: Database, of: Of) -> None:
    pair, name = of
    await known(database, *versions(name))
    (one,) = await some(database, 1, pair, name)
    result = await run(database, of, wait_s=0.3)
    (refused,) = result.refused
    assert refused.reason.endswith("not finished within 0.3 s")
    assert await now(database, pair, [one]) == {one.id: one}, "nothing waits for its migration any more"


async def test_a_step_that_ends_while_it_is_waited_for_is_moved(database: Database, peer: Database, of: Of) -> None:
    pair, name = of
    await known(database, *versions(name))
    (one,) = await some(database, 1, pair, name)
    waits = asyncio.create_task(run(database, of, wait_s=20.0))

    async def marked() -> bool:
        return (await now(peer, pair, [one]))[one.id].progress.migration is not None

    await eventually(marked, deadline=10)
    here = (await now(peer, pair, [one]))[one.id]
    await changed(peer, pair, [stepped(here, wake_reason=RETRY, attempt=2)])
    result = await waits
    assert (result.migrated, result.refused) == (1, [])
    after = (await now(peer, pair, [one]))[one.id]
    assert (after.definition_version, after.progress.migration) == (3, None)


async def test_what_others_have_locked_is_taken_later(served: Database, served_peer: Database, of: Of) -> None:
    pair, name = of
    await known(served, *versions(name))
    rows = await retrying(served, of, 400)
    async with served_peer.begin() as tx:
        assert await instances.lock_one(tx, pair, rows[2].id) is not None
        moves = asyncio.create_task(run(served, of))

        async def others_moved() -> bool:
            return sum(one.definition_version == 3 for one in (await now(served, pair, rows)).values()) == 399

        await eventually(others_moved, deadline=10)
        assert not moves.done()
    result = await moves
    assert (result.migrated, result.refused) == (400, [])


async def test_what_stays_locked_is_told(
    served: Database, served_peer: Database, of: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "LOCKED_TIMEOUT_S", 0.5)
    pair, name = of
    await known(served, *versions(name))
    rows = await retrying(served, of, 300)
    async with served_peer.begin() as tx:
        assert await instances.lock_one(tx, pair, rows[1].id) is not None
        result = await run(served, of)
    assert result.migrated == 299
    assert [(one.id, one.reason) for one in result.refused] == [(rows[1].id, migration._BUSY)]


async def test_two_at_once_move_each_once(database: Database, peer: Database, of: Of) -> None:
    pair, name = of
    await known(database, *versions(name))
    rows = await retrying(database, of, 300)
    results = await asyncio.gather(run(database, of), run(peer, of))
    assert sum(one.migrated for one in results) == 300
    assert [one.refused for one in results] == [[], []]
    found = await now(database, pair, rows)
    assert {(one.version, one.definition_version) for one in found.values()} == {(3, 3)}


async def test_a_version_that_only_this_code_has_is_stored_first(database: Database, of: Of) -> None:
    old, new = versions(of[1])
    await retrying(database, of, 1)
    assert (await run(database, of, old, new, dry_run=True)).migrated == 1
    async with database.read() as connection:
        assert await definitions.all_of(connection) == []
    assert (await run(database, of, old, new)).migrated == 1
    async with database.read() as connection:
        assert [one.key for one in await definitions.all_of(connection)] == [(of[1], 3)]


async def test_a_version_that_is_nowhere_or_another_one_here(database: Database, of: Of) -> None:
    old, new = versions(of[1])
    await known(database, old)
    with pytest.raises(NotFound, match=r"version 3 of saga '\w+' is neither stored nor in this code \(known are 1\)"):
        await run(database, of)
    await known(database, new)
    other = replace(new, steps=(new.steps[0], replace(new.steps[1], event="evt.enlisted")))
    with pytest.raises(Invalid, match=r"version 3 of saga '\w+' differs between this code and the database"):
        await run(database, of, other)


async def test_nobody_replaces_the_version_meanwhile(database: Database, of: Of) -> None:
    old, new = versions(of[1])
    await known(database, old, new)
    rows = await retrying(database, of, 1)
    prepared = await migration._prepared(database, Catalog([]), asked(of))
    other = replace(new, steps=(new.steps[0], replace(new.steps[1], event="evt.enlisted")))
    async with database.begin() as tx:
        await definitions.replace(tx, row_of(other))
    with pytest.raises(ConflictError, match="was replaced meanwhile: run the same command again"):
        await prepared.run()
    assert await now(database, of[0], rows) == {one.id: one for one in rows}
