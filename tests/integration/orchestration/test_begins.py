"""Does a step's time count from the begin of its work, whoever has waited in the queue for how long?"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix.engine import consumer_presence, step_starts
from orchestrix.engine.control import Action
from orchestrix.persistence.sagas import command_queues, instances, redelivered_commands
from orchestrix.persistence.sagas.command_queues import TIMEOUT_BURST_SIZE
from orchestrix.persistence.sagas.redelivered_commands import SET_ASIDE_PREFIX, RedeliveryRecord
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.state import Instance
from orchestrix.saga.timeouts import SENT_ORDER_TOLERANCE
from orchestrix.telemetry import log_events
from tests.integration.orchestration.rig import Rig
from tests.support import eventually, holds, logged

STARTED = "evt.stepStarted"


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_presence, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(step_starts, "PROGRESS_WRITE_INTERVAL_S", 0.02)


async def say(rig: Rig, app: Instance, ago: int = 0, **more: Any) -> None:
    """A worker says that it has begun."""
    body = {"appId": app.id, "correlationId": app.correlation_id, "causationId": app.command_id, "beganMsAgo": ago}
    rig.broker.put(STARTED, json.dumps({**body, **more}).encode())
    await rig.broker.settled(STARTED)


async def test_a_begin_sets_the_wake_up_and_changes_nothing_else(rig: Rig) -> None:
    await rig.begins.start()
    app, saga = await rig.begin("late"), await rig.begin("own", saga="calm")
    before = rig.database.now()
    await asyncio.gather(say(rig, app, 400), say(rig, saga, saga="calm"))
    for one, seconds in ((app, 60), (saga, 1.5)):
        now = await rig.now(one)
        assert (now.begun, now.wake_reason, now.version) == (True, "deadline", 1)
        assert now.wake_at is not None
        assert timedelta(0) <= now.wake_at - before - timedelta(seconds=seconds - 0.4) < timedelta(seconds=3)
        assert (await rig.history(one)) == (await rig.history(one))[:1]
        assert await rig.ignored(one) == {}


@pytest.mark.parametrize(
    "wrong",
    [{"causationId": "another"}, {"correlationId": "forged"}, {"saga": "hasty"}, {"saga": "nobody"}, {"appId": 9999}],
)
async def test_what_is_no_word_about_the_command_that_is_out_is_ignored(rig: Rig, wrong: dict[str, Any]) -> None:
    await rig.begins.start()
    app = await rig.begin("other")
    await rig.outbox_empty()  # a command that is confirmed late puts the deadline off
    app = await rig.now(app)
    await say(rig, app, **wrong)
    assert await rig.now(app) == app
    assert not [one for one in rig.broker.published if one.exchange == "orchestrator.dead"]


async def test_a_begin_that_comes_after_the_end_is_ignored(rig: Rig) -> None:
    await rig.begins.start()
    app = await rig.begin("quick")
    rig.report(app, "evt.gitRepoCreated")
    await rig.reached(app, "REGISTERING")
    await rig.outbox_empty()
    moved = await rig.now(app)
    await say(rig, app)
    assert await rig.now(app) == moved
    assert await rig.ignored(app) == {}


async def test_a_begin_never_moves_what_a_person_holds(rig: Rig) -> None:
    await rig.begins.start()
    app = await rig.begin("held")
    await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.PAUSE, "ada", "wait")))
    await rig.outbox_empty()
    paused = await rig.now(app)
    await say(rig, app)
    assert await rig.now(app) == paused


async def test_one_whose_row_is_changed_meanwhile_is_looked_at_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.begins.start()
    app, real, looks = await rig.begin("raced"), instances.guard, 0

    async def guard(connection: Any, pair: Any, ids: Sequence[int]) -> dict[int, Instance]:
        nonlocal looks
        found = await real(connection, pair, ids)
        looks += 1
        if looks == 1:
            ask = ActionRequest(SagaAction.SET_DEADLINE, "ada", "more", extend_by=timedelta(hours=1))
            await rig.control.act(Action("app", app.id, ask))
        return found

    monkeypatch.setattr(instances, "guard", guard)
    await say(rig, app)
    now = await rig.now(app)
    assert (now.begun, now.version) == (True, 2)
    assert now.wake_at is not None
    assert now.wake_at > rig.database.now() + timedelta(minutes=30), "what the person has given stays"


async def test_a_begin_that_cannot_be_read_goes_to_the_dead_letters(rig: Rig) -> None:
    await rig.begins.start()
    app = await rig.begin("fine")
    rig.broker.put(STARTED, b'{"appId": 1, "correlationId": "c"}')
    await say(rig, app)
    letters = [one for one in rig.broker.published if one.exchange == "orchestrator.dead"]
    assert [(one.routing_key, one.headers["x-reason"]) for one in letters] == [(STARTED, "causationId: is missing")]
    assert (await rig.now(app)).begun


async def test_behind_others_nothing_fails(rig: Rig) -> None:
    """Times of 200 ms; the queue has messages all the while."""
    rig.broker.waiting = 7
    await rig.begins.start()
    await rig.wakeups.start()
    sagas = [await rig.begin(f"patient-{number}", saga="hasty") for number in range(5)]
    await rig.outbox_empty()
    for one in sagas:
        await rig.until(one, lambda row: row.wake_reason == "backlog", message="waiting")
    await holds(lambda: len(rig.sent("cmd.hurry")) == 5, during=1.0)
    first, *others = sagas
    await say(rig, first)
    again = await rig.until(first, lambda row: row.attempt == 2, message="late")
    assert [row.reason for row in await rig.history(again)] == ["created", "retry 2: deadline"], "its time had begun"
    for one in others:
        rig.report(one, "evt.hurried")
        assert (await rig.reached(one, "COMPLETED")).version == 2


async def test_whoever_was_overtaken_expires(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a worker's death; that the later one was begun, another node has heard."""
    rig.broker.waiting = 7
    await rig.wakeups.start()
    lost = await rig.begin("lost", saga="hasty")
    await rig.outbox_empty()
    waits = await rig.until(lost, lambda row: row.wake_reason == "backlog", message="waiting")
    assert waits.sending is not None
    later = (
        waits.sending + SENT_ORDER_TOLERANCE + timedelta(milliseconds=100)
    )  # the second copy is sent later than that
    await rig.database.run(lambda tx: command_queues.advance(tx, {"cmd.hurry": later}))
    again = await rig.until(lost, lambda row: row.attempt == 2, message="late")
    assert [row.reason for row in await rig.history(again)] == ["created", "retry 2: deadline"]
    await rig.until(again, lambda row: row.wake_reason == "backlog", message="waiting again")


async def test_whoever_was_set_aside_is_not_overtaken(rig: Rig) -> None:
    """A worker has put it back at the end of its queue, since workers died with it in hand."""
    rig.broker.waiting = 7
    await rig.wakeups.start()
    lost = await rig.begin("behind", saga="hasty")
    await rig.outbox_empty()
    await rig.until(lost, lambda row: row.wake_reason == "backlog", message="waiting")
    here = RedeliveryRecord(
        lost.command_id or "",
        "cmd.hurry",
        "hasty",
        lost.id,
        3,
        f"{SET_ASIDE_PREFIX} behind commands with fewer worker deaths",
    )
    await rig.database.run(lambda tx: redelivered_commands.put(tx, here))
    later = lost.updated_at + timedelta(seconds=3)
    await rig.database.run(lambda tx: command_queues.advance(tx, {"cmd.hurry": later}))
    end = rig.database.now() + timedelta(seconds=1)
    later_on = await rig.until(lost, lambda row: (row.wake_at or end) > end, message="due often")
    assert (later_on.attempt, later_on.wake_reason) == (1, "backlog")
    await rig.database.run(lambda tx: redelivered_commands.put(tx, replace(here, place="it is tried")))
    await rig.until(lost, lambda row: row.attempt == 2, message="late")


@pytest.mark.parametrize("how", ["begun", "answered"])
async def test_how_far_a_queue_is_comes_to_other_nodes(rig: Rig, how: str) -> None:
    await rig.progress.start()
    await rig.begins.start()
    app = await rig.begin("far")
    if how == "begun":
        await say(rig, app)
    else:
        rig.report(app, "evt.gitRepoCreated")

    async def written() -> bool:
        async with rig.database.read() as connection:
            found = await command_queues.begun_to(connection, ["cmd.createGitRepo"])
        return found == {"cmd.createGitRepo": app.updated_at}

    await eventually(written, deadline=5)


async def test_a_wave_of_time_outs_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "orchestrix.timers")
    await rig.wakeups.start()
    for number in range(TIMEOUT_BURST_SIZE + 2):
        await rig.begin(f"late-{number}", saga="hasty")

    async def told() -> bool:
        async with rig.database.read() as connection:
            found = await command_queues.recent_bursts(connection, timedelta(minutes=1))
        return [one.queue for one in found if one.count > TIMEOUT_BURST_SIZE] == ["cmd.hurry"]

    await eventually(told, deadline=10)
    said = [one.getMessage() for one in caplog.records if "timed out within a minute" in one.getMessage()]
    assert len(said) == 1
    assert "cmd.hurry" in said[0]
    assert len(logged(caplog, log_events.SAGA_TIMEOUTS)) == 1


async def test_history_says_when_work_began_by_its_report_or_by_its_end(rig: Rig) -> None:
    await rig.begins.start()
    app = await rig.begin("told")
    await say(rig, app, 0)
    begun = await rig.until(app, lambda now: now.begun)
    assert begun.begun_at is not None
    rig.report(app, "evt.gitRepoCreated")
    second = await rig.reached(app, "REGISTERING")
    rig.report(second, "evt.appRegistered", beganMsAgo=0)
    done = await rig.reached(app, "COMPLETED")
    rows = await rig.history(done)
    assert [row.begun_at for row in rows] == [None, begun.begun_at, None, rows[3].at]
