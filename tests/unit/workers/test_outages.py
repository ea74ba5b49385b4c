"""What does a worker do while its database or its broker is away, or refuses what it sends?"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrix import Command, Context
from orchestrix.broker.port import Broker, Consumer, Outcome, Outgoing, Published, Topology
from orchestrix.errors import OutcomeUnknown, Unavailable
from orchestrix.telemetry import log_events
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.commands.reporter import CommandReport, CommandReporter
from tests.fakes.broker import FakeBroker
from tests.fakes.time import Shifted
from tests.support import eventually, logged

from .rig import CREATED, FAILED, TRACE, Rig

pytestmark = pytest.mark.virtual_time

CONFIRMED = Published(Outcome.CONFIRMED)


async def make(context: Context, command: Command) -> dict[str, int]:
    return {"made": context.app_id}


class Away:
    """A handler whose own database is away as long as `away` is set."""

    def __init__(self, error: Exception) -> None:
        self.away: Exception | None = error
        self.tries = 0

    async def __call__(self, context: Context, command: Command) -> None:
        self.tries += 1
        if self.away:
            raise self.away


@pytest.mark.parametrize("error", [Unavailable("the database is away"), OutcomeUnknown("lost during COMMIT")])
async def test_a_handlers_own_outage_is_no_failure_of_the_step(rig: Rig, error: Exception) -> None:
    away = Away(error)
    worker = await rig.start(away)
    rig.send(1)
    await eventually(lambda: rig.consumer.paused and away.tries >= 2, deadline=5.0)
    rig.send(2)
    away.away = None
    await rig.settled()
    assert (len(rig.bodies()), rig.bodies(FAILED)) == (2, [])
    assert (rig.consumer.paused, rig.consumer.reopened, worker.counts.done) == (False, 0, 2)


async def test_the_database_away_before_the_work_keeps_the_commands(rig: Rig) -> None:
    await rig.start(make)
    rig.rows.error = Unavailable("the database is away")
    rig.send(1, 2)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    rig.rows.error = None
    await rig.settled()
    assert len(rig.bodies()) == 2
    await eventually(lambda: not rig.consumer.paused, deadline=5.0)


async def test_after_five_minutes_other_workers_get_the_commands(rig: Rig, time: Shifted) -> None:
    away = Away(Unavailable("the database is away"))
    await rig.start(away)
    rig.send(1)
    await eventually(lambda: away.tries >= 1 and rig.consumer.paused, deadline=5.0)
    assert rig.consumer.reopened == 0
    time.advance(300)
    await eventually(lambda: rig.consumer.reopened == 1, deadline=5.0)
    queue = rig.broker.queue("cmd.createGitRepo")
    away.away = None
    await rig.settled()
    assert not queue.ready


async def test_an_outage_does_not_run_out_the_time_of_a_step(rig: Rig, time: Shifted) -> None:
    away = Away(Unavailable("the database is away"))
    worker = await rig.start(away)
    rig.send(1)
    await eventually(lambda: away.tries >= 1, deadline=5.0)
    time.advance(200)
    away.away = None
    await rig.settled()
    assert (worker.counts.done, worker.counts.failed) == (1, 0)


async def test_a_stop_during_an_outage_gives_the_commands_back(rig: Rig) -> None:
    rig.rows.error = Unavailable("the database is away")
    worker = await rig.start(make)
    rig.send(1)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    async with asyncio.timeout(3.0):
        await worker.stop()
    assert len(rig.broker.queue("cmd.createGitRepo").ready) == 1
    assert rig.consumer.resumed == 0, "a consumer that is to stop takes nothing new"


async def test_an_event_is_kept_while_the_broker_takes_no_messages(rig: Rig) -> None:
    await rig.start(make)
    rig.broker.blocked = "low on disk"
    rig.send(1)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    assert rig.broker.queue("cmd.createGitRepo").unacked
    assert not rig.broker.tried
    rig.broker.blocked = None
    await rig.settled()
    assert len(rig.bodies()) == 1
    await eventually(lambda: not rig.consumer.paused, deadline=5.0)


@pytest.mark.req("S3-54")
async def test_an_event_of_unknown_fate_is_sent_again_under_the_same_id(rig: Rig) -> None:
    answers = [Published(Outcome.UNKNOWN, "too late"), Published(Outcome.UNKNOWN, "cut off")]
    acknowledged_early: list[bool] = []

    def judge(message: Outgoing) -> Published:
        acknowledged_early.append(not rig.broker.queue("cmd.createGitRepo").unacked)
        return answers.pop() if answers else CONFIRMED

    rig.broker.judge = judge
    await rig.start(make)
    rig.send(1)
    await rig.settled()
    assert len(rig.broker.tried) == 3
    assert len({message.message_id for message in rig.broker.tried}) == 1
    assert acknowledged_early == [False, False, False]


async def test_the_work_is_not_done_again_when_the_broker_comes_back(rig: Rig) -> None:
    began, gate, runs = asyncio.Event(), asyncio.Event(), []

    async def slow(context: Context, command: Command) -> None:
        runs.append(context.app_id)
        began.set()
        await gate.wait()

    worker = await rig.start(slow)
    rig.send(1)
    await began.wait()
    rig.broker.go_down()
    gate.set()
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    rig.broker.come_up()
    await rig.settled()
    assert (runs, worker.counts.done, worker.counts.joined) == ([1], 1, 1)


async def test_a_new_copy_is_worked_on_where_the_broker_forgot_the_first(rig: Rig) -> None:
    gate, runs = asyncio.Event(), []

    async def slow(context: Context, command: Command) -> None:
        runs.append(context.app_id)
        await gate.wait()

    worker = await rig.start(slow)
    rig.send(1)
    await eventually(lambda: runs, deadline=5.0)
    rig.broker.go_down()
    rig.broker.queue("cmd.createGitRepo").ready.clear()
    gate.set()
    rig.broker.come_up()
    await eventually(lambda: worker.counts.done == 1, deadline=5.0)
    rig.send(1)
    await eventually(lambda: worker.counts.done == 2, deadline=5.0)
    assert runs == [1, 1]


async def test_a_returned_event_makes_the_worker_declare_the_topology(rig: Rig) -> None:
    rig.broker.judge = lambda _: CONFIRMED if rig.broker.declared else Published(Outcome.RETURNED)
    await rig.start(make)
    rig.send(1)
    await rig.settled()
    assert (len(rig.bodies()), rig.broker.declared) == (1, 1)


async def test_an_event_that_the_broker_refuses_becomes_a_plain_failure(rig: Rig) -> None:
    refused = Published(Outcome.REFUSED, "too large")
    rig.broker.judge = lambda message: CONFIRMED if message.routing_key == FAILED else refused
    await rig.start(make)
    rig.send(1, headers={"traceparent": TRACE})
    await rig.settled()
    assert rig.error() == {
        "type": "Unsendable",
        "message": "the broker rejected the event of this step",
        "retryable": False,
    }
    assert dict(rig.broker.published[0].headers) == {"traceparent": TRACE}  # a valid one is never what is refused


async def test_a_command_whose_every_event_is_refused_does_not_stay_for_ever(rig: Rig) -> None:
    rig.broker.judge = lambda _: Published(Outcome.REFUSED, "no")
    await rig.start(make)
    rig.send(1)
    await rig.settled()
    assert rig.broker.published == []


async def test_a_dead_letter_that_the_broker_refuses_goes_without_what_its_sender_chose(rig: Rig) -> None:
    def judge(message: Outgoing) -> Published:
        return Published(Outcome.REFUSED, "type too long") if message.type else CONFIRMED

    rig.broker.judge = judge
    await rig.start(make)
    rig.broker.put("cmd.createGitRepo", b"no" * 100_000, type="x" * 400)
    await rig.settled()
    (letter,) = rig.broker.published
    assert letter.body == b"no" * 100_000
    assert letter.headers == {"x-reason": "not-json: line 1, column 1: expected a value (strings need double quotes)"}


async def test_a_dead_letter_that_is_too_large_leaves_its_size_and_its_sum(rig: Rig) -> None:
    body = b"no" * 100_000

    def judge(message: Outgoing) -> Published:
        return Published(Outcome.REFUSED, "too large") if len(message.body) > 1000 else CONFIRMED

    rig.broker.judge = judge
    worker = await rig.start(make)
    rig.broker.put("cmd.createGitRepo", body)
    await rig.settled()
    (letter,) = rig.broker.published
    assert json.loads(letter.body) == {"size": 200_000, "sha256": hashlib.sha256(body).hexdigest()}
    assert (letter.exchange, letter.routing_key) == ("orchestrator.dead", "cmd.createGitRepo")
    assert worker.counts.dead == 1


async def test_the_event_that_closes_the_channel_is_found_and_the_others_arrive(rig: Rig) -> None:
    def judge(message: Outgoing) -> Published:
        poisoned = b'"made":3' in message.body
        alone = rig.broker.batches[-1] == 1
        if poisoned or not alone:
            return Published(Outcome.UNKNOWN, "channel closed", channel_closed=True)
        return CONFIRMED

    rig.broker.judge = judge
    rig.send(1, 2, 3, 4)
    await rig.start(make)
    await rig.settled()
    assert sorted(body["appId"] for body in rig.bodies(CREATED)) == [1, 2, 4]
    assert [body["appId"] for body in rig.bodies(FAILED)] == [3]
    assert rig.broker.declared >= 1


async def test_events_that_are_ready_together_leave_in_one_batch(rig: Rig) -> None:
    gate = asyncio.Event()

    async def together(context: Context, command: Command) -> None:
        await gate.wait()

    worker = await rig.start(together, concurrency=10)
    rig.send(*range(1, 11))
    await eventually(lambda: len(rig.rows.looks) >= 1, deadline=5.0)
    gate.set()
    await rig.settled()
    assert (rig.broker.batches, worker.counts.done) == ([10], 10)


async def test_an_error_of_the_worker_itself_gives_the_command_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [RuntimeError("a bug")]
    original = rig.rows.guard

    async def guard(connection: object, pair: object, ids: list[int]) -> object:
        if broken:
            raise broken.pop()
        return await original(connection, pair, ids)

    monkeypatch.setattr("orchestrix.worker.commands.state_guard.guard", guard)
    worker = await rig.start(make)
    rig.send(1)
    await rig.settled()
    assert worker.counts.done == 1
    assert any(record.exc_info for record in caplog.records)


async def test_an_outage_is_told_once_and_its_end_too(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    away = Away(Unavailable("the database is away"))
    await rig.start(away)
    rig.send(1)
    await eventually(lambda: away.tries >= 3, deadline=5.0)
    away.away = None
    await rig.settled()
    lines = [record.getMessage() for record in caplog.records if record.name == "orchestrix.worker"]
    assert lines == ["commands paused: the database is away", "commands resumed"]
    assert [len(logged(caplog, event)) for event in (log_events.WORK_PAUSED, log_events.WORK_RESUMED)] == [1, 1]


async def test_a_joined_copy_is_acknowledged_only_with_its_event(rig: Rig) -> None:
    worker = await rig.start(make)
    rig.broker.blocked = "low on disk"
    rig.send(1)
    await eventually(lambda: rig.consumer.paused, deadline=5.0)
    rig.consumer.lose_channel()
    await rig.consumer.resume()
    await eventually(lambda: worker.counts.joined == 1, deadline=5.0)
    rig.broker.blocked = None
    await rig.settled()
    assert len(rig.bodies()) == 1


async def test_a_broker_that_is_lost_when_nothing_is_left_to_report_pauses_nothing_for_ever() -> None:
    """The reporter is woken by a report that its last round has sent, and finds the broker blocked."""

    class Pausable:
        paused = False

        async def pause(self) -> None:
            self.paused = True

        async def resume(self) -> None:
            self.paused = False

    def report(number: int) -> CommandReport:
        return CommandReport(Outgoing("x", "evt.x", b"{}", f"m-{number}"), "dead")

    broker, consumer = FakeBroker(), Pausable()
    outage = Backpressure(cast(Consumer, consumer))
    in_flight = cast(InFlightCommands, SimpleNamespace(counts=SimpleNamespace(dead=0)))
    reporter = CommandReporter(cast(Broker, broker), in_flight, outage, Topology)
    first, second = report(1), report(2)

    def judge(message: Outgoing) -> Published:
        if message is first.outgoing:
            reporter.add(second)
        else:
            broker.blocked = "memory"
        return CONFIRMED

    async def rounds() -> None:
        while True:
            await reporter.round()

    broker.judge = judge
    reporter.add(first)
    running = asyncio.create_task(rounds())
    try:
        await eventually(lambda: broker.blocked, deadline=5.0)
        await reporter.all_confirmed()
        for _ in range(20):  # the next round begins
            await asyncio.sleep(0)
        broker.blocked, broker.judge = None, None
        await eventually(lambda: not (outage.current or consumer.paused), deadline=5.0)
        reporter.add(report(3))
        await reporter.all_confirmed()
        assert (outage.current, consumer.paused) == (False, False)
    finally:
        running.cancel()
        await asyncio.wait([running])
