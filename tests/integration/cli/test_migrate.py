"""Does `sagas migrate` read its maps, say what is wrong with them, and tell what it did?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrix import Saga
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import definitions, instances
from orchestrix.persistence.sagas.definition_store import stored
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.state import RETRY
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.build import some, stepped
from tests.unit.cli.shell import Shell

CREATE, REGISTER = APP_PROVISIONING.steps
THIRD = replace(
    APP_PROVISIONING,
    version=3,
    steps=(replace(CREATE, name="makeRepo", state="MAKING"), REGISTER),
)
MAPS = ("--map", "APP_INITIATED=MAKING", "--map-step", "createGitRepo=makeRepo")


@pytest.fixture
def url(shell: Shell) -> str:
    """A database with three apps that wait for another try, and one whose step is out."""
    url = f"sqlite+aiosqlite:///{shell.folder / 'some.db'}"
    shell.set(ORCHESTRIX_DATABASE_URL=url)
    assert shell("db", "upgrade").code == 0
    asyncio.run(_filled(url, THIRD))
    return url


async def _filled(url: str, saga: Saga) -> None:
    database = Database(url)
    try:
        begun = await some(database, 4)
        async with database.begin() as tx:
            await definitions.insert(tx, stored(saga))
            waits = [(one.version, stepped(one, wake_reason=RETRY)) for one in begun[:3]]
            await instances.update(tx, APPS, waits)
    finally:
        await database.close()


def test_it_tells_what_it_did(shell: Shell, url: str) -> None:
    dry = shell("sagas", "migrate", "app", "--to", "3", *MAPS, "--dry-run")
    assert (dry.code, dry.err) == (1, "")
    first, head, line = dry.out.splitlines()
    assert first == "3 would be moved to version 3 of app, 1 refused"
    assert head.split() == ["REFUSED", "VERSION", "WHY", "IDS"]
    why = "step createGitRepo was sent and may be running: --wait waits until it has ended"
    assert line.split() == ["1", "1", *why.split(), "4"]
    done = shell("sagas", "migrate", "app", "--to", "3", *MAPS, "-o", "json")
    assert done.code == 1
    (refused,) = done.json["refused"]
    assert (done.json["saga"], done.json["to"], done.json["dryRun"], done.json["migrated"]) == ("app", 3, False, 3)
    assert (refused["id"], refused["key"], refused["version"], refused["state"]) == (4, "name-0003", 1, "APP_INITIATED")
    again = shell("sagas", "migrate", "app", "--to", "3", *MAPS, "--wait", "--for", "0.2")
    assert (again.code, again.out.splitlines()[0]) == (1, "0 moved to version 3 of app, 1 refused")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--map", "MAKING"), 2, "'MAKING' names no pair: write OLD=NEW, as WRAPPING=PACKAGING"),
        (("--map", "=MAKING"), 2, "names no pair"),
        (("--map", "A=B=C"), 2, "names no pair"),
        (("--map", "APP_INITIATED=MAKING", "--map", "APP_INITIATED=REGISTERING"), 2, "--map APP_INITIATED has two new"),
        (("--map", "NOWHERE=MAKING"), 2, "no version of app before 3 has the state NOWHERE"),
        (("--map", "APP_INITIATED=NOWHERE"), 2, "version 3 of app has no state NOWHERE: it has MAKING, REGISTERING"),
        (("--map-step", "createGitRepo=registerApp"), 2, "would both be registerApp"),
        (("--for", "5"), 2, "--for says how long --wait waits: add --wait, or leave --for out"),
        (("--to", "7"), 3, "version 7 of saga 'app' is neither stored nor in this code (known are 1, 3)"),
    ],
)
def test_what_is_wrong_is_told(shell: Shell, url: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    answer = shell("sagas", "migrate", "app", "--to", "3", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_a_schema_that_is_behind_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    answer = shell("sagas", "migrate", "app", "--to", "3", "--database-url", f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    assert (answer.code, answer.out) == (1, "")
    assert "run `orchestrix db upgrade`" in answer.err
