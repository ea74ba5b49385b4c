"""Which commands are worked on, and what is reported of them?"""

from __future__ import annotations

import asyncio
import json
import pkgutil
from typing import Any, cast

import pytest

from orchestrix import Command, Context, Permanent
from orchestrix.broker.port import Broker
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.telemetry import log_events
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from tests.fakes.rows import Rows
from tests.fakes.time import Shifted
from tests.support import eventually, holds, logged

from .rig import CATALOG, CREATED, TRACE, Rig, command

pytestmark = pytest.mark.virtual_time


class Gate:
    """A handler that tells when it begins and ends when it is let."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.open = asyncio.Event()

    async def __call__(self, context: Context, command: Command) -> dict[str, int]:
        self.begun.append(context.app_id)
        await self.open.wait()
        return {"made": context.app_id}

    async def has_begun(self, count: int) -> None:
        """Waits until so many commands have been begun."""
        await eventually(lambda: len(self.begun) >= count, deadline=5.0, message=f"{count} commands begun")


async def make(context: Context, command: Command) -> dict[str, str]:
    return {"repoUrl": f"file:///{context.app_id}"}


@pytest.mark.req("S3-5", "S3-21", "DC-5")
async def test_a_current_command_becomes_the_success_event_of_its_step(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.send(1, headers={"traceparent": TRACE, "tracestate": "a=b", "x-other": "no"})
    await rig.settled()
    (event,) = rig.broker.published
    body = json.loads(event.body)
    assert 0 <= body.pop("beganMsAgo") < 60_000
    assert body == {
        "id": event.message_id,
        "type": CREATED,
        "saga": "app",
        "appId": 1,
        "correlationId": "c-1",
        "causationId": "m-1",
        "data": {"repoUrl": "file:///1"},
    }
    assert (event.exchange, event.routing_key, event.type) == ("orchestrator.events", CREATED, CREATED)
    assert (event.correlation_id, dict(event.headers)) == ("c-1", {"traceparent": TRACE, "tracestate": "a=b"})
    assert (worker.counts.done, worker.counts.failed) == (1, 0)


async def test_the_context_says_what_the_command_says(rig: Rig) -> None:
    seen: list[Context] = []

    async def look(context: Context, command: Command) -> None:
        seen.append(context)
        context.log.info("seen")

    await rig.start(look)
    rig.send(7)
    await rig.settled()
    (context,) = seen
    assert (context.app_id, context.app_name, context.saga, context.step) == (7, "shop", "app", "createGitRepo")
    assert (context.correlation_id, context.attempt, context.data) == ("c-7", 1, {"size": 3})
    assert context.idempotency_key == "app:7:createGitRepo:do"
    assert 50 < context.remaining <= 60


@pytest.mark.req("S3-42", "S3-54")
async def test_a_command_whose_saga_has_moved_on_is_dropped(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.rows.put(1, state="REGISTERING", command_id="m-9")
    rig.send(1)
    await rig.settled()
    assert (rig.broker.published, worker.counts.dropped) == ([], 1)


async def test_one_select_looks_at_a_whole_batch(rig: Rig) -> None:
    for app_id in range(1, 41):
        rig.send(app_id)
    await rig.start(make, concurrency=40)
    await rig.settled()
    assert rig.rows.looks == [list(range(1, 41))]
    assert len(rig.bodies()) == 40


async def test_an_early_command_waits_for_its_row_and_holds_up_nobody(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.put(command(1))
    rig.send(2)
    await eventually(lambda: len(rig.bodies()) == 1, deadline=5.0)
    rig.rows.put(1)
    await rig.settled()
    assert sorted(body["appId"] for body in rig.bodies()) == [1, 2]
    assert (worker.counts.done, worker.counts.dead) == (2, 0)


async def test_a_command_whose_app_does_not_appear_goes_to_the_dead_letters(rig: Rig, time: Shifted) -> None:
    worker = await rig.start(make)
    rig.put(command(1), message_id="m-1")
    await eventually(lambda: len(rig.rows.looks) >= 2, deadline=5.0)
    assert not rig.broker.tried
    time.advance(2.0)
    await rig.settled()
    (letter,) = rig.broker.published
    assert (letter.exchange, letter.routing_key) == ("orchestrator.dead", "cmd.createGitRepo")
    assert (letter.headers["x-reason"], letter.message_id, letter.body) == ("unknown-app", "m-1", command(1).body())
    assert (worker.counts.dead, worker.counts.done) == (1, 0)


async def test_a_command_ahead_of_its_row_is_acknowledged_in_the_end(rig: Rig, time: Shifted) -> None:
    worker = await rig.start(make)
    rig.rows.put(1)
    rig.put(command(1, id="m-2", attempt=2))
    await eventually(lambda: len(rig.rows.looks) >= 2, deadline=5.0)
    time.advance(2.0)
    await rig.settled()
    assert (rig.broker.published, worker.counts.older) == ([], 1)


UNREADABLE = [
    (b"\xff\xfe", "not-utf8"),
    (b"null", "not-an-object"),
    (b"[1]", "not-an-object"),
    (b'{"id": NaN}', "not-json"),
    (b'{"id": 7}', "id: must be a string"),
    (b"{}", "id: is missing"),
    (b'{"id": "\\u0000"}', "nul-or-lone-surrogate"),
    (b'{"a":' * 100 + b"1" + b"}" * 100, "too-deep"),
    (b'{"x":"' + b"y" * (1024 * 1024) + b'"}', "too-large"),
    (command(1, type="cmd.registerApp").body(), "wrong-type"),
    (command(1, saga="invoice").body(), "unknown-saga"),
    (command(0).body(), "appId: must be a whole number"),
    (command(1, timeout_ms=0).body(), "timeoutMs: must be a whole number above 0"),
]


@pytest.mark.parametrize(("body", "reason"), UNREADABLE, ids=[reason for _, reason in UNREADABLE])
async def test_a_body_that_cannot_be_read_goes_to_the_dead_letters_as_it_came(
    rig: Rig, body: bytes, reason: str
) -> None:
    worker = await rig.start(make)
    rig.broker.put("cmd.createGitRepo", body, headers={"x-death": [1, {}], "traceparent": 3})
    rig.send(5)
    await rig.settled()
    (letter,) = rig.broker.events("cmd.createGitRepo")
    assert (letter.exchange, letter.body) == ("orchestrator.dead", body)
    assert str(letter.headers["x-reason"]).startswith(reason)
    assert letter.message_id
    assert len(rig.bodies()) == 1, "the other message flows"
    assert (worker.counts.dead, worker.counts.done) == (1, 1)


async def test_no_more_commands_run_at_once_than_allowed(rig: Rig) -> None:
    gate = Gate()
    await rig.start(gate, concurrency=3)
    rig.send(*range(1, 11))
    await gate.has_begun(3)
    await holds(lambda: gate.begun == [1, 2, 3], during=0.1)
    assert len(rig.broker.queue("cmd.createGitRepo").unacked) == 3, "what waits, waits in the queue"
    gate.open.set()
    await rig.settled()
    assert sorted(gate.begun) == list(range(1, 11))


async def test_no_more_commands_are_held_than_the_prefetch(rig: Rig) -> None:
    gate = Gate()
    await rig.start(gate, concurrency=2, prefetch=2)
    rig.send(*range(1, 11))
    await gate.has_begun(2)
    assert len(rig.broker.queue("cmd.createGitRepo").unacked) == 2
    gate.open.set()
    await rig.settled()


@pytest.mark.req("S3-54")
async def test_a_command_that_had_to_wait_is_looked_at_again_before_the_work(rig: Rig, time: Shifted) -> None:
    gate = Gate()
    worker = await rig.start(gate, concurrency=1)
    rig.send(1, 2)
    await gate.has_begun(1)
    rig.rows.put(2, state="REGISTERING", command_id="m-9")
    time.advance(1.1)
    gate.open.set()
    await rig.settled()
    assert (gate.begun, worker.counts.dropped) == ([1], 1)


async def test_what_had_to_wait_has_its_whole_time_again_after_the_look(rig: Rig, time: Shifted) -> None:
    gate, remaining = Gate(), []

    async def measure(context: Context, command: Command) -> None:
        await gate(context, command)
        remaining.append(context.remaining)

    worker = await rig.start(measure, concurrency=1)
    rig.send(1, 2)
    await gate.has_begun(1)
    time.advance(300)
    gate.open.set()
    await rig.settled()
    assert worker.counts.done == 2
    assert remaining[0] == 0.0
    assert 50 < remaining[1] <= 60


async def test_a_redelivered_command_that_still_runs_here_is_joined(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    rig.send(1)
    await gate.has_begun(1)
    rig.consumer.lose_channel()
    await eventually(lambda: worker.counts.joined == 1, deadline=5.0)
    assert rig.broker.queue("cmd.createGitRepo").unacked, "not acknowledged before its event"
    gate.open.set()
    await rig.settled()
    assert (gate.begun, len(rig.bodies())) == ([1], 1)


async def test_a_second_copy_of_a_running_command_is_joined_too(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    rig.send(1, 1, 1)
    await eventually(lambda: worker.counts.joined == 2, deadline=5.0)
    gate.open.set()
    await rig.settled()
    assert (gate.begun, worker.counts.done) == ([1], 1)


async def test_what_another_worker_has_got_meanwhile_is_not_begun(rig: Rig) -> None:
    gate = Gate()
    await rig.start(gate, concurrency=1)
    rig.send(1, 2)
    await gate.has_begun(1)
    await rig.consumer.pause()  # so that the second copy does not come back here
    rig.consumer.lose_channel()
    gate.open.set()
    await eventually(lambda: len(rig.bodies()) == 1, deadline=5.0)
    await holds(lambda: gate.begun == [1], during=0.1)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_first_or_second_redelivery_is_no_proof(rig: Rig, count: int) -> None:
    gate = Gate()
    rig.send(1, 2, 3, 4, count=count)
    await rig.start(gate)
    await gate.has_begun(4)
    gate.open.set()
    await rig.settled()
    assert rig.rows.looks == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("limit", "deaths"), [({}, 11), ({"max_deliveries": 3}, 4)])
async def test_a_command_that_ended_a_worker_in_which_it_was_alone_fails_its_step(
    rig: Rig, limit: dict[str, int], deaths: int
) -> None:
    gate = Gate()
    worker = await rig.start(gate, **limit)
    rig.send(1, headers={"x-deaths": deaths - 1, "x-alone": 1}, count=1)
    await rig.settled()
    assert (gate.begun, worker.counts.failed) == ([], 1)
    assert rig.error() == {
        "type": "WorkerCrashed",
        "message": f"{deaths} workers died while processing cmd.createGitRepo, the last one running nothing else",
        "retryable": False,
        "unsure": True,
    }


@pytest.mark.parametrize(("limit", "count"), [({}, 10), ({}, 19), ({"max_deliveries": 4}, 4)])
async def test_a_command_with_too_many_deaths_is_tried_once_more_alone(
    rig: Rig, limit: dict[str, int], count: int
) -> None:
    gate, beside = Gate(), Gate()

    async def work(context: Context, command: Command) -> dict[str, int]:
        return await (gate if context.app_id == 1 else beside)(context, command)

    await rig.start(work, **limit)
    rig.send(2)
    await beside.has_begun(1)
    rig.send(1, count=count)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    assert [dict(one.headers) for one in rig.broker.published] == [{"x-deaths": count, "x-alone": 1}]
    assert gate.begun == [], "something else is at work"
    beside.open.set()
    await gate.has_begun(1)
    rig.send(3)
    gate.open.set()
    await rig.settled()
    assert (beside.begun, len(rig.bodies()), rig.bodies("evt.stepFailed")) == ([2, 3], 3, [])


@pytest.mark.parametrize("count", [0, 1])
async def test_of_a_command_that_had_a_reader_before_nobody_can_say_that_nothing_was_done(rig: Rig, count: int) -> None:
    async def refuse(context: Context, command: Command) -> None:
        raise Permanent("Refused", "the forge says no")

    await rig.start(refuse)
    rig.send(1, count=count)
    await rig.settled()
    assert rig.error().get("unsure", False) is bool(count)


async def test_a_command_that_came_too_often_is_still_dropped_where_its_saga_has_moved_on(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.rows.put(1, state="REGISTERING", command_id="m-9")
    rig.send(1, count=1, headers={"x-deaths": 10, "x-alone": 1})
    await rig.settled()
    assert (worker.counts.dropped, rig.broker.published) == (1, [])


async def test_copies_that_joined_a_running_command_say_nothing_against_it(rig: Rig) -> None:
    tries: list[int] = []

    async def later(context: Context, command: Command) -> None:
        tries.append(context.attempt)
        if len(tries) == 1:
            rig.send(1, count=19)
            await eventually(lambda: worker.counts.joined == 1, deadline=5.0)
            raise Unavailable("the database is away")

    worker = await rig.start(later)
    rig.send(1)
    await rig.settled()
    assert (len(tries), len(rig.bodies()), rig.bodies("evt.stepFailed")) == (2, 1, [])


async def test_two_lanes_share_the_limit(rig: Rig) -> None:
    gate = Gate()
    await rig.start(gate, concurrency=1)
    rig.send(1, count=1)
    rig.send(2)
    await gate.has_begun(1)
    assert len(gate.begun) == 1
    gate.open.set()
    await rig.settled()
    assert sorted(gate.begun) == [1, 2]


async def test_a_handler_for_an_unknown_command_is_refused(rows: Rows) -> None:
    table = HandlerTable([("cmd.sendMail", make)])
    worker = Worker(cast(Broker, None), cast(Database, rows), CATALOG, table, Settings())
    with pytest.raises(ConfigError, match=r"cmd\.sendMail.*ORCHESTRIX_SAGAS"):
        await worker.start()


async def test_a_stopped_worker_has_finished_what_ran_and_given_back_the_rest(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate, concurrency=2)
    await eventually(lambda: rig.consumer.allowed, deadline=5.0)
    rig.consumer.allow("cmd.createGitRepo", 6)
    rig.send(*range(1, 7))
    await gate.has_begun(2)
    await eventually(lambda: len(rig.broker.queue("cmd.createGitRepo").unacked) == 6, deadline=5.0)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: len(rig.broker.queue("cmd.createGitRepo").ready) == 4, deadline=5.0)
    rig.send(7)
    gate.open.set()
    await stopping
    assert (sorted(gate.begun), len(rig.bodies())) == ([1, 2], 2)
    queue = rig.broker.queue("cmd.createGitRepo")
    assert (len(queue.ready), len(queue.unacked)) == (5, 0)
    await worker.stop()


async def test_what_waits_for_a_free_place_is_not_begun_after_the_order_to_stop(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate, concurrency=1)
    rig.send(1, count=1)
    await gate.has_begun(1)
    rig.send(2)
    await eventually(lambda: [2] in rig.rows.looks, deadline=5.0)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    gate.open.set()
    await stopping
    assert (gate.begun, len(rig.broker.queue("cmd.createGitRepo").ready)) == ([1], 1)


async def test_early_commands_are_given_back_at_once_by_a_stop(rig: Rig) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    rig.send(2)
    rig.put(command(1))
    await gate.has_begun(1)
    await eventually(lambda: len(rig.rows.looks) >= 2, deadline=5.0)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: len(rig.broker.queue("cmd.createGitRepo").ready) == 1, deadline=5.0)
    gate.open.set()
    await stopping


async def test_finished_work_is_reported_before_the_stop_is_over(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.broker.blocked = "low on disk"
    rig.send(1)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    stopping = asyncio.create_task(worker.stop())
    await eventually(lambda: worker._parts is None, deadline=5.0)
    rig.broker.blocked = None
    await stopping
    assert (len(rig.bodies()), worker.counts.done) == (1, 1)
    assert not rig.broker.queue("cmd.createGitRepo").ready


async def test_what_does_not_end_in_time_is_cancelled_and_goes_to_others(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = asyncio.Event()

    async def hang(context: Context, command: Command) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    worker = await rig.start(hang, stop_timeout=0.05)
    rig.send(1)
    await eventually(lambda: len(rig.rows.looks) == 1, deadline=5.0)
    await worker.stop()
    assert cancelled.is_set()
    assert (rig.broker.tried, len(rig.broker.queue("cmd.createGitRepo").ready)) == ([], 1)
    assert len(logged(caplog, log_events.WORK_ABANDONED)) == 1


async def test_a_worker_without_commands_stops_at_once(rig: Rig) -> None:
    worker = await rig.start(make)
    async with asyncio.timeout(1.0):
        await worker.stop()
    assert rig.broker.tried == []
    assert rig.rows.looks == [], "there was nothing to ask the database for"


class Stop(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_step_whose_handler_raises_what_is_no_exception_fails_at_once(rig: Rig, threaded: bool) -> None:
    async def stop(context: Context, command: Command) -> None:
        raise Stop("enough")

    def stop_beside(context: Context, command: Command) -> None:
        raise Stop("enough")

    await rig.start(stop_beside if threaded else stop)
    rig.send(1)
    await rig.settled()
    assert rig.error() == {"type": "Stop", "message": "enough", "retryable": True}


@pytest.mark.parametrize(
    "place",
    [
        "orchestrix.worker.commands.slots.invoke",
        "orchestrix.worker.commands.admission.CommandAdmission.select_runnable",
    ],
)
async def test_whatever_goes_wrong_in_the_worker_itself_is_told_and_its_command_comes_again(
    rig: Rig, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole: Any = pkgutil.resolve_name(place)
    errors = [Stop("a bug")]

    async def broken(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await whole(*arguments)

    monkeypatch.setattr(place, broken)
    await rig.start(make)
    rig.send(1)
    await eventually(lambda: rig.bodies(), deadline=15.0, message="its event")
    assert not errors
    assert "a bug" in caplog.text
    found = logged(caplog, log_events.WORKER_ERROR)
    assert [one["correlation_id"] for one in found] == (["c-1"] if place.endswith("invoke") else [])
