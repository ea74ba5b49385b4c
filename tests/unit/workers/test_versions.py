"""Versions: does a worker go by the definition that a command names, whichever its own code has?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from orchestrix import Context
from orchestrix.domain.version_check import Key
from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Connection
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING
from tests.support import eventually
from tests.unit.workers.rig import CREATED, Rig, command

pytestmark = pytest.mark.virtual_time

MADE = "evt.repoMade"
FIRST, SECOND = APP_PROVISIONING.steps
NEXT = replace(APP_PROVISIONING, version=2, steps=(replace(FIRST, event=MADE), SECOND))


class Stored:
    """The stored definitions, which are away for the first `failures` look-ups."""

    unrunnable: Collection[Key] = ()

    def __init__(self, catalog: Catalog, *, has: bool = True, failures: int = 0) -> None:
        self.catalog, self.has, self.failures = catalog, has, failures
        self.asked: list[Sequence[Key]] = []

    async def find(self, keys: Sequence[Key]) -> None:
        self.asked.append(keys)
        if len(self.asked) <= self.failures:
            raise Unavailable("the database is away")
        if self.has:
            self.catalog.add_stored(NEXT)

    async def read_all(self) -> None:
        await self.find([])

    async def read_missing(self, connection: Connection, keys: Sequence[Key]) -> None:
        raise AssertionError("a worker has no transaction of its own")


@pytest.fixture
def stored(rig: Rig) -> Stored:
    """The worker's code has the first version alone; the second is stored."""
    rig.catalog = Catalog([APP_PROVISIONING])
    rig.reader = stored = Stored(rig.catalog)
    return stored


async def done(context: Context, ordered: object) -> None:
    """A handler that has nothing to say."""


async def test_the_event_is_that_of_the_version_that_the_command_names(rig: Rig, stored: Stored) -> None:
    await rig.start(done)
    for app_id, version in enumerate((1, 2, None), start=1):
        rig.rows.put(app_id)
        rig.put(command(app_id, definition_version=version))
    await rig.settled()
    assert [body["appId"] for body in rig.bodies(CREATED)] == [1, 3]
    assert [body["appId"] for body in rig.bodies(MADE)] == [2]
    assert stored.asked == [[("app", 2)]]


async def test_it_waits_for_the_database_that_has_the_definition(rig: Rig, stored: Stored) -> None:
    stored.failures = 2
    await rig.start(done)
    rig.rows.put(1)
    rig.put(command(1, definition_version=2))
    await eventually(lambda: len(stored.asked) > 1, deadline=5)
    assert rig.consumer.paused
    await rig.settled()
    assert [body["appId"] for body in rig.bodies(MADE)] == [1]
    assert not rig.consumer.paused


async def test_a_version_that_is_stored_nowhere_is_kept_with_its_reason(rig: Rig, stored: Stored) -> None:
    stored.has = False
    await rig.start(done)
    rig.rows.put(1)
    rig.put(command(1, definition_version=2))
    await rig.settled()
    (dead,) = rig.broker.events("cmd.createGitRepo")
    assert dead.headers["x-reason"] == "unknown-version: 2 of app"
    assert rig.bodies(CREATED) == rig.bodies(MADE) == []


async def test_a_command_that_names_no_version_goes_by_that_of_its_row(rig: Rig, stored: Stored) -> None:
    rig.catalog.add_stored(NEXT)
    await rig.start(done)
    rig.rows.put(1, definition_version=2)
    rig.put(command(1))
    await rig.settled()
    assert [body["appId"] for body in rig.bodies(MADE)] == [1]
