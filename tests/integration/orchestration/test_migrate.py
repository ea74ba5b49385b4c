"""Migrate: what do the nodes do with instances that are waited for, and that are moved beside them?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import COMPLETED, Job, NothingToUndo, Saga, Step
from orchestrix.engine.maintenance.version_migration import MigrationRequest, MigrationResult, migrate
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import INSTANCES
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import RETRY, Instance
from orchestrix.saga.versions.migration import NameMapping, marked
from tests.integration.orchestration.rig import Rig
from tests.integration.orchestration.test_job_steps import Desk
from tests.integration.orchestration.test_versions import FIRST, PACK
from tests.servers import templates
from tests.support import eventually

BOX = replace(PACK, name="box", state="BOXING", command="cmd.box", event="evt.boxed")
SHIP = Step("ship", "SHIPPING", event="evt.shipped", then=COMPLETED, undo=NothingToUndo("gone"), job=Job("ship"))
THIRD = Saga("parcel", (replace(BOX, then="SHIPPING"), SHIP), version=3)
MAPS = NameMapping({"PACKING": "BOXING", "SENDING": "SHIPPING"}, {"pack": "box", "send": "ship"})


@pytest.fixture
async def rig(sqlite_url: str) -> AsyncIterator[Rig]:
    """A node that has the code of the first version, and looks after wake-ups and jobs."""
    templates.upgraded(sqlite_url)
    rig = Rig(Database(sqlite_url), catalog=Catalog([FIRST]), desk=Desk())
    await rig.definitions.record()
    await rig.start()
    await rig.wakeups.start()
    yield rig
    await rig.stop()
    await rig.database.close()


async def mark(rig: Rig, one: Instance, seconds: float = 20) -> None:
    """Its next command waits for a migration."""
    here = await rig.now(one)
    async with rig.database.begin() as tx:
        until = tx.now() + timedelta(seconds=seconds)
        await instances.write_progress(tx, INSTANCES, [marked(here, until)])


async def moved(rig: Rig) -> MigrationResult:
    """What `sagas migrate` does."""
    asked = MigrationRequest("parcel", 3, MAPS, "bob", "because")
    return await migrate(rig.database, Catalog([THIRD]), asked)


async def test_what_follows_waits_for_the_move_and_is_that_of_the_new_version(rig: Rig) -> None:
    one = await rig.begin("x", saga="parcel")
    await mark(rig, one)
    rig.report(one, "evt.packed")
    waits = await rig.reached(one, "SENDING")
    assert waits.wake_reason == RETRY
    told = await rig.explainer.why("parcel", one.id)
    assert told.blocker == "migration"
    assert "The command of step send waits for `sagas migrate`" in told.sentence
    result = await moved(rig)
    assert (result.migrated, result.refused) == (1, [])
    after = await rig.until(one, lambda app: app.wake_reason == "job", deadline=15, message="at its job")
    assert (after.state, after.definition_version) == ("SHIPPING", 3)
    async with rig.database.read() as connection:
        (job,) = await jobs.page(connection, JobFilter(), 10)
    assert (job.id, job.handler, job.step) == (after.command_id, "ship", "ship")
    await rig.outbox_empty()
    assert (rig.sent("cmd.send"), rig.sent("ship")) == ([], []), "a job is no message"


async def test_without_a_move_it_goes_on_by_itself(rig: Rig) -> None:
    one = await rig.begin("x", saga="parcel")
    await mark(rig, one, 0.5)
    rig.report(one, "evt.packed")
    await rig.reached(one, "SENDING")
    await eventually(lambda: len(rig.sent("cmd.send")) == 1, deadline=15)
    rig.report(await rig.now(one), "evt.sent")
    await rig.reached(one, COMPLETED)


async def test_an_answer_to_the_try_before_is_told_apart(rig: Rig) -> None:
    """The new version does not know its event: nothing is undone or done by it, and it is kept."""
    one = await rig.begin("x", saga="parcel")
    rig.report(one, "evt.stepFailed", error={"type": "Busy", "message": "-", "retryable": True, "retryAfterMs": 60_000})
    await rig.until(one, lambda app: app.attempt == 2)
    assert (await moved(rig)).migrated == 1
    boxing = await rig.now(one)
    rig.report(replace(one, command_id=one.command_id), "evt.packed")
    await rig.broker.settled("evt.packed")
    assert await rig.now(one) == boxing
    assert boxing.progress.named == {"box": "pack"}
