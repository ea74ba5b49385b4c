"""Is the orchestrator told when work begins late or lasts long, and are places known that will not come back?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrix import Command, Context, clock
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.telemetry import log_events
from tests.fakes.time import Shifted
from tests.support import eventually, holds, logged

from .rig import CREATE, Rig, command
from .test_worker import Gate, make

pytestmark = pytest.mark.virtual_time

STARTED = "evt.stepStarted"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.worker.commands.slot_monitor.MONITOR_INTERVAL_S", 0.02)


def seconds_ago(seconds: float) -> float:
    return clock.now().timestamp() - seconds


async def test_work_that_begins_late_is_told_of_as_soon_as_it_lasts(rig: Rig, time: Shifted) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    rig.send(1, sent_at=seconds_ago(20))
    await gate.has_begun(1)
    assert not rig.bodies(STARTED)
    time.advance(0.25)
    await eventually(lambda: rig.bodies(STARTED), deadline=5)
    (body,) = rig.bodies(STARTED)
    began = body.pop("beganMsAgo")
    assert 250 <= began < 2000
    expected = {"type": STARTED, "saga": "app", "appId": 1, "correlationId": "c-1", "causationId": "m-1"}
    assert {name: value for name, value in body.items() if name != "id"} == expected
    gate.open.set()
    await rig.settled()
    assert (len(rig.bodies(STARTED)), worker.counts.started, worker.counts.done) == (1, 1, 1)


async def test_work_that_lasts_a_quarter_of_its_time_is_told_of(rig: Rig, time: Shifted) -> None:
    gate = Gate()
    await rig.start(gate)
    rig.send(1, sent_at=seconds_ago(10))
    await gate.has_begun(1)
    time.advance(14)
    await holds(lambda: not rig.bodies(STARTED), during=0.1)
    time.advance(2)
    await eventually(lambda: rig.bodies(STARTED), deadline=5)
    gate.open.set()
    await rig.settled()


async def test_short_work_is_never_told_of(rig: Rig) -> None:
    await rig.start(make)
    rig.send(1, sent_at=seconds_ago(50))
    rig.put(command(2, timeout_ms=100))
    rig.rows.put(2)
    await rig.settled()
    await holds(lambda: not rig.bodies(STARTED), during=0.1)


async def test_the_result_is_never_followed_by_the_begin(rig: Rig, time: Shifted) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    tries: list[str] = []

    def judge(message: Outgoing) -> Published:
        tries.append(message.routing_key)
        return Published(Outcome.UNKNOWN if message.routing_key == STARTED else Outcome.CONFIRMED)

    rig.broker.judge = judge
    rig.send(1, sent_at=seconds_ago(50))
    await gate.has_begun(1)
    time.advance(0.3)
    await eventually(lambda: tries, deadline=5)
    gate.open.set()
    await rig.settled()
    await holds(lambda: tries[-1] == "evt.gitRepoCreated", during=0.1)
    assert worker.counts.started == 0


async def test_the_time_of_the_work_counts_from_its_begin(rig: Rig, time: Shifted) -> None:
    seen: list[float] = []

    async def look(context: Context, command: Command) -> None:
        seen.append(context.remaining)

    await rig.start(look)
    rig.send(1, sent_at=seconds_ago(3600))
    await rig.settled()
    assert 59 < seen[0] <= 60


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What hanging handlers wait for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.virtual_time(False)
async def test_a_place_that_does_not_come_back_is_told_once_and_the_last_one_closes_the_worker(
    rig: Rig, time: Shifted, stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[int] = []

    def hangs(context: Context, command: Command) -> dict[str, Any]:
        begun.append(context.app_id)
        stuck.wait(30)
        return {}

    worker = await rig.start(hangs, concurrency=2, stop_timeout=0.1)
    rig.send(1, 2)
    await eventually(lambda: len(begun) == 2, deadline=5)
    rig.rows.put(1, command_id="m-9")  # its deadline is over
    rig.rows.put(2, command_id="m-9")
    time.advance(60 + 9)
    await holds(lambda: "its slot is blocked" not in caplog.text, during=0.1, message="it may still come to its end")
    time.advance(2)
    await eventually(lambda: rig.consumer.paused, deadline=5, message="it takes nothing more")
    told = [one.message for one in caplog.records if "its slot is blocked" in one.message]
    assert len(told) == 2
    assert "slots left: 0 of 2" in told[1]
    assert [one["correlation_id"] for one in logged(caplog, log_events.HANDLER_STUCK)] == ["c-1", "c-2"]
    assert not rig.broker.queue(CREATE).unacked, "nothing that is over stays in hand"
    rig.send(3)
    await holds(lambda: len(rig.broker.queue(CREATE).ready) == 1, during=0.1, message="others get it")
    stuck.set()
    await rig.settled()
    assert (sorted(begun), worker.counts.done) == ([1, 2, 3], 3)
    assert len(logged(caplog, log_events.HANDLER_ENDED_LATE)) == 2


@pytest.mark.virtual_time(False)
async def test_what_ends_after_its_place_was_lost_is_acknowledged_once(
    rig: Rig, time: Shifted, stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[int] = []

    def hangs(context: Context, command: Command) -> dict[str, Any]:
        begun.append(context.app_id)
        stuck.wait(30)
        return {}

    worker = await rig.start(hangs, concurrency=2, stop_timeout=0.1)
    rig.send(1)
    await eventually(lambda: begun, deadline=5)
    rig.rows.put(1, command_id="m-9")
    time.advance(60 + 11)
    await eventually(lambda: "slots left: 1 of 2" in caplog.text, deadline=5)
    assert not rig.broker.queue(CREATE).unacked
    stuck.set()
    await eventually(lambda: worker.counts.done == 1, deadline=5, message="its event is confirmed")
    await holds(lambda: "event reporter" not in caplog.text, during=0.1, message="the report did not fail")


async def test_a_place_whose_saga_has_given_it_more_time_is_not_lost(
    rig: Rig, time: Shifted, stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def works(context: Context, command: Command) -> None:
        stuck.wait(30)

    await rig.start(works, stop_timeout=0.1)
    rig.send(1)
    await eventually(lambda: rig.broker.queue(CREATE).unacked, deadline=5)
    rig.rows.put(1, wake_at=clock.now().replace(year=2090))
    time.advance(100)
    await holds(lambda: "its slot is blocked" not in caplog.text, during=0.2)
    stuck.set()
    await rig.settled()


async def test_what_is_given_back_at_a_stop_has_not_died_once_more(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate, concurrency=1)
    rig.send(9)
    await gate.has_begun(1)
    rig.consumer.allow(CREATE, 9)
    rig.send(1, headers={"x-deaths": 2})
    rig.send(2, count=1, headers={"x-deaths": 1, "x-other": "kept"})
    rig.send(3, count=1)
    await eventually(lambda: len(rig.broker.queue(CREATE).unacked) == 4, deadline=5)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: len(rig.broker.queue(CREATE).ready) == 3, deadline=5)
    gate.open.set()
    await stopping
    left = {one.body: (dict(one.headers), one.count) for one in rig.broker.queue(CREATE).ready}
    assert left == {
        command(1).body(): ({"x-deaths": 2}, 0),
        command(2).body(): ({"x-deaths": 2, "x-other": "kept"}, 0),
        command(3).body(): ({}, 2),
    }


@pytest.mark.parametrize("how", ["stop", "failure"])
async def test_suspects_about_which_nobody_has_decided_yet_are_given_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def count(queue: str) -> tuple[int, int]:
        if not asked.is_set():
            asked.set()
            await gate.wait()
            raise RuntimeError("nobody has foreseen this")
        return 0, 1

    monkeypatch.setattr(rig.broker, "message_count", count)
    done = Gate()
    worker = await rig.start(done)
    rig.send(4, headers={"x-deaths": 4})
    await asked.wait()
    rig.send(5, 6, headers={"x-deaths": 5})
    await eventually(lambda: len(rig.broker.queue(CREATE).unacked) == 3 and len(rig.rows.looks) >= 2, deadline=5)
    if how == "stop":
        await worker.stop()
        left = {one.body: (dict(one.headers), one.count) for one in rig.broker.queue(CREATE).ready}
        assert left == {command(id).body(): ({"x-deaths": max(4, min(id, 5))}, 0) for id in (4, 5, 6)}
    else:
        done.open.set()
        gate.set()
        await rig.settled()
        assert sorted(body["appId"] for body in rig.bodies()) == [4, 5, 6]


async def test_a_command_that_is_to_be_alone_and_was_not_begun_loses_the_mark_at_a_stop(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate, stop_timeout=5)
    rig.send(9)
    await gate.has_begun(1)
    rig.send(1, headers={"x-deaths": 10, "x-alone": 1})
    await eventually(lambda: rig.consumer.paused, deadline=5)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: rig.broker.queue(CREATE).ready, deadline=5)
    gate.open.set()
    await stopping
    assert [dict(one.headers) for one in rig.broker.queue(CREATE).ready] == [{"x-deaths": 10}]
    assert gate.begun == [9]
