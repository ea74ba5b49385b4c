"""Does a worker hear how long its saga still waits for what it has in hand?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import NEVER, command_for
from orchestrix.saga.state import DEADLINE, Instance
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.state_guard import StateGuard
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import ended, some

CATALOG = Catalog([APP_PROVISIONING])


def in_hand(instance: Instance) -> CommandDelivery:
    """The command that is out for `instance`, as a worker has it."""
    command = command_for(APP_PROVISIONING, instance)
    assert command is not None
    owner = CATALOG.command(command.type)
    assert owner is not None
    return CommandDelivery(command, owner, 0.0)


async def test_time_that_a_person_gives_reaches_the_worker(database: Database) -> None:
    guard = StateGuard(database)
    one, other = await some(database, 2, APPS, APP_PROVISIONING.name)
    job = in_hand(one)
    assert await guard.time_left(job) == pytest.approx(60, abs=10)
    at = database.now() + timedelta(minutes=10)
    async with database.begin() as tx:
        await instances.update_timers(tx, APPS, [TimerUpdate(one.id, one.version, at, DEADLINE, 600_000)])
    assert await guard.time_left(job) == pytest.approx(600, abs=10)
    async with database.begin() as tx:
        await instances.update_timers(tx, APPS, [TimerUpdate(one.id, one.version, NEVER, DEADLINE, 600_000)])
    assert await guard.time_left(job) > 86_400
    async with database.begin() as tx:
        await instances.update(tx, APPS, [(one.version, ended(one))])
    assert await guard.time_left(job) == 0.0
    assert await guard.time_left(in_hand(other)) > 0
