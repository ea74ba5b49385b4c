"""Does whoever waits for a saga at one node hear of what another node has committed?"""

from __future__ import annotations

import asyncio

from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.control import Action
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from tests.integration.orchestration.rig import Rig


async def test_a_commit_of_another_node_is_seen_soon(rig: Rig) -> None:
    app = await rig.begin("watched")
    elsewhere = SagaChangeNotifier(rig.database)
    waiting = asyncio.create_task(elsewhere.changed(app.saga, app.id, app.version, 60.0))
    await asyncio.wait({waiting}, timeout=0.5)
    assert not waiting.done()
    await rig.control.act(Action(app.saga, app.id, ActionRequest(SagaAction.PAUSE, "ada", "because")))
    async with asyncio.timeout(5):
        await waiting
    await elsewhere.stop()
