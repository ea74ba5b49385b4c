"""Are a thousand sagas moved to another version beside the traffic, by a command that is killed and begun again?"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from orchestrix import COMPLETED, FAILED, crash
from tests import invariants
from tests.acceptance.system import Client
from tests.fault import brief
from tests.fault.crashing import At, Rig
from tests.fault.crashing_migrate import store
from tests.processes import Process, Processes
from tests.support import eventually

LEAST_MOVED: Final = 20
"""Sagas that are moved before the command is not killed any more."""
KILLED: Final = At("migrate.after_commit", 2)
"""The command is killed when it has moved two batches, however fast it is; a batch may be small, so that it is begun
and killed again until enough are moved."""
ENV: Final = {"ORCHESTRIX_SAGAS": "brief", "ORCHESTRIX_WORKERS": "brief", "BRIEF_SECONDS": "30", "BRIEF_WORK": "0.01"}
GRAB, TELL = brief.BRIEF.steps
SECOND: Final = replace(
    brief.BRIEF,
    version=2,
    steps=(
        replace(GRAB, name="seize", then="REPORTING", timeout=timedelta(seconds=30)),
        replace(TELL, state="REPORTING", timeout=timedelta(seconds=30)),
    ),
)
"""The next version: a step and a state have other names. No process has its code."""
COMMAND: Final = (
    *("sagas", "migrate", "brief", "--to", "2", "--map", "TELLING=REPORTING", "--map-step", "grab=seize"),
    *("--wait", "--for", "60", "-o", "json"),
)


@pytest.mark.parametrize("system", ["postgres", "mariadb"])
async def test_it_is_killed_in_the_middle_and_goes_on(
    system: str,
    request: pytest.FixtureRequest,
    rabbitmq_url: str,
    processes: Processes,
    tmp_path: Path,
    scale: Callable[[int, int], int],
) -> None:
    shutil.copy(Path(brief.__file__), tmp_path)
    rig = Rig(processes, tmp_path, request.getfixturevalue(f"{system}_url"), rabbitmq_url, **ENV)
    rig.upgrade()
    count = scale(1000, 10_000)
    _, url = rig.node()
    await rig.ready(url)
    await store(rig.database_url, SECOND)
    async with Client(url) as client:
        await _begin(client, "first", count)
        killed = _migrator(rig, **KILLED.env)
        rig.worker("--concurrency", "20")
        traffic = asyncio.create_task(_begin(client, "beside", count // 10))
        await _died(killed)
        while (before := await _moved(rig)) < LEAST_MOVED:
            await _died(_migrator(rig, **KILLED.env))
        assert before < count, "it was killed in the middle"
        last = _migrator(rig)
        await traffic
        code = await last.exited(deadline=180)
    answer = json.loads(last.log())
    assert code == (1 if answer["refused"] else 0), last.log_tail()
    await eventually(lambda: _all_ended(rig), deadline=180, every=0.5, message="every saga ends")
    await _check(rig, count + count // 10, before + answer["migrated"])
    assert answer["migrated"] > 0


async def _begin(client: Client, name: str, count: int) -> None:
    """So many sagas, which nodes start by the version of their code."""
    gate = asyncio.Semaphore(50)

    async def one(n: int) -> None:
        async with gate:
            answer = await client.http.post("/sagas/brief", json={"key": f"{name}.{n}", "createdBy": "ada"})
            assert answer.status_code == 200, answer.text

    await asyncio.gather(*map(one, range(count)))


def _migrator(rig: Rig, **env: str) -> Process:
    return rig.processes.spawn(*COMMAND, env={**rig.env(), **env})


async def _died(process: Process) -> None:
    assert await process.exited(deadline=60) == crash.EXIT_CODE, process.log_tail()
    assert f"crash point {KILLED} reached" in process.log()


async def _moved(rig: Rig) -> int:
    ((count,),) = await rig.sql("SELECT count(*) FROM saga_instances WHERE definition_version = 2")
    return int(count)


async def _all_ended(rig: Rig) -> bool:
    ((live,),) = await rig.sql(f"SELECT count(*) FROM saga_instances WHERE state NOT IN ('{COMPLETED}', '{FAILED}')")
    return not live


async def _check(rig: Rig, count: int, moved: int) -> None:
    """The invariants; each was moved at most once, with one row of history and audit, and done once under one key."""
    ledger = await invariants.read(rig.database_url, saga="brief")
    ledger.check([app.name for app in ledger.apps], saga=brief.BRIEF)
    ledger.check_wire(rig.tap.read(), saga=brief.BRIEF)
    assert len(ledger.apps) == count
    assert {app.state for app in ledger.apps} == {COMPLETED}
    second = [app for app in ledger.apps if app.definition_version == 2]
    assert len(second) == moved, "what was done stays, and nothing is done twice"
    assert all(app.reasons.count("migrated 1 -> 2") == 1 for app in second), "one row of history each"
    told = Counter(row[0] for row in await rig.sql("SELECT instance_id FROM audit WHERE verb = 'migrate'"))
    assert told == Counter(app.id for app in second), "one row of audit each"
    keys = {path.name: path.read_text() for path in (rig.folder / brief.GRABBED).iterdir()}
    assert keys == {str(app.id): app.effect_key("brief", "grab") for app in ledger.apps}
