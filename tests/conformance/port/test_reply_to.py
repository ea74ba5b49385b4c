"""Does a message keep where its answers are expected, whatever happens to it, and do they arrive there?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import aio_pika
import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.dead_letter import publish_dead_letter
from orchestrix.broker.port import Binding, Exchange, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import (
    DEAD,
    SHARD_COORDINATOR,
    dead_letters_of,
    is_member_queue,
    member_queue,
    member_topology,
    shard_topology,
)
from orchestrix.clock import uuid7
from tests.conformance.port.rig import QUORUM, Rig, message, outcomes, take
from tests.support import eventually

ANSWERS = "orchestrix.shard.member.w-1"
LIMITED = Topology(
    exchanges=(Exchange(DEAD, "direct"),),
    queues=(
        Queue(
            "limited",
            {
                **QUORUM,
                "x-delivery-limit": 1,
                "x-dead-letter-exchange": DEAD,
                "x-dead-letter-routing-key": "limited",
            },
        ),
        Queue("limited.dead", QUORUM),
    ),
    bindings=(Binding("limited.dead", DEAD, "limited"),),
)


def asking(body: bytes = b"{}", *, queue: str = "jobs", reply_to: str | None = ANSWERS) -> Outgoing:
    return Outgoing("", queue, body, uuid7(), reply_to=reply_to)


async def test_it_arrives_and_is_missing_where_none_was_sent(broker: AmqpBroker) -> None:
    correlated = replace(asking(b"both"), correlation_id="corr", type="t")
    sent = [asking(b"asks"), message(b"asks nothing"), asking(b"empty", reply_to=""), correlated]
    assert set(outcomes(await broker.publish(sent))) == {Outcome.CONFIRMED}
    taken = await take(await broker.consume(["jobs"], 10), 4)
    assert {one.body: one.reply_to for one in taken} == {
        b"asks": ANSWERS,
        b"asks nothing": None,
        b"empty": None,
        b"both": ANSWERS,
    }
    (last,) = (one for one in taken if one.body == b"both")
    assert (last.correlation_id, last.type, last.message_id) == ("corr", "t", correlated.message_id)


async def test_it_is_kept_when_the_message_comes_again(broker: AmqpBroker) -> None:
    await broker.publish([asking()])
    consumer = await broker.consume(["jobs"], 1)
    (first,) = await take(consumer, 1, acknowledge=False)
    await consumer.requeue([first])
    (again,) = await take(consumer, 1, acknowledge=False)
    assert (again.delivery_count, again.reply_to) == (1, ANSWERS)
    await consumer.reopen()
    (third,) = await take(consumer, 1)
    assert (third.delivery_count, third.reply_to) == (2, ANSWERS)


async def test_it_is_kept_when_the_broker_dead_letters_it(broker: AmqpBroker) -> None:
    await broker.declare(LIMITED)
    await broker.publish([asking(queue="limited")])
    consumer = await broker.consume(["limited"], 1)
    for _ in range(2):
        await consumer.requeue(await take(consumer, 1, acknowledge=False))
    (dead,) = await take(await broker.consume(["limited.dead"], 1), 1)
    assert (dead.headers["x-first-death-reason"], dead.reply_to) == ("delivery_limit", ANSWERS)


async def test_it_is_kept_when_the_library_dead_letters_it(broker: AmqpBroker) -> None:
    await broker.declare(shard_topology())
    await broker.publish([asking(queue=SHARD_COORDINATOR), asking(queue=SHARD_COORDINATOR, reply_to=None)])
    consumer = await broker.consume([SHARD_COORDINATOR], 10)
    wrong = []
    for _ in range(2):
        batch = await take(consumer, 1, acknowledge=False)
        await publish_dead_letter(broker, consumer, [(one, "no type") for one in batch])
        await consumer.acknowledge(batch)
        wrong += batch
    dead = await take(await broker.consume([dead_letters_of(SHARD_COORDINATOR)], 10), 2)
    assert {one.message_id: one.reply_to for one in dead} == {one.message_id: one.reply_to for one in wrong}
    assert {one.reply_to for one in dead} == {ANSWERS, None}


async def test_another_client_reads_it_and_is_read(rig: Rig, broker: AmqpBroker) -> None:
    await broker.publish([asking(b"ours")])
    async with await aio_pika.connect(rig.url) as other:
        channel = await other.channel()
        got = await (await channel.get_queue("jobs")).get(no_ack=True)
        assert got is not None
        assert (got.body, got.reply_to) == (b"ours", ANSWERS)
        theirs = aio_pika.Message(b"theirs", reply_to="somewhere", expiration=60, correlation_id="c", message_id="m")
        await channel.default_exchange.publish(theirs, "jobs")
    (one,) = await take(await broker.consume(["jobs"], 1), 1)
    assert (one.body, one.reply_to, one.correlation_id, one.message_id) == (b"theirs", "somewhere", "c", "m")


@pytest.mark.parametrize("reply_to", ["é" * 128, "\ud800"], ids=["256 bytes", "a lone surrogate"])
async def test_one_that_cannot_be_written_refuses_its_message_alone(broker: AmqpBroker, reply_to: str) -> None:
    published = await broker.publish([message(), asking(reply_to=reply_to), message()])
    assert outcomes(published) == [Outcome.CONFIRMED, Outcome.REFUSED, Outcome.CONFIRMED]
    assert "reply_to" in published[1].detail


async def test_answers_reach_the_queue_of_the_connection_that_asked(rig: Rig, broker: AmqpBroker) -> None:
    """Two of one name, as after a connection that the broker has not missed yet: each gets its own answers."""
    name, topology = member_queue("w-1"), member_topology("w-1")
    members = [await rig.up(), await rig.up()]
    readers = [await one.consume([name], 10, own_topology=topology) for one in members]
    for number, member in enumerate(members):
        await member.declare(topology)
        await member.publish([asking(b"%d" % number, reply_to=name)])
    asked = await take(await broker.consume(["jobs"], 10), 2)
    assert all(is_member_queue(one.reply_to) for one in asked)
    assert len({one.reply_to for one in asked}) == 2
    await broker.publish([Outgoing("", one.reply_to or "", b"to " + one.body, uuid7()) for one in asked])
    assert [(await take(one, 1))[0].body for one in readers] == [b"to 0", b"to 1"]


async def test_after_a_reconnect_there_is_another_queue_and_the_former_is_gone(rig: Rig) -> None:
    name, topology = member_queue("w-1"), member_topology("w-1")
    member = await rig.up()
    reader = await member.consume([name], 10, own_topology=topology)
    await member.declare(topology)
    await member.declare(Topology(queues=(Queue("jobs", QUORUM),)))
    await member.publish([asking(reply_to=name)])
    asked = await member.consume(["jobs"], 1)
    (before,) = await take(asked, 1)
    rig.proxy.cut()
    await eventually(lambda: member.generation == 2, deadline=20)
    await member.declare(topology)
    await member.publish([asking(b"after", reply_to=name)])
    after = before
    while after.body != b"after":  # the acknowledgement of the first may have been lost
        (after,) = await take(asked, 1)
    assert after.reply_to != before.reply_to

    async def sent(reply_to: str | None, wanted: Outcome) -> bool:
        return outcomes(await member.publish([Outgoing("", reply_to or "", b"answer", uuid7())])) == [wanted]

    await eventually(partial(sent, before.reply_to, Outcome.RETURNED), deadline=20)
    assert await sent(after.reply_to, Outcome.CONFIRMED)
    assert [one.body for one in await take(reader, 1)] == [b"answer"]
