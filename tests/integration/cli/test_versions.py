"""Versions: do `sagas check`, `doctor` and `GET /sagas` tell what a release would do to live instances?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from orchestrix import Saga
from orchestrix.cli.doctor.versions import versions
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import definitions, held_events
from orchestrix.persistence.sagas.definition_store import DefinitionStore, stored
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import some
from tests.integration.orchestration.rig import HookedBroker
from tests.servers import templates


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    yield database
    await database.close()


async def details(database: Database, *code: Saga, hearers: int = 1) -> list[str]:
    """What doctor says where the code is this."""
    broker = HookedBroker()
    broker.hearers = hearers
    return [one.detail for one in await versions(database, broker, Catalog(code))]


async def test_all_is_well(database: Database) -> None:
    await DefinitionStore(database, Catalog([APP_PROVISIONING])).record()
    await some(database, 2)
    assert await details(database, APP_PROVISIONING) == []


async def test_instances_that_nobody_can_run_and_code_that_contradicts(database: Database) -> None:
    await some(database, 2)
    later = replace(APP_PROVISIONING, version=2)
    (said,) = await details(database, later)
    assert said.startswith("saga app version 1, 2 live: is neither stored nor in this code")
    await DefinitionStore(database, Catalog([APP_PROVISIONING])).record()
    assert await details(database, later) == []
    slower = replace(APP_PROVISIONING.steps[0], timeout=timedelta(hours=1))
    (said,) = await details(database, replace(APP_PROVISIONING, steps=(slower, *APP_PROVISIONING.steps[1:])))
    assert "raise its version to 2" in said


async def test_commands_of_earlier_versions_that_nobody_reads(database: Database) -> None:
    await DefinitionStore(database, Catalog([APP_PROVISIONING])).record()
    await some(database, 2)
    renamed = replace(APP_PROVISIONING.steps[0], command="cmd.makeRepo")
    code = replace(APP_PROVISIONING, version=2, steps=(renamed, *APP_PROVISIONING.steps[1:]))
    assert await details(database, code) == []
    (said,) = await details(database, code, hearers=0)
    assert said.startswith("cmd.createGitRepo may still be sent by live instances")


async def test_held_events_and_rows_of_newer_releases(database: Database) -> None:
    async with database.begin() as tx:
        assert await definitions.insert(tx, replace(stored(APP_PROVISIONING), version=7, form=99))
        event = HeldEvent("m-1", "app", 1, "evt.x", b"{}", {}, "unknown-version", tx.now())
        await held_events.add(tx, [event])
    unread, held = await details(database, APP_PROVISIONING)
    assert unread.startswith("saga app version 7 cannot be read here: form 99")
    assert held == "1 of saga app wait for a node that knows the version of their instance"


async def test_the_health_page_counts_what_a_node_cannot_run(database: Database) -> None:
    (one, *_) = await some(database, 3)
    mine = DefinitionStore(database, Catalog([replace(APP_PROVISIONING, version=2)]))
    await mine.count_unrunnable()
    assert mine.problem() is None
    async with database.read() as connection:
        await mine.read_missing(connection, [(one.saga, one.definition_version)])
    await mine.count_unrunnable()
    assert mine.problem() == "live instances that this node cannot run: 3 of saga app version 1"
    await DefinitionStore(database, Catalog([APP_PROVISIONING])).record()
    await mine.read_all()
    await mine.count_unrunnable()
    assert mine.problem() is None
    async with database.read() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM saga_definitions"))).scalar_one() == 1
