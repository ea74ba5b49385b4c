"""Are the lines of a saga those of what was committed, and of nothing else?"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from orchestrix.errors import Unavailable
from orchestrix.outbox import saga_log
from orchestrix.telemetry import log_events
from orchestrix.telemetry.log_throttle import LogThrottle
from tests.integration.orchestration.rig import Rig
from tests.support import eventually, logged


async def test_what_is_rolled_back_leaves_no_line(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orchestrix.sagas")
    app = await rig.begin("undecided")
    assert [one["app_id"] for one in logged(caplog, log_events.SAGA_STARTED)] == [app.id]
    run, rolled_back, gate = rig.database.run, list[object](), list[object]()

    async def cut_off(work: Any, attempts: int = 4) -> Any:
        if getattr(work, "func", None) != rig.listener._write or gate:
            return await run(work, attempts)

        async def then_lost(tx: Any) -> None:
            rolled_back.append(await work(tx))
            raise Unavailable("the connection was lost before the commit")

        return await run(then_lost, attempts)

    monkeypatch.setattr(rig.database, "run", cut_off)
    rig.report(app, "evt.gitRepoCreated", data={"repoUrl": "file:///r"}, worker="w-1")
    await eventually(lambda: len(rolled_back) >= 2, deadline=10, message="it is tried again and again")
    assert logged(caplog, log_events.STEP_SUCCEEDED) == []
    gate.append(None)
    await rig.reached(app, "REGISTERING")
    await eventually(lambda: logged(caplog, log_events.STEP_SUCCEEDED), deadline=5)
    (line,) = logged(caplog, log_events.STEP_SUCCEEDED)
    assert (line["correlation_id"], line["step"], line["worker"]) == (app.correlation_id, "createGitRepo", "w-1")


async def test_an_event_of_an_unknown_app_is_said(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saga_log, "_unknown", LogThrottle())  # that of the process may have had such a line just now
    app = await rig.begin("known")
    rig.report(app, "evt.gitRepoCreated", appId=987654)
    await eventually(lambda: logged(caplog, log_events.EVENT_UNKNOWN_APP), deadline=5)
    (line,) = logged(caplog, log_events.EVENT_UNKNOWN_APP)
    assert (line["level"], line["app_id"]) == ("WARNING", 987654)
