"""What is sent again when no answer comes, or when the broker has forgotten everything?"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.broker.port import Outcome, Published
from orchestrix.engine import event_listener, timers
from orchestrix.engine.maintenance import broker_reset as incarnation_service
from orchestrix.engine.maintenance.broker_reset import BrokerResetDetector
from orchestrix.engine.timers import SagaTimers
from orchestrix.errors import Unavailable
from orchestrix.persistence.cluster import broker_incarnation
from tests.integration.orchestration.rig import CATALOG, Rig
from tests.support import eventually, holds


async def test_a_step_without_an_answer_is_tried_again_and_then_fails(rig: Rig) -> None:
    await rig.wakeups.start()
    saga = await rig.begin("slow", saga="hasty")
    failed = await rig.reached(saga, "FAILED", deadline=10)
    sent = rig.sent("cmd.hurry")
    assert len(sent) == len(set(sent)) == 3, "each attempt has its own id"
    assert [row.reason for row in await rig.history(saga)] == [
        "created",
        "retry 2: deadline",
        "retry 3: deadline",
        "deadline",
    ]
    assert (failed.attempt, failed.wake_at, failed.blocker) == (3, None, None)


async def test_a_queue_without_consumers_fails_nobody(rig: Rig) -> None:
    rig.broker.hearers = 0
    await rig.wakeups.start()
    saga = await rig.begin("unheard", saga="hasty")

    async def excused() -> bool:
        return (await rig.now(saga)).wake_reason == "no_consumer"

    await eventually(excused, deadline=5)
    await holds(lambda: len(rig.sent("cmd.hurry")) == 1, during=1.0)
    row = await rig.now(saga)
    assert (row.version, row.attempt, row.state) == (1, 1, "HURRYING")
    rig.broker.hearers = 1
    await rig.reached(saga, "FAILED", deadline=10)


async def test_who_comes_back_before_the_deadline_has_the_step_s_time_again(rig: Rig) -> None:
    """The queue has a consumer when the time is over, but had none for most of it."""
    rig.broker.hearers = 0
    await rig.wakeups.start()
    saga = await rig.begin("patient", saga="calm")
    await rig.outbox_empty()
    since = (await rig.now(saga)).wake_at
    assert since is not None
    await eventually(lambda: rig.database.now() > since - timedelta(seconds=0.4), deadline=5, every=0.01)
    rig.broker.hearers = 1

    async def excused() -> bool:
        return (await rig.now(saga)).wake_reason == "no_consumer"

    await eventually(excused, deadline=3, every=0.01)
    again = (await rig.now(saga)).wake_at
    assert again is not None
    assert again - since > timedelta(seconds=0.2), "its time counts from when somebody read again"
    rig.report(saga, "evt.strolled")
    assert (await rig.reached(saga, "COMPLETED")).version == 2, "it was not tried again"


async def test_a_broker_that_takes_no_messages_fails_nobody(rig: Rig) -> None:
    """Workers cannot answer then; their answers are on their way when the alarm is over."""
    await rig.wakeups.start()
    saga = await rig.begin("speechless", saga="calm")
    await rig.outbox_empty()
    due = (await rig.now(saga)).wake_at
    assert due is not None
    rig.broker.blocked = "low on memory"
    await eventually(lambda: rig.database.now() > due + timedelta(seconds=0.1), deadline=5, every=0.01)

    async def excused() -> bool:
        return (await rig.now(saga)).wake_reason == "broker_down"

    await eventually(excused, deadline=3, every=0.01)
    again = (await rig.now(saga)).wake_at
    assert again is not None
    await eventually(lambda: rig.database.now() > again - timedelta(seconds=0.3), deadline=5, every=0.01)
    rig.broker.blocked = None
    await holds(lambda: len(rig.sent("cmd.stroll")) == 1, during=0.8, message="its time counts from when it was over")
    rig.report(saga, "evt.strolled")
    assert (await rig.reached(saga, "COMPLETED")).version == 2, "it was not tried again"


async def test_after_an_outage_everybody_has_one_full_time_again(rig: Rig) -> None:
    await rig.wakeups.start()
    sagas = [await rig.begin(f"patient-{n}", saga="calm") for n in range(5)]
    await rig.outbox_empty()
    rig.broker.go_down()
    await holds(lambda: len(rig.sent("cmd.stroll")) == 5, during=1.8)
    rig.broker.come_up()

    async def excused() -> bool:
        return any([(await rig.now(one)).wake_reason == "broker_down" for one in sagas])

    await eventually(excused, deadline=1)
    for one in sagas:
        rig.report(one, "evt.strolled")
    for one in sagas:
        assert (await rig.reached(one, "COMPLETED")).version == 2, "none had failed"


async def test_while_answers_cannot_be_written_down_no_step_is_late(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a table that is locked, while everything else can be read and written."""
    monkeypatch.setattr(event_listener, "OUTAGE_NOTICE_DELAY_S", 0.2)
    real, away = rig.listener._write, True

    async def write(*arguments: Any) -> Any:
        if away:
            raise Unavailable("the table is locked")
        return await real(*arguments)

    monkeypatch.setattr(rig.listener, "_write", write)
    await rig.wakeups.start()
    saga = await rig.begin("patient", saga="calm")
    await rig.outbox_empty()
    rig.report(saga, "evt.strolled")
    await holds(lambda: len(rig.sent("cmd.stroll")) == 1, during=2.5)
    away = False
    assert (await rig.reached(saga, "COMPLETED")).version == 2, "it was not tried again"


async def test_what_could_not_be_written_and_is_gone_holds_up_nobody_for_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_listener, "OUTAGE_NOTICE_DELAY_S", 0.1)
    monkeypatch.setattr(timers, "DEADLINE_EXTENSION_S", 0.5)

    async def write(*_: Any) -> Any:
        raise Unavailable("the table is locked")

    monkeypatch.setattr(rig.listener, "_write", write)
    await rig.wakeups.start()
    saga = await rig.begin("hasty", saga="hasty")
    await rig.outbox_empty()
    rig.report(saga, "evt.hurried")
    await eventually(lambda: rig.wakeups._deadlines_extended_until > clock.monotonic(), deadline=5)
    rig.broker.go_down()
    rig.broker.queue("evt.hurried").ready.clear()
    rig.broker.come_up()
    await rig.reached(saga, "FAILED", deadline=10)


async def test_timeouts_come_at_a_limited_rate(rig: Rig) -> None:
    slow = SagaTimers(rig.database, rig.broker, rig.relay, rig.watch, CATALOG, batch=100, timeouts=4.0)
    sagas = [await rig.begin(f"many-{n}", saga="hasty") for n in range(12)]
    await rig.outbox_empty()
    begun = asyncio.get_running_loop().time()
    await slow.start()

    async def all_tried() -> bool:
        return all([(await rig.now(one)).attempt > 1 for one in sagas])

    await eventually(all_tried, deadline=15)
    await slow.stop()
    assert asyncio.get_running_loop().time() - begun > (12 - 4) / 4 * 0.8


async def test_a_command_that_was_never_sent_is_not_doubled(rig: Rig) -> None:
    """The relay's claim keeps the row in the outbox while its time passes."""
    held = True
    rig.broker.judge = lambda _: Published(Outcome.UNKNOWN, "held") if held else Published(Outcome.CONFIRMED)
    saga = await rig.begin("unsent", saga="hasty")
    await rig.wakeups.start()

    async def unsent() -> bool:
        row = await rig.now(saga)
        return row.wake_reason == "unsent" and row.updated_at < rig.database.now() - timedelta(seconds=1.2)

    await eventually(unsent, deadline=10, message="its time passes while it is unsent")
    assert (await rig.now(saga)).wait_ms == 200, "the wait of a command that has not left is not doubled"
    await rig.wakeups.stop()
    held = False
    await rig.outbox_empty()
    row = await rig.now(saga)
    assert rig.sent("cmd.hurry") == [saga.command_id]
    assert (row.wake_reason, row.wait_ms, row.version) == ("deadline", 200, 1), (
        "the step's time begins with the confirm"
    )


async def test_a_broker_that_comes_back_empty_gets_what_live_sagas_are_owed(rig: Rig) -> None:
    await rig.incarnation.start()
    live, moved, done = await rig.begin("live"), await rig.begin("moved"), await rig.begin("done")
    for app in (moved, done):
        rig.report(app, "evt.gitRepoCreated")
        await rig.reached(app, "REGISTERING")
    rig.report(await rig.now(done), "evt.appRegistered")
    await rig.reached(done, "COMPLETED")
    await rig.outbox_empty()
    await eventually(lambda: rig.incarnation.problem() is None, deadline=5)
    first = set(rig.broker.names)
    rig.broker.published.clear()
    rig.broker.forget()
    await eventually(lambda: len(rig.broker.published) == 2, deadline=10)
    await rig.outbox_empty()
    second = await rig.now(moved)
    assert {m.message_id for m in rig.broker.published} == {live.command_id, second.command_id}
    new = {name for name in rig.broker.names if name.startswith("orchestrix.incarnation.")}
    assert new
    assert not new & first


async def test_what_fails_after_it_was_sent_again_is_undone(rig: Rig) -> None:
    """The first copy may have been worked on, and its answer be lost with the broker's queues."""
    await rig.incarnation.start()
    live = await rig.begin("live")
    await rig.outbox_empty()
    await eventually(lambda: rig.incarnation.problem() is None, deadline=5)
    rig.broker.published.clear()
    rig.broker.forget()
    await eventually(lambda: len(rig.broker.published) == 1, deadline=10)
    rig.report(live, "evt.stepFailed", error={"type": "Refused", "message": "no", "retryable": False})
    await rig.reached(live, "COMPENSATING")
    await eventually(lambda: [one.type for one in rig.broker.published][-1] == "cmd.deleteGitRepo", deadline=5)


async def test_a_reconnect_to_the_same_broker_sends_nothing_again(rig: Rig) -> None:
    await rig.incarnation.start()
    await rig.begin("quiet")
    await rig.outbox_empty()
    await eventually(lambda: rig.incarnation.problem() is None, deadline=5)
    rig.broker.published.clear()
    rig.broker.go_down()
    rig.broker.come_up()
    await rig.begin("after")
    await rig.outbox_empty()
    assert [message.correlation_id for message in rig.broker.published] == ["c-after"]


@pytest.mark.parametrize("seen", [1, 2])
async def test_a_waiting_client_is_woken_by_the_commit(rig: Rig, seen: int) -> None:
    app = await rig.begin("watched")
    waiting = asyncio.create_task(rig.watch.changed("app", app.id, seen, timeout=5))
    rig.report(app, "evt.gitRepoCreated")
    await asyncio.wait_for(waiting, 3)
    assert (await rig.now(app)).version == 3


async def test_a_waiting_client_learns_of_other_processes_commits(rig: Rig) -> None:
    app = await rig.begin("elsewhere")
    waiting = asyncio.create_task(rig.watch.changed("app", app.id, 1, timeout=60))
    await rig.listener.stop()
    other = Rig(rig.database)
    await other.start()
    other.report(app, "evt.gitRepoCreated")
    await asyncio.wait_for(waiting, 3)
    assert (await rig.now(app)).version > 1
    await other.stop()


async def test_a_wait_ends_with_its_time(rig: Rig) -> None:
    app = await rig.begin("still")
    begun = asyncio.get_running_loop().time()
    await rig.watch.changed("app", app.id, 1, timeout=0.3)
    assert 0.25 < asyncio.get_running_loop().time() - begun < 2


async def test_a_node_that_comes_later_leaves_the_redispatch_to_the_first(rig: Rig) -> None:
    await rig.incarnation.start()
    await eventually(lambda: rig.incarnation.problem() is None, deadline=5)
    async with rig.database.begin() as tx:
        known = await broker_incarnation.read(tx)
        assert await broker_incarnation.replace(tx, known, "begun-by-another")
    late = BrokerResetDetector(rig.database, rig.broker, rig.relay, CATALOG)
    await late.start()
    await holds(lambda: late.problem() is not None, during=0.5)
    rig.broker.names.add("orchestrix.incarnation.begun-by-another")
    await eventually(lambda: late.problem() is None, deadline=incarnation_service.TAKEOVER_TIMEOUT_S * 3)
    await late.stop()
    async with rig.database.read() as connection:
        assert await broker_incarnation.read(connection) == "begun-by-another"


async def test_a_node_that_was_overtaken_declares_no_queue(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def overtaken(*_: object) -> bool:
        return False

    monkeypatch.setattr(broker_incarnation, "touch", overtaken)
    await rig.incarnation.start()
    await rig.begin("owed")
    await holds(lambda: not rig.broker.names, during=0.5)
    assert rig.incarnation.problem() is not None
