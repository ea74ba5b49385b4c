"""Does an outage of the broker, or an alarm, that is longer than any step may take let a saga fail?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrix.saga.definition import COMPLETED
from tests import invariants
from tests.acceptance.system import Client
from tests.fault import brief
from tests.fault.world import NO_GIT, World
from tests.servers.rabbit import RabbitServer
from tests.support import eventually, holds


async def test_the_broker_is_away_for_two_deadlines(world: World, scale: Callable[[int, int], int]) -> None:
    names = [f"patient-{n}" for n in range(scale(100, 1000))]
    time = scale(4, 20)  # seconds that `tell` has: in as many all that has piled up is worked off, with slack
    env = _settings(world, time, BRIEF_WORK="0.05")
    await world.up(nodes=1, workers=0, env=env)
    await _start(world, names)
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
    await _all_told(world, names, deadline=30 + 5 * time)


async def test_the_broker_takes_no_messages_for_two_deadlines(
    world: World, rabbitmq: RabbitServer, scale: Callable[[int, int], int]
) -> None:
    """The node has nothing to send meanwhile, so that the broker does not tell it of its alarm."""
    names, time = [f"speechless-{n}" for n in range(4)], scale(6, 20)
    await world.up(env=_settings(world, time, BRIEF_WORK=f"{time / 2:g}"))
    await _start(world, names)

    async def all_at_work() -> bool:
        return all(app.state == "TELLING" for app in (await _ledger(world)).apps)

    await eventually(all_at_work, deadline=30, every=0.05, message="every saga is at its last step")
    try:
        await asyncio.to_thread(rabbitmq.alarm)
        await holds(lambda: world.nodes[0].alive, during=2 * time + 0.5)
        ledger = await _ledger(world)
        assert {app.state for app in ledger.apps} == {"TELLING"}, "nobody could answer, and nobody has failed"
    finally:
        await asyncio.to_thread(rabbitmq.all_clear)
    await _all_told(world, names, deadline=30)


def _settings(world: World, time: int, **more: str) -> dict[str, str]:
    """Those of a system with the saga `brief`, whose step has so many seconds."""
    shutil.copy(Path(brief.__file__), world.system.folder)
    return {
        **NO_GIT,
        "ORCHESTRIX_SAGAS": "brief",
        "ORCHESTRIX_WORKERS": "brief",
        "ORCHESTRIX_ORCHESTRATOR__TIMEOUTS_PER_SECOND": "10000",
        "ORCHESTRIX_WORKER__CONCURRENCY": "4",  # so that the work is not done before the broker goes away
        "BRIEF_SECONDS": str(time),
        **more,
    }


async def _start(world: World, names: Sequence[str]) -> None:
    async with Client(world.nodes[0].url) as client:
        bodies = [{"key": name, "createdBy": "ada"} for name in names]
        answers = await asyncio.gather(*(client.http.post("/sagas/brief", json=body) for body in bodies))
    assert {answer.status_code for answer in answers} == {200}


async def _all_told(world: World, names: Sequence[str], *, deadline: float) -> None:
    async def ended() -> bool:
        (await _ledger(world)).check(names, saga=brief.BRIEF)
        return True

    await eventually(ended, deadline=deadline, every=0.2, message="every saga ends")
    for app in (await _ledger(world)).apps:
        assert app.state == COMPLETED, app
        assert app.reasons == ["created", "evt.grabbed", "evt.told"], app.reasons


async def _ledger(world: World) -> invariants.Ledger:
    return await invariants.read(world.system.database_url, saga=brief.BRIEF.name)
