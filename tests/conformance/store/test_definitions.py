"""Definitions and held events: are versions of sagas written once, and never changed under live instances?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from orchestrix import Saga
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import definitions, held_events, transitions
from orchestrix.persistence.sagas.definition_store import DefinitionStore, VersionInUse, read, stored
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import FreeData, InvalidDataError
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import ended, some
from tests.unit.sagas.builders import NOW, ORDER

OTHER = replace(
    APP_PROVISIONING,
    steps=(replace(APP_PROVISIONING.steps[0], timeout=timedelta(seconds=9)), *APP_PROVISIONING.steps[1:]),
)


def node(database: Database, *sagas: Saga) -> DefinitionStore:
    """What a node with this code does."""
    return DefinitionStore(database, Catalog(sagas))


async def versions(database: Database) -> dict[tuple[str, int], Saga]:
    """What is stored."""
    async with database.read() as connection:
        return {one.key: read(one) for one in await definitions.all_of(connection)}


async def test_the_versions_of_the_code_are_written_once(database: Database, peer: Database) -> None:
    both = [node(one, APP_PROVISIONING, ORDER) for one in (database, peer)]
    assert await asyncio.gather(*(one.record() for one in both)) == [[], []]
    assert await node(database, ORDER).record() == []
    found = await versions(database)
    assert sorted(found) == [("app", 1), ("order", 3)]
    assert found["app", 1].steps == APP_PROVISIONING.steps


async def test_a_version_without_live_instances_is_replaced(database: Database) -> None:
    await node(database, APP_PROVISIONING).record()
    (one,) = await some(database, 1)
    async with database.begin() as tx:
        await transitions.write(tx, APPS, [(one.version, ended(one))], [], OutboxBatch([]))
    (replaced,) = await node(database, OTHER).record()
    assert (replaced.saga, replaced.version) == ("app", 1)
    assert replaced.differences == ("steps.createGitRepo.timeout was 60000000, is 9000000",)
    assert (await versions(database))["app", 1].steps == OTHER.steps


@pytest.mark.parametrize("pair", [APPS, INSTANCES], ids=["apps", "sagas"])
async def test_a_version_with_live_instances_is_refused(database: Database, pair: object) -> None:
    saga, other = APP_PROVISIONING, OTHER
    if pair is INSTANCES:
        saga, other = (replace(one, name="order") for one in (saga, other))
        await some(database, 3, INSTANCES, "order")
        await some(database, 2, INSTANCES, "another")
    else:
        await some(database, 3)
    await node(database, saga).record()
    with pytest.raises(VersionInUse, match=rf"'{saga.name}' version 1 has 3 live instances .*version=2"):
        await node(database, other).record()
    assert (await versions(database))[saga.name, 1].steps == saga.steps
    assert await node(database, replace(other, version=2)).record() == []


async def test_another_model_of_the_data_is_no_other_saga(database: Database) -> None:
    await node(database, ORDER).record()
    await some(database, 1, INSTANCES, "order")
    assert await node(database, replace(ORDER, data=FreeData)).record() == []
    async with database.read() as connection:
        (row,) = await definitions.all_of(connection)
    assert row.data_schema == stored(replace(ORDER, data=FreeData)).data_schema


async def test_a_node_learns_what_others_have(database: Database, peer: Database) -> None:
    await node(database, ORDER).record()
    catalog, told = Catalog([APP_PROVISIONING]), []
    mine = DefinitionStore(peer, catalog, lambda: told.append(catalog.events))
    await mine.record()
    assert catalog.version("order", 3) is not None
    assert catalog.startable("order") is None
    assert "evt.payDone" in told[-1]
    newer = replace(ORDER, version=4)
    await node(database, newer).record()
    async with peer.read() as connection:
        await mine.read_missing(connection, [("order", 4), ("order", 3)])
    assert catalog.version("order", 4) is not None
    assert len(told) == 2
    await mine.read_all()
    assert len(told) == 2


async def test_a_newer_form_is_left_alone_and_named(database: Database) -> None:
    row = replace(stored(ORDER), form=99)
    async with database.begin() as tx:
        assert await definitions.insert(tx, row)
        assert await definitions.lock(tx, "order", 3) == row
    catalog = Catalog([APP_PROVISIONING])
    mine = DefinitionStore(database, catalog)
    await mine.record()
    assert catalog.version("order", 3) is None
    assert mine.unreadable() == {
        ("order", 3): "form 99 of a stored definition is newer than this release: upgrade this node"
    }


def held(message_id: str, instance_id: int = 1, saga: str = "app") -> HeldEvent:
    """An event of a version that nobody here can run."""
    return HeldEvent(
        message_id, saga, instance_id, "evt.x", b'{"\xc3\xa9":1}', {"traceparent": "é"}, "unknown-version", NOW
    )


async def test_held_events_are_kept_once_in_their_order(database: Database, peer: Database) -> None:
    async with database.begin() as tx:
        await held_events.add(tx, [held("b"), held("a"), held("c", 2)])
        await held_events.add(tx, [])
    async with peer.begin() as tx:
        await held_events.add(tx, [held("a"), held("d", 1, "order")])
        await held_events.add(tx, [held("e")])
    async with database.begin() as tx:
        for message_id in ("b", "a"):
            first = await held_events.first(tx, "app", 1)
            assert first is not None
            assert (first.message_id, first.body, first.headers) == (message_id, held("b").body, held("b").headers)
            await held_events.delete(tx, [first.id])
        await held_events.delete(tx, [])
        assert await held_events.first(tx, "app", 3) is None
    async with database.read() as connection:
        assert await held_events.waiting(connection, 10) == [("app", 1), ("app", 2), ("order", 1)]
        assert await held_events.waiting(connection, 1) == [("app", 1)]
        assert await held_events.waiting(connection, 10, ("app", 1)) == [("app", 2), ("order", 1)]
        assert await held_events.waiting(connection, 10, ("order", 1)) == []
        assert await held_events.counts(connection) == {"app": 2, "order": 1}


async def test_code_that_was_replaced_starts_nothing_more_and_runs_what_is_there(
    database: Database, peer: Database
) -> None:
    catalog = Catalog([APP_PROVISIONING])
    mine = DefinitionStore(database, catalog)
    await mine.record()
    await node(peer, OTHER).record()  # no instance of it was live
    await mine.read_all()
    assert catalog.startable("app") is None
    found = catalog.version("app", 1)
    assert found is not None
    assert found.steps == OTHER.steps
    await mine.count_unrunnable()
    assert "saga app version 1 was replaced by another definition" in (mine.problem() or "")


async def test_a_looser_model_reaches_processes_that_run(database: Database, peer: Database) -> None:
    await node(database, ORDER).record()
    catalog = Catalog([APP_PROVISIONING])
    mine = DefinitionStore(peer, catalog)
    await mine.record()
    wrong = {"amount": "many"}
    with pytest.raises(InvalidDataError):
        versioned(catalog).check(wrong)
    await node(database, replace(ORDER, data=FreeData)).record()
    await mine.read_all()
    assert versioned(catalog).check(wrong) == wrong


def versioned(catalog: Catalog) -> Saga:
    """The third version of `order`."""
    found = catalog.version("order", 3)
    assert found is not None
    return found


async def test_a_saga_that_has_ended_gives_its_messages_to_one_of_another_name(database: Database) -> None:
    await node(database, ORDER).record()
    renamed = replace(ORDER, name="zebra", version=1)
    catalog = Catalog([APP_PROVISIONING])
    mine = DefinitionStore(database, catalog)
    await mine.record()
    async with database.begin() as tx:
        assert await definitions.insert(tx, stored(renamed))
    await mine.read_all()
    assert catalog.version("zebra", 1) is not None
    assert catalog.owner("cmd.pay") == "zebra"


async def test_a_message_of_another_saga_with_live_instances_is_refused_at_the_start(database: Database) -> None:
    await node(database, ORDER).record()
    thief = replace(ORDER, name="thief")
    assert await node(database, thief).record() == []  # nothing of it is live
    async with database.begin() as tx:
        await tx.execute(text("UPDATE saga_definitions SET version = 1 WHERE saga = 'order'"))
    await some(database, 1, INSTANCES, "order")
    with pytest.raises(ConfigError, match=r"needed by live instances of saga 'order': cmd\.reserve belongs to saga"):
        await node(database, thief).record()
