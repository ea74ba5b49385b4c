"""Does a person's word count only for the version of the saga that the person has seen?"""

from __future__ import annotations

import pytest

from orchestrix.engine.control import Action, VersionMismatch
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from tests.integration.orchestration.rig import Rig

PAUSE = ActionRequest(SagaAction.PAUSE, "ada", "because")


@pytest.mark.parametrize("other", [-1, 1])
async def test_a_word_about_another_version_changes_nothing(rig: Rig, other: int) -> None:
    app = await rig.begin("seen")
    with pytest.raises(VersionMismatch) as refused:
        await rig.control.act(Action(app.saga, app.id, PAUSE, app.version + other))
    assert refused.value.current == app.version
    assert await rig.now(app) == app


async def test_a_word_about_this_version_is_done(rig: Rig) -> None:
    app = await rig.begin("seen")
    acted = await rig.control.act(Action(app.saga, app.id, PAUSE, app.version))
    assert (acted.instance.blocker, acted.instance.version) == ("paused", app.version + 1)
    assert (await rig.now(app)).blocker == "paused"
