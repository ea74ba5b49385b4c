"""What does consuming promise?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.amqp.consumer import AmqpConsumer
from orchestrix.broker.port import Binding, Consumer, Delivery, Queue, Topology
from tests.conformance.port.rig import WORK, Rig, fill, message, take
from tests.support import eventually


async def in_flight(broker: AmqpBroker, of: int, queue: str = "jobs") -> int:
    """How many of `of` messages are not in the queue: delivered, or finished."""
    count = await broker.message_count(queue)
    assert count is not None
    return of - count[0]


def bodies(deliveries: list[Delivery]) -> list[int]:
    return [int(one.body) for one in deliveries]


async def test_five_thousand_messages_arrive_once_each_in_order(broker: AmqpBroker) -> None:
    await fill(broker, 5000)
    consumer = await broker.consume(["jobs"], 500)
    taken = await take(consumer, 5000)
    assert bodies(taken) == list(range(5000))
    assert not any(one.redelivered for one in taken)
    await eventually(lambda: _is_empty(broker), deadline=5)


async def _is_empty(broker: AmqpBroker) -> bool:
    return await broker.message_count("jobs") == (0, 0) or (await broker.message_count("jobs") or (1, 0))[0] == 0


async def test_a_delivery_says_where_it_came_from(broker: AmqpBroker) -> None:
    await broker.publish([message(b"x", id="id-1")])
    (one,) = await take(await broker.consume(["others", "jobs"], 10), 1)
    assert (one.queue, one.exchange, one.routing_key, one.message_id) == ("jobs", "work", "jobs", "id-1")
    assert (one.redelivered, one.delivery_count, one.correlation_id, one.type) == (False, 0, None, None)


async def test_it_knows_what_it_does_not_read(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs", "absent"], 10)
    await eventually(lambda: list(consumer.unread) == ["absent"], deadline=10)
    await consumer.pause()
    await eventually(lambda: not consumer.unread, deadline=10)
    await consumer.resume()
    consumer.allow("absent", 0)  # it wants nothing of that one
    await eventually(lambda: not consumer.unread, deadline=10)
    consumer.allow("absent", 10)
    await eventually(lambda: list(consumer.unread) == ["absent"], deadline=10)
    await broker.declare(Topology(queues=(Queue("absent", WORK.queues[0].arguments),)))
    await eventually(lambda: not consumer.unread, deadline=20)
    await broker.stop()
    assert list(consumer.unread) == ["jobs", "absent"]


async def test_the_first_message_comes_alone_and_the_prefetch_grows_with_what_is_finished(broker: AmqpBroker) -> None:
    await fill(broker, 400)
    consumer = await broker.consume(["jobs"], 40)
    seen, done = [], 0
    while done < 200:
        await eventually(_steady(broker, 400), deadline=5, every=0.1)
        batch = await consumer.receive(1000)
        seen.append(len(batch))
        assert await in_flight(broker, 400) == done + len(batch), "delivered but not handed out"
        await consumer.acknowledge(batch)
        done += len(batch)
    assert seen[0] == 1
    assert seen[:4] == sorted(seen[:4])
    assert max(seen) == 40, seen


def _steady(broker: AmqpBroker, of: int) -> Callable[[], Awaitable[bool]]:
    """Whether nothing has been delivered since the last look (a quorum queue has its own rhythm)."""
    before = 0

    async def look() -> bool:
        nonlocal before
        last, before = before, await in_flight(broker, of)
        return 0 < before == last

    return look


async def test_a_batch_lingers_for_more_but_not_in_vain(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 100)
    await fill(broker, 1)
    began = time.monotonic()
    assert len(await consumer.receive(10, linger=5)) == 1  # a prefetch of 1 is full: nothing more can come
    assert time.monotonic() - began < 4


async def test_a_batch_ends_when_the_linger_is_over(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 100)
    await fill(broker, 5)
    await take(consumer, 5)
    await broker.publish([message(b"1")])
    began = time.monotonic()
    assert len(await consumer.receive(10, linger=0.3)) == 1
    assert time.monotonic() - began < 3


async def warm(broker: AmqpBroker, consumer: Consumer) -> None:
    """Brings the prefetch to its limit of 4."""
    await fill(broker, 1)
    await take(consumer, 1)


async def test_what_was_acknowledged_out_of_order_never_comes_again(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 4)
    await warm(broker, consumer)
    await fill(broker, 4)
    taken = await take(consumer, 4, acknowledge=False)
    await consumer.acknowledge([taken[2]])
    await consumer.acknowledge([taken[1], taken[0]])
    await consumer.acknowledge([taken[0]])  # twice is once
    await consumer.reopen()
    again = await take(consumer, 1)
    assert bodies(again) == [3]
    await eventually(lambda: _is_empty(broker), deadline=5)
    assert broker.generation == 1


async def test_what_is_given_back_comes_again_and_counts(broker: AmqpBroker) -> None:
    await fill(broker, 1)
    consumer = await broker.consume(["jobs"], 10)
    for count in range(3):
        (one,) = await take(consumer, 1, acknowledge=False)
        assert (one.delivery_count, one.redelivered) == (count, count > 0)
        await consumer.requeue([one])


async def test_a_forged_delivery_count_is_not_believed(rig: Rig, broker: AmqpBroker) -> None:
    await broker.publish([replace(message(), headers={"x-delivery-count": 25})])
    consumer = await broker.consume(["jobs"], 1)
    (one,) = await take(consumer, 1, acknowledge=False)
    assert one.delivery_count == 0
    await consumer.requeue([one])
    (one,) = await take(consumer, 1)
    assert one.delivery_count == 1


async def test_after_a_cut_the_unfinished_come_again_and_old_acks_are_dropped(rig: Rig, broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 4)
    await warm(broker, consumer)
    await fill(broker, 4)
    old = await take(consumer, 4, acknowledge=False)
    assert consumer.alive(old[0])
    await consumer.acknowledge(old[:1])
    assert await in_flight(broker, 4) == 4  # also waits until the broker has read the ack
    rig.proxy.cut()
    await eventually(lambda: not consumer.alive(old[1]), deadline=5)
    await consumer.acknowledge(old)
    await consumer.requeue(old)
    again = await take(consumer, 3)
    assert bodies(again) == [1, 2, 3]
    assert all(one.redelivered and one.delivery_count == 1 for one in again)
    assert again[0].session != old[0].session
    assert broker.generation == 2


async def test_a_reconnect_is_invisible_to_who_waits_for_a_delivery(rig: Rig, broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 4)
    waiting = asyncio.create_task(consumer.receive(10))
    rig.proxy.cut()
    await eventually(lambda: broker.generation == 2, deadline=5)
    await fill(broker, 1)
    assert bodies(await asyncio.wait_for(waiting, 5)) == [0]


async def test_the_prefetch_starts_small_again_after_a_lost_channel(rig: Rig, broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 100)
    await fill(broker, 300)
    await take(consumer, 100)
    rig.proxy.cut()
    await eventually(lambda: broker.generation == 2, deadline=5)
    assert len(await consumer.receive(100)) == 1


async def test_a_paused_consumer_keeps_what_it_has_and_takes_nothing_new(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 1)
    await fill(broker, 3)
    (one,) = await take(consumer, 1, acknowledge=False)
    await consumer.pause()
    assert consumer.alive(one)
    await consumer.acknowledge([one])

    async def two_wait_for_nobody() -> bool:  # a quorum queue tells of its consumers a moment late
        return await broker.message_count("jobs") == (2, 0)

    await eventually(two_wait_for_nobody, deadline=5)
    await consumer.resume()
    assert bodies(await take(consumer, 2)) == [1, 2]


async def test_closing_gives_back_what_is_unfinished_and_ends_the_waiting(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 4)
    await fill(broker, 1)
    (one,) = await take(consumer, 1, acknowledge=False)
    waiting = asyncio.create_task(consumer.receive(1))
    await consumer.close()
    assert await asyncio.wait_for(waiting, 2) == []
    assert await consumer.receive(1) == []
    assert not consumer.alive(one)
    await consumer.acknowledge([one])
    await eventually(lambda: _count(broker, "jobs", (1, 0)), deadline=5)


async def _count(broker: AmqpBroker, queue: str, count: tuple[int, int]) -> bool:
    return await broker.message_count(queue) == count


async def test_a_queue_deleted_under_its_consumer_is_read_again_when_it_is_back(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs", "others"], 1)
    await fill(broker, 1, key="others")
    (held,) = await take(consumer, 1, acknowledge=False)
    await eventually(lambda: _count(broker, "jobs", (0, 1)), deadline=5)
    await broker.delete("jobs")
    await broker.declare(WORK)
    await fill(broker, 1)
    (one,) = await take(consumer, 1)
    assert one.queue == "jobs"
    assert consumer.alive(held), "the other queue's delivery must not suffer"


async def test_a_consumer_waits_for_a_queue_that_does_not_exist_yet(rig: Rig) -> None:
    broker = await rig.up()
    consumer = await broker.consume(["jobs"], 10)
    waiting = asyncio.create_task(consumer.receive(1))
    await eventually(lambda: _absent(broker), deadline=5)
    await broker.declare(WORK)
    await fill(broker, 1)
    assert len(await asyncio.wait_for(waiting, 10)) == 1


async def _absent(broker: AmqpBroker) -> bool:
    return await broker.message_count("jobs") is None


async def test_a_consumer_made_while_the_link_is_down_works_once_it_is_up(rig: Rig, broker: AmqpBroker) -> None:
    await fill(broker, 1)
    later = rig.make()
    consumer = await later.consume(["jobs"], 10)
    await later.start()
    assert bodies(await take(consumer, 1)) == [0]


async def test_an_exclusive_consumer_is_alone_until_it_closes(broker: AmqpBroker) -> None:
    """On a queue that one process has: RabbitMQ 3.10 may let a second one in at a quorum queue (seen 1 in 300)."""
    await broker.declare(Topology(queues=(Queue("mine", exclusive=True),), bindings=(Binding("mine", "work", "mine"),)))
    first = await broker.consume(["mine"], 10, exclusive=True)
    await eventually(lambda: _count(broker, "mine", (0, 1)), deadline=5)
    second = await broker.consume(["mine"], 10, exclusive=True)
    await fill(broker, 5, key="mine")
    assert len(await take(first, 5)) == 5
    await first.close()
    await fill(broker, 1, key="mine")
    assert len(await take(second, 1)) == 1


async def test_a_subscription_that_the_broker_has_forgotten_is_made_again(
    broker: AmqpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.broker.amqp.consumer.SUBSCRIPTION_CHECK_INTERVAL_S", 0.2)
    monkeypatch.setattr("orchestrix.broker.amqp.consumer.AmqpConsumer.on_cancel", lambda *_: None)
    consumer = await broker.consume(["jobs"], 10)
    await eventually(lambda: _count(broker, "jobs", (0, 1)), deadline=5)
    await broker.delete("jobs")
    await broker.declare(WORK)
    await fill(broker, 1)
    assert bodies(await take(consumer, 1)) == [0]


async def test_acks_and_publishes_go_on_while_a_consumer_is_reopened(broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 50)
    await fill(broker, 500)
    seen: set[int] = set()
    while len(seen) < 500:
        batch = await asyncio.wait_for(consumer.receive(20), 5)
        seen |= set(bodies(batch))
        if len(seen) in range(100, 130):
            await consumer.reopen()
        await consumer.acknowledge(batch)
    assert broker.generation == 1


async def test_what_is_finished_without_growth_lets_nothing_more_come(broker: AmqpBroker) -> None:
    await fill(broker, 20)
    consumer = await broker.consume(["jobs"], 16)
    for done in range(3):
        await eventually(_steady(broker, 20), deadline=5, every=0.1)
        (one,) = await consumer.receive(100)
        assert await in_flight(broker, 20) == done + 1
        await consumer.acknowledge([one], grow=False)
    consumer.grow()
    await eventually(lambda: _in_flight_is(broker, 20, 3 + 4), deadline=5, message="the prefetch is four now")


async def _in_flight_is(broker: AmqpBroker, of: int, count: int) -> bool:
    return await in_flight(broker, of) == count


async def test_no_more_of_a_queue_is_in_hand_than_is_allowed(broker: AmqpBroker) -> None:
    await fill(broker, 40)
    consumer = await broker.consume(["jobs", "others"], 16)
    consumer.allow("jobs", 3)
    await consumer.acknowledge(await take(consumer, 1, acknowledge=False))
    await eventually(lambda: _in_flight_is(broker, 40, 4), deadline=5)
    held = await take(consumer, 3, acknowledge=False)
    consumer.allow("jobs", 0)
    assert isinstance(consumer, AmqpConsumer)
    await consumer._apply_now()  # RabbitMQ counts a reader that has left as long as it has something in hand
    assert set(consumer._tags.values()) == {"others"}, "cancelled subscriptions are forgotten"
    await consumer.acknowledge(held)
    await eventually(_steady(broker, 40), deadline=5, every=0.1)
    assert await in_flight(broker, 40) == 4, "nothing comes of a closed queue"
    assert bodies(held) == [1, 2, 3]
    await fill(broker, 1, "others")
    assert [one.queue for one in await take(consumer, 1)] == ["others"], "the other queue flows"
    consumer.allow("jobs", 16)
    left = await take(consumer, 36)
    assert sorted(bodies(left)) == list(range(4, 40))
    assert not [one for one in left if one.delivery_count > 1]


async def test_the_time_of_sending_comes_with_the_message(broker: AmqpBroker) -> None:
    sent = datetime(2026, 11, 29, 12, 0, 1, 900_000, tzinfo=UTC)
    await broker.publish([replace(message(b"x"), timestamp=sent), message(b"y")])
    first, second = await take(await broker.consume(["jobs"], 10), 2)
    assert (first.sent_at, second.sent_at) == (sent.replace(microsecond=0).timestamp(), None)
