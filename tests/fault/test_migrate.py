"""Are a thousand apps moved to another version beside the traffic, by a command that is killed and begun again?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.system import Client
from tests.fault.crashing import Rig, create
from tests.fault.crashing_migrate import checked, migrator, moved_of, store_second
from tests.processes import Processes
from tests.support import eventually

QUICK = {"ORCHESTRIX_GIT__PROVIDER": "simulated"}
LEAST_MOVED = 20
"""Apps that are moved before the command is killed."""


@pytest.mark.parametrize("system", ["postgres", "mariadb"])
async def test_it_is_killed_in_the_middle_and_goes_on(
    system: str,
    request: pytest.FixtureRequest,
    rabbitmq_url: str,
    processes: Processes,
    tmp_path: Path,
    scale: Callable[[int, int], int],
) -> None:
    rig = Rig(processes, tmp_path, request.getfixturevalue(f"{system}_url"), rabbitmq_url, **QUICK)
    rig.upgrade()
    count = scale(1000, 10_000)
    rig.next_names(count)
    _, url = rig.node()
    await rig.ready(url)
    await store_second(rig)
    async with Client(url) as client:
        assert await create(client, rig.names, at_once=50) == list(rig.names)
        first = migrator(rig)
        rig.worker("--concurrency", "20")
        traffic = asyncio.create_task(_traffic(client, count // 10))

        async def some_moved() -> bool:
            return await moved_of(rig) >= LEAST_MOVED

        await eventually(some_moved, deadline=60, every=0.02, message="some are moved")
        first.kill9()
        before = await moved_of(rig)
        assert before < count, "it was killed in the middle"
        last = migrator(rig)
        more = await traffic
        code = await last.exited(deadline=180)
    answer = json.loads(last.log())
    assert code == (1 if answer["refused"] else 0)
    await rig.all_ended((*rig.names, *more), deadline=180)
    ledger = await checked(rig, (*rig.names, *more), effects=False)
    moved = sum(app.definition_version == 2 for app in ledger.apps)
    assert answer["migrated"] > 0
    assert moved == before + answer["migrated"], "what was done stays, and nothing is done twice"


async def _traffic(client: Client, count: int) -> tuple[str, ...]:
    """More apps, which nodes start by the version of their code."""
    names = tuple(f"beside.{n}" for n in range(count))
    assert await create(client, names, at_once=5) == list(names)
    return names
