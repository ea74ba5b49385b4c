"""Does an outage of the broker that is longer than any step may take let a saga fail?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sagas.engine.definition import COMPLETED
from tests import invariants
from tests.acceptance.system import Client
from tests.fault import brief
from tests.fault.world import NO_GIT, World
from tests.support import eventually, holds


async def test_the_broker_is_away_for_two_deadlines(world: World, scale: Callable[[int, int], int]) -> None:
    names = [f"patient-{n}" for n in range(scale(100, 1000))]
    time = scale(2, 20)  # seconds that `tell` has: in as many all that has piled up is worked off, with slack
    folder = world.system.folder
    shutil.copy(Path(brief.__file__), folder)
    env = {
        **NO_GIT,
        "ORCHESTRIX_SAGAS": "brief",
        "ORCHESTRIX_WORKERS": "brief",
        "ORCHESTRIX_ORCHESTRATOR__TIMEOUTS_PER_SECOND": "10000",
        "ORCHESTRIX_WORKER__CONCURRENCY": "4",  # so that the work is not done before the broker goes away
        "BRIEF_SECONDS": str(time),
    }
    await world.up(nodes=1, workers=0, env=env)
    async with Client(world.nodes[0].url) as client:
        answers = await asyncio.gather(*(_start(client, name) for name in names))
        assert set(answers) == {200}
    await world.up(nodes=0, workers=1, env=env)

    async def some_told() -> bool:
        return sum(app.state == COMPLETED for app in (await _ledger(world)).apps) > 0

    await eventually(some_told, deadline=30, every=0.02, message="the work has begun")
    for member in world.members:
        member.broker.refuse()
        member.broker.reset()
    live = [app for app in (await _ledger(world)).apps if app.state != COMPLETED]
    assert len(live) > len(names) // 4, "many are in the middle of it"
    await holds(lambda: world.nodes[0].alive, during=2 * time + 0.5)
    for member in world.members:  # which of them is back first, and how much sooner, is chance
        member.heal()

    async def all_told() -> bool:
        ledger = await _ledger(world)
        ledger.check(names, saga=brief.BRIEF)
        return True

    await eventually(all_told, deadline=30 + 5 * time, every=0.2, message="every saga ends")
    ledger = await _ledger(world)
    for app in ledger.apps:
        assert app.state == COMPLETED, app
        assert app.reasons == ["created", "evt.grabbed", "evt.told"], app.reasons


async def _start(client: Client, name: str) -> Any:
    return (await client.http.post("/sagas/brief", json={"key": name, "createdBy": "ada"})).status_code


async def _ledger(world: World) -> invariants.Ledger:
    return await invariants.read(world.system.database_url, saga=brief.BRIEF.name)
