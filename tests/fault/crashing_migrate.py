"""Crash points of `sagas migrate`: one that dies in the middle, and another run that goes on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Final

from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import definitions
from orchestrix.persistence.sagas.definition_store import stored
from orchestrix.saga.definition import COMPLETED, Saga
from sagas.app_provisioning import APP_PROVISIONING
from tests.fault.crashing import APPS, At, Rig, create, died
from tests.invariants import Ledger
from tests.processes import Process
from tests.support import eventually

_CREATE, _REGISTER = APP_PROVISIONING.steps
SECOND: Final = replace(
    APP_PROVISIONING,
    version=2,
    steps=(replace(_CREATE, name="makeRepo"), replace(_REGISTER, state="ENLISTING")),
    immediate={"GIT_REPO_CREATED": "ENLISTING"},
)
"""The next version: a step and a state have other names. No process has its code."""
COMMAND: Final = (
    *("sagas", "migrate", "app", "--to", "2", "--map", "REGISTERING=ENLISTING", "--map-step", "createGitRepo=makeRepo"),
    *("--wait", "--for", "60", "-o", "json"),
)


async def migrator_dies(rig: Rig, at: At) -> None:
    """While it moves apps whose step has just ended; another run moves the rest."""
    await store(rig.database_url, SECOND)
    _, client = await rig.ready_node()
    async with client:
        assert await create(client, rig.names, at_once=10) == list(rig.names)
    await rig.sent()
    doomed = _migrator(rig, **at.env)
    await eventually(lambda: _waited_for(rig), deadline=20, every=0.05, message="all are waited for")
    rig.worker("-q", "cmd.createGitRepo")
    await died(doomed, at)
    moved = await _moved_of(rig)
    assert (moved == 0) == (at.point == "migrate.before_commit"), "a batch is moved wholly or not at all"
    last = _migrator(rig)
    assert await last.exited(deadline=60) == 0, last.log_tail()
    assert json.loads(last.log())["migrated"] == APPS - moved
    rig.worker()
    await rig.all_ended(rig.names, deadline=30)
    ledger = await _checked(rig)
    assert {app.definition_version for app in ledger.apps if app.name in rig.names} == {2}


def _migrator(rig: Rig, **env: str) -> Process:
    """Starts the command."""
    return rig.processes.spawn(*COMMAND, env=rig.env(**env))


async def store(url: str, saga: Saga) -> None:
    """Writes a version, as a node with its code does."""
    database = Database(url)
    try:
        async with database.begin() as tx:
            await definitions.insert(tx, stored(saga))
    finally:
        await database.close()


async def _checked(rig: Rig) -> Ledger:
    """The invariants, and that each app was moved at most once, with one row of history and one of audit."""
    ledger = await rig.ledger()
    ledger.check(rig.names)
    ledger.check_effects(rig.repos)
    ledger.check_wire(rig.tap.read())
    assert {app.state for app in ledger.apps} == {COMPLETED}
    moved = [app for app in ledger.apps if app.definition_version == 2]
    assert all(app.reasons.count("migrated 1 -> 2") == 1 for app in moved), "one row of history each"
    told = Counter(row[0] for row in await rig.sql("SELECT instance_id FROM audit WHERE verb = 'migrate'"))
    assert told == Counter(app.id for app in moved), "one row of audit each"
    return ledger


async def _moved_of(rig: Rig) -> int:
    """How many apps of this round run by the next version."""
    return sum(app.definition_version == 2 for app in (await rig.ledger()).apps if app.name in rig.names)


async def _waited_for(rig: Rig) -> bool:
    rows = await rig.sql("SELECT progress FROM apps WHERE state = 'APP_INITIATED'")
    return len(rows) == APPS and all("migration" in str(row[0]) for row in rows)
