"""What does publishing promise?"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

import aio_pika
import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import LinkState, Outcome
from tests.conformance.port.rig import WORK, Rig, message, outcomes, take
from tests.support import eventually

CONFIRMED, RETURNED, REFUSED, UNKNOWN = Outcome.CONFIRMED, Outcome.RETURNED, Outcome.REFUSED, Outcome.UNKNOWN


async def test_five_thousand_messages_are_all_confirmed(broker: AmqpBroker) -> None:
    published = await broker.publish([message(b"%d" % n) for n in range(5000)])
    assert set(outcomes(published)) == {CONFIRMED}
    assert await broker.message_count("jobs") == (5000, 0)


async def test_no_messages_have_no_results(broker: AmqpBroker) -> None:
    assert await broker.publish([]) == []


async def test_each_message_without_a_queue_is_returned(broker: AmqpBroker) -> None:
    batch = [message(key="nowhere" if n % 3 == 0 else "jobs") for n in range(300)]
    published = await broker.publish(batch)
    assert outcomes(published) == [RETURNED if n % 3 == 0 else CONFIRMED for n in range(300)]
    assert "NO_ROUTE" in published[0].detail
    assert not published[0].channel_closed


async def test_two_messages_of_one_id_have_each_its_own_outcome(broker: AmqpBroker) -> None:
    batch = [message(id="twin"), message(id="twin", key="nowhere"), message(id="twin"), message(id="other")]
    assert outcomes(await broker.publish(batch)) == [CONFIRMED, RETURNED, CONFIRMED, CONFIRMED]
    assert await broker.message_count("jobs") == (3, 0)


async def test_two_calls_with_one_id_have_each_its_own_outcome(broker: AmqpBroker) -> None:
    keys = ["jobs", "nowhere"] * 20
    published = await asyncio.gather(*(broker.publish([message(id="twin", key=key)]) for key in keys))
    assert [one[0].outcome for one in published] == [CONFIRMED, RETURNED] * 20


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(message(key="é" * 128), id="a routing key of 256 bytes"),
        pytest.param(replace(message(), exchange="x" * 256), id="an exchange of 256 bytes"),
        pytest.param(message(id="i" * 256), id="a message id of 256 bytes"),
        pytest.param(replace(message(), headers={"x": 2**63}), id="an integer of 65 bits"),
        pytest.param(replace(message(), headers={"x": "\ud800"}), id="a lone surrogate"),
        pytest.param(replace(message(), headers={"k" * 256: 1}), id="a header name of 256 bytes"),
        pytest.param(replace(message(), headers={"x": "y" * 140_000}), id="headers larger than a frame"),
        pytest.param(replace(message(), timestamp=datetime(1900, 1, 1, tzinfo=UTC)), id="a time before 1970"),
    ],
)
async def test_a_message_that_cannot_be_written_is_refused_alone(broker: AmqpBroker, bad: object) -> None:
    assert isinstance(bad, type(message()))
    published = await broker.publish([message(), bad, message()])
    assert outcomes(published) == [CONFIRMED, REFUSED, CONFIRMED]
    assert published[1].detail
    assert broker.generation == 1, "the connection has to live"


async def test_an_exchange_that_is_missing_costs_the_channel_and_nothing_more(broker: AmqpBroker) -> None:
    published = await broker.publish([message(), message(exchange="gone"), message()])
    assert published[1].outcome is RETURNED
    assert published[1].channel_closed
    assert "gone" in published[1].detail
    assert published[2].outcome is UNKNOWN
    assert published[2].channel_closed
    assert outcomes(await broker.publish([message()])) == [CONFIRMED]
    assert broker.generation == 1


async def test_a_later_part_of_a_long_batch_survives_a_closed_channel(broker: AmqpBroker) -> None:
    batch = [message(exchange="gone" if n == 10 else "work") for n in range(3000)]
    published = outcomes(await broker.publish(batch))
    assert published[10] is RETURNED
    assert set(published[1000:]) == {CONFIRMED}


async def test_without_a_link_the_answer_is_unknown_at_once(rig: Rig) -> None:
    broker = rig.make()
    began = time.monotonic()
    published = await broker.publish([message(), message()], timeout=10)
    assert outcomes(published) == [UNKNOWN, UNKNOWN]
    assert published[0].detail
    assert time.monotonic() - began < 1


async def test_a_link_lost_in_flight_makes_the_outcome_unknown_at_once(rig: Rig, broker: AmqpBroker) -> None:
    rig.proxy.freeze()
    asyncio.get_running_loop().call_later(0.1, rig.proxy.cut)
    async with asyncio.timeout(3):
        published = await broker.publish([message() for _ in range(10)], timeout=30)
    assert set(outcomes(published)) == {UNKNOWN}
    assert not published[0].channel_closed
    assert published[0].detail


async def test_a_late_confirm_is_unknown_and_does_no_harm(rig: Rig, broker: AmqpBroker) -> None:
    rig.proxy.freeze()
    twice = message(id="late")
    assert outcomes(await broker.publish([twice, message()], timeout=0.3)) == [UNKNOWN, UNKNOWN]
    rig.proxy.thaw()
    assert outcomes(await broker.publish([twice])) == [CONFIRMED]
    await eventually(lambda: _count_is(broker, 3), deadline=5)
    assert broker.state is LinkState.UP


async def test_a_late_return_of_a_copy_that_was_given_up_is_not_that_of_the_next(rig: Rig, broker: AmqpBroker) -> None:
    rig.proxy.freeze_answers()
    assert outcomes(await broker.publish([message(id="twice", key="nowhere")], timeout=0.3)) == [UNKNOWN]
    again = asyncio.create_task(broker.publish([message(id="twice")]))
    await asyncio.sleep(0)
    rig.proxy.thaw()
    assert outcomes(await again) == [CONFIRMED]


async def test_a_copy_that_is_returned_is_told_apart_from_one_that_was_given_up(rig: Rig, broker: AmqpBroker) -> None:
    rig.proxy.freeze_answers()
    assert outcomes(await broker.publish([message(id="twice")], timeout=0.3)) == [UNKNOWN]
    again = asyncio.create_task(broker.publish([message(id="twice", key="nowhere"), message(id="other")]))
    await asyncio.sleep(0)
    rig.proxy.thaw()
    assert outcomes(await again) == [RETURNED, CONFIRMED]


async def _count_is(broker: AmqpBroker, count: int) -> bool:
    return await broker.message_count("jobs") == (count, 0)


async def test_a_cancelled_publish_leaves_the_port_usable(rig: Rig, broker: AmqpBroker) -> None:
    rig.proxy.freeze()
    publishing = asyncio.create_task(broker.publish([message(id="same")], timeout=30))
    await asyncio.sleep(0)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    rig.proxy.thaw()
    assert outcomes(await broker.publish([message(id="same")])) == [CONFIRMED]


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 262_128, 5_000_000])
async def test_a_body_of_any_size_arrives_as_it_was(broker: AmqpBroker, size: int) -> None:
    body = (b"0123456789" * (size // 10 + 1))[:size]
    assert outcomes(await broker.publish([message(body), message(b"next")])) == [CONFIRMED, CONFIRMED]
    consumer = await broker.consume(["jobs"], 10)
    assert [one.body for one in await take(consumer, 2)] == [body, b"next"]


async def test_another_client_sees_what_the_contract_says(rig: Rig, broker: AmqpBroker) -> None:
    sent = replace(
        message(b'{"a":1}', id="id-1"),
        correlation_id="corr-é",
        type="cmd.x",
        timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        headers={"traceparent": "00-ab", "n": -7, "flag": True},
    )
    assert outcomes(await broker.publish([sent])) == [CONFIRMED]
    async with await aio_pika.connect(rig.url) as other:
        channel = await other.channel()
        queue = await channel.get_queue("jobs")
        got = await queue.get(no_ack=True)
    assert got is not None
    assert (got.body, got.message_id, got.correlation_id, got.type) == (b'{"a":1}', "id-1", "corr-é", "cmd.x")
    assert (got.content_type, got.delivery_mode, got.timestamp) == ("application/json", 2, sent.timestamp)
    assert {**got.headers, "x-delivery-count": 0} == {**sent.headers, "x-delivery-count": 0}  # RabbitMQ adds its own
    assert (got.exchange, got.routing_key) == ("work", "jobs")


async def test_declaring_makes_a_returned_message_go_through(rig: Rig) -> None:
    broker = await rig.up()
    assert outcomes(await broker.publish([message()])) == [RETURNED]
    await broker.declare(WORK)
    assert outcomes(await broker.publish([message()])) == [CONFIRMED]
