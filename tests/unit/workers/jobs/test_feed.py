"""Does every word reach the broker, in order, whatever the broker does?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random

import pytest

from orchestrix import JobCancelled, JobContext
from orchestrix.broker.port import Outcome, Outgoing, Published, Topology
from orchestrix.broker.topology import job_channels, logs_queue, status_queue
from orchestrix.errors import Unavailable
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.simulation.virtual_time import VirtualLoop, elapse
from orchestrix.worker.jobs import report_buffer as feeds
from orchestrix.worker.jobs.dispatch import JobDispatch
from orchestrix.worker.jobs.messages import AttemptMessages
from orchestrix.worker.jobs.outcome import AttemptOutcome
from orchestrix.worker.jobs.report_buffer import MessageFactory, ReportBuffer
from tests.fakes.broker import FakeBroker
from tests.support import eventually

from .house import House

pytestmark = pytest.mark.virtual_time

SEEDS = (1, 8, 15, 16, 19, 20, 25, 27)
"""In each of them the connection is cut in the middle of a batch."""


def word(text: str = "", size: int = 0) -> MessageFactory:
    def make(seq: int) -> Outgoing:
        body = json.dumps({"seq": seq, "text": text or "x" * size}).encode()
        return Outgoing("", "logs", body, f"m-{seq}", correlation_id="c", headers={"traceparent": "t"})

    return make


def numbers(broker: FakeBroker) -> list[int]:
    """The numbers of what was confirmed."""
    return [json.loads(one.body)["seq"] for one in broker.published]


class Talker:
    """A job that says `count` lines once `begin` is set, and counts those that were taken."""

    def __init__(self, count: int, text: str = "line") -> None:
        self.count, self.text, self.taken = count, text, 0
        self.begin = asyncio.Event()
        self.begin.set()

    async def __call__(self, context: JobContext) -> None:
        await self.begin.wait()
        for number in range(self.count):
            await context.log(f"{self.text} {number}")
            self.taken += 1


async def quiet(house: House, talk: Talker) -> None:
    """The job runs, and begins to talk when the broker takes no more messages."""
    talk.begin.clear()
    await house.open(talk=talk)
    house.send("talk")
    await house.says("RUNNING")
    house.server.raise_alarm("disk")
    await house.later(1.0)
    talk.begin.set()


def in_order(house: House, number: int = 1) -> None:
    """The first copies of all words came in order, and none is missing."""
    seen = list(dict.fromkeys(one["seq"] for one in house.of(number)))
    assert seen == list(range(1, len(seen) + 1))
    last = house.last(number)
    assert (last["status"], last["seq"], last["lastLogSeq"]) == ("SUCCEEDED", len(seen), len(seen) - 1)


def test_many_words_are_in_flight_at_once(house: House) -> None:
    async def days() -> None:
        await house.open(talk=Talker(2000))
        began = house.loop.time()
        house.send("talk")
        await house.ended()
        assert house.loop.time() - began < 0.5, "2,000 lines, each of which needs 2 ms to be confirmed"
        assert house.messages() == [f"line {number}" for number in range(2000)]
        in_order(house)

    house.play(days())


@pytest.mark.parametrize("first", SEEDS)
def test_words_outlive_cuts_and_outages_in_order(
    loop: VirtualLoop, scale: Callable[[int, int], int], first: int
) -> None:
    async def made() -> House:
        return House(loop)

    for seed in (first, *range(100 * first, 100 * first + scale(0, 50))):
        outlive(loop.run_until_complete(made()), seed)


def outlive(house: House, seed: int) -> None:
    """A job talks while the broker comes and goes."""
    dice = Random(seed)
    house.server.delay = lambda: dice.uniform(0.001, 0.02)
    talk = Talker(400)

    async def slowly(context: JobContext) -> None:
        for _ in range(4):
            await talk(context)
            await elapse(dice.uniform(0, 3))

    async def days() -> None:
        await house.open(slowly=slowly)
        house.send("slowly")
        for _ in range(6):
            await elapse(dice.uniform(0, 1.5))
            if dice.random() < 0.3:
                house.server.stop()
                await elapse(dice.uniform(0, 20))
                house.server.start()
            else:
                house.broker.drop_connections(dice.uniform(0, 0.5), dice.uniform(0, 0.5))
        await house.ended()
        assert list(dict.fromkeys(house.messages())) == [f"line {number}" for number in range(400)]
        in_order(house)
        assert house.statuses().count("SUCCEEDED") >= 1

    house.play(days())


def test_a_job_that_has_more_to_say_than_fits_waits_for_the_broker(house: House) -> None:
    talk = Talker(5000)

    async def days() -> None:
        await quiet(house, talk)
        await house.later(30.0)
        taken = talk.taken
        assert taken == feeds.MAX_UNCONFIRMED
        await house.later(30.0)
        assert talk.taken == taken, "it waits"
        house.server.clear_alarm()
        await house.ended()
        in_order(house)

    house.play(days())


def test_long_lines_are_counted_by_their_bytes(house: House) -> None:
    talk = Talker(1000, "x" * 7900)

    async def days() -> None:
        await quiet(house, talk)
        await house.later(10.0)
        assert talk.taken <= feeds.MAX_UNCONFIRMED_BYTES / 7900 + 1
        house.server.clear_alarm()
        await house.ended()
        in_order(house)

    house.play(days())


def test_missing_channels_are_declared_and_all_is_said_again(house: House) -> None:
    async def talk(context: JobContext) -> None:
        await context.log("one")
        await elapse(1.0)
        house.server.delete(logs_queue("j-1"))
        house.server.delete(status_queue("j-1"))
        await context.log("two")
        await context.log("three")

    async def days() -> None:
        await house.open(talk=talk)
        house.send("talk", declared=False)
        await house.ended()
        assert house.messages() == ["one", "two", "three"]
        in_order(house)
        for queue in job_channels("j-1").queues:
            assert house.server._queues[queue.name].declared == queue

    house.play(days())


def test_channels_whose_declaration_was_cut_short_count_as_made_anew(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, missing = FakeBroker(), [Published(Outcome.RETURNED, "no queue")]

    async def cut_short(topology: Topology) -> None:
        raise Unavailable("the link was lost")

    async def days() -> None:
        monkeypatch.setattr(broker, "declare", cut_short)
        broker.judge = lambda message: missing.pop() if missing else Published(Outcome.CONFIRMED)
        feed = ReportBuffer(broker, Topology())
        feed.end(word())
        assert not feed.channels_redeclared
        await feed.run()
        assert feed.channels_redeclared

    loop.run_until_complete(days())


def test_the_last_word_waits_until_all_before_it_is_confirmed(loop: VirtualLoop) -> None:
    broker = FakeBroker()
    refused: set[int] = {3}

    def judge(message: Outgoing) -> Published:
        seq = json.loads(message.body)["seq"]
        if seq in refused:
            refused.discard(seq)
            return Published(Outcome.UNKNOWN, "nack")
        return Published(Outcome.CONFIRMED)

    async def days() -> None:
        broker.judge = judge
        feed = ReportBuffer(broker, Topology())
        for _ in range(4):
            await feed.put(word("log"))
        feed.end(word("last"))
        await feed.run()
        assert [json.loads(one.body)["seq"] for one in broker.tried] == [1, 2, 3, 4, 3, 4, 5]
        assert (broker.batches, feed.last) == ([4, 2, 1], 5)

    loop.run_until_complete(days())


@pytest.mark.parametrize(("plain_passes", "sent"), [(True, [1, 2, 3]), (False, [1, 3])])
def test_what_the_broker_refuses_goes_without_what_strangers_have_chosen(
    loop: VirtualLoop, plain_passes: bool, sent: list[int]
) -> None:
    broker = FakeBroker()

    def judge(message: Outgoing) -> Published:
        plain = not message.headers and message.correlation_id is None
        if message.message_id == "m-2" and not (plain and plain_passes):
            return Published(Outcome.REFUSED, "a bad header")
        return Published(Outcome.CONFIRMED)

    async def days() -> None:
        broker.judge = judge
        feed = ReportBuffer(broker, Topology())
        await feed.put(word())
        await feed.put(word())
        feed.end(word())
        await feed.run()
        assert numbers(broker)[:1] + [one for one in numbers(broker)[1:] if one != 1] == sent

    loop.run_until_complete(days())


def test_a_result_that_is_refused_ends_as_a_failure(loop: VirtualLoop) -> None:
    broker, dispatch = FakeBroker(), JobDispatch("j-1", "h-1", "count", {}, 1, None, "c-1", "status", "logs")
    made = AttemptMessages(dispatch, "worker-1", {})

    async def days() -> None:
        broker.judge = lambda message: (
            Published(Outcome.REFUSED, "422") if b"SUCCEEDED" in message.body else Published(Outcome.CONFIRMED)
        )
        feed = ReportBuffer(broker, Topology())
        await feed.put(lambda seq: made.running(seq, None))
        feed.end(lambda seq: made.ended(seq, AttemptOutcome("SUCCEEDED", {"counted": 3}), None, 0))
        await feed.run()
        running, last = [json.loads(one.body) for one in broker.published]
        assert (running["status"], last["status"], last["seq"], last["result"]) == ("RUNNING", "FAILED", 2, None)
        assert (last["error"]["type"], last["error"]["retryable"], last["lastLogSeq"]) == ("BadResult", False, 0)

    loop.run_until_complete(days())


def test_after_a_channel_was_closed_the_next_word_goes_alone(loop: VirtualLoop) -> None:
    broker = FakeBroker()
    closed = [Published(Outcome.UNKNOWN, "406", channel_closed=True)]

    async def days() -> None:
        broker.judge = lambda message: closed.pop() if closed else Published(Outcome.CONFIRMED)
        feed = ReportBuffer(broker, Topology())
        for _ in range(5):
            await feed.put(word())
        feed.end(word())
        await feed.run()
        assert broker.batches == [5, 1, 4, 1]

    loop.run_until_complete(days())


def test_of_progress_only_the_last_word_counts(house: House) -> None:
    async def count(context: JobContext) -> None:
        for number in range(10_000):
            await context.progress({"done": number})
        await elapse(2.0)
        for number in range(100):
            await context.progress(number)
            await elapse(0.01)

    async def days() -> None:
        await house.open(count=count)
        house.send("count")
        await house.ended()
        told = [one["progress"] for one in house.of() if one["status"] == "RUNNING"]
        assert told[1:3] == [{"done": 0}, {"done": 9999}]
        assert len(told) < 10
        assert house.last()["progress"] == {"percent": 99}
        seen = [one["seq"] for one in house.of()]
        assert seen == list(range(1, len(seen) + 1))

    house.play(days())


def test_progress_takes_little_room_while_the_broker_is_away(house: House) -> None:
    async def count(context: JobContext) -> None:
        for number in range(200):
            await context.progress(number / 2)
            await elapse(0.6)

    async def days() -> None:
        await house.open(count=count)
        house.send("count")
        await house.says("RUNNING")
        house.server.raise_alarm("disk")
        await house.later(100.0)
        (attempt,) = house.runner._parts.job_slots.attempts.values()  # type: ignore[union-attr]
        assert len(attempt._report_buffer._waiting) <= feeds.PROGRESS_BACKLOG_LIMIT
        house.server.clear_alarm()
        await house.ended(within=900.0)

    house.play(days())


def test_nothing_is_said_after_the_last_word(loop: VirtualLoop) -> None:
    async def days() -> None:
        broker = FakeBroker()
        feed = ReportBuffer(broker, Topology())
        for _ in range(feeds.MAX_UNCONFIRMED):
            await feed.put(word())
        waiting = asyncio.create_task(feed.put(word("too late")))
        await elapse(0)
        feed.end(word("last"))
        with pytest.raises(JobCancelled):
            await waiting
        with pytest.raises(JobCancelled):
            await feed.put(word())
        with pytest.raises(JobCancelled):
            feed.show(word())
        await feed.run()
        assert numbers(broker) == list(range(1, feeds.MAX_UNCONFIRMED + 2))

    loop.run_until_complete(days())


def test_a_bug_in_the_broker_ends_nothing(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def days() -> None:
        broker = FakeBroker()
        errors: list[Exception] = [RuntimeError("boom")]
        publish: Callable[..., object] = broker.publish

        async def broken(*arguments: object) -> object:
            if errors:
                raise errors.pop()
            return await publish(*arguments)  # type: ignore[misc]

        monkeypatch.setattr(broker, "publish", broken)
        feed = ReportBuffer(broker, Topology())
        feed.end(word())
        await feed.run()
        assert numbers(broker) == [1]

    loop.run_until_complete(days())


def test_two_feeds_of_one_broker_do_not_hold_each_other_up(house: House) -> None:
    async def days() -> None:
        await house.open(talk=Talker(300))
        house.server.declare(job_channels("j-2"))
        house.send("talk", 1, 2)
        assert isinstance(house.broker, MemoryBroker)
        house.server.delete(logs_queue("j-1"))
        await house.ended(1, 2)
        in_order(house, 1)
        in_order(house, 2)
        await eventually(lambda: house.runner.counts.succeeded == 2, deadline=5.0)

    house.play(days())
