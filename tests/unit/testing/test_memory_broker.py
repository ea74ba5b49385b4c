"""Does the broker in memory keep the port's promises, and break them the way a broker does?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from orchestrix.broker.port import Binding, Delivery, Exchange, LinkState, Outcome, Outgoing, Queue, Topology
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.broker.server import MAX_MESSAGE, MemoryServer
from orchestrix.testing.simulation.virtual_time import VirtualLoop, elapse
from tests.support import eventually

TOPOLOGY = Topology(
    exchanges=(
        Exchange("lost", "fanout"),
        Exchange("news", "topic", {"alternate-exchange": "lost"}),
        Exchange("orders", "direct"),
        Exchange("dead", "direct"),
    ),
    queues=(
        Queue("a", {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "a"}),
        Queue("b"),
        Queue("a.dead"),
        Queue("lost"),
    ),
    bindings=(
        Binding("a", "orders", "a"),
        Binding("b", "orders", "b"),
        Binding("a", "news", "sport.#"),
        Binding("b", "news", "*.final"),
        Binding("a.dead", "dead", "a"),
        Binding("lost", "lost", ""),
    ),
)


def message(number: int, key: str = "a", exchange: str = "orders") -> Outgoing:
    return Outgoing(exchange, key, str(number).encode(), f"m-{number}")


def bodies(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(one.body) for one in deliveries]


class Rig:
    """A server and its clients, and no pace unless one is set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.dice = Random(1)
        self.server = MemoryServer(self.dice, delay=lambda: self.dice.uniform(0.001, 0.05))

    async def client(self) -> MemoryBroker:
        """One that is up."""
        broker = MemoryBroker(self.server, topology=TOPOLOGY)
        await broker.start()
        assert await broker.wait_connected(10.0)
        return broker

    async def pair(self, prefetch: int = 10) -> tuple[MemoryBroker, MemoryConsumer]:
        """One that is up and reads queue `a`."""
        broker = await self.client()
        return broker, await broker.consume(["a"], prefetch)


@pytest.fixture
def rig(loop: VirtualLoop) -> Rig:
    async def made() -> Rig:
        return Rig(loop)

    return loop.run_until_complete(made())


async def taken(consumer: MemoryConsumer, count: int) -> list[Delivery]:
    """`count` deliveries, each acknowledged."""
    found: list[Delivery] = []
    while len(found) < count:
        async with asyncio.timeout(30.0):
            fresh = await consumer.receive(100)
        await consumer.acknowledge(fresh)
        found += fresh
    return found


def test_messages_arrive_in_order(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        results = await broker.publish([message(n) for n in range(50)])
        assert {one.outcome for one in results} == {Outcome.CONFIRMED}
        deliveries = await taken(consumer, 50)
        assert bodies(deliveries) == list(range(50))
        assert not any(one.redelivered for one in deliveries)
        await eventually(lambda: rig.server.depth("a") == 0, deadline=5.0)

    rig.loop.run_until_complete(days())


def test_where_answers_are_expected_is_kept_over_redeliveries_and_dead_letters(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        rig.server.delivery_limit = 1
        await broker.publish([replace(message(1), reply_to="answers")])
        for _ in range(2):
            found = await consumer.receive(1)
            assert [one.reply_to for one in found] == ["answers"]
            await consumer.requeue(found)
        (dead,) = await taken(await broker.consume(["a.dead"], 10), 1)
        assert (dead.body, dead.reply_to) == (b"1", "answers")
        await broker.publish([message(2)])
        (plain,) = await taken(consumer, 1)
        assert (plain.body, plain.reply_to) == (b"2", None)

    rig.loop.run_until_complete(days())


def test_topics_alternates_and_returns(rig: Rig) -> None:
    async def days() -> None:
        broker = await rig.client()
        keys = ["sport.final", "art.final", "sport.2026.may", "art"]
        news = [message(n, key, "news") for n, key in enumerate(keys)]
        strays = [message(8, "nowhere"), message(9, "a", "missing")]
        results = await broker.publish([*news, *strays])
        assert [one.outcome for one in results] == [Outcome.CONFIRMED] * 4 + [Outcome.RETURNED] * 2
        assert [rig.server.depth(queue) for queue in ("a", "b", "lost")] == [2, 2, 1]

    rig.loop.run_until_complete(days())


def test_a_message_that_is_too_large_is_refused(rig: Rig) -> None:
    async def days() -> None:
        broker = await rig.client()
        (result,) = await broker.publish([Outgoing("orders", "a", bytes(MAX_MESSAGE + 1), "m")])
        assert result.outcome is Outcome.REFUSED

    rig.loop.run_until_complete(days())


def test_prefetch_limits_what_is_in_hand(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair(prefetch=3)
        await broker.publish([message(n) for n in range(10)])
        first = await consumer.receive(100)
        assert len(first) == 1, "a consumer starts with one"
        await consumer.acknowledge(first)
        await elapse(1.0)
        assert len(await consumer.receive(100)) == 3
        await elapse(1.0)
        assert await broker.message_count("a") == (6, 1)

    rig.loop.run_until_complete(days())


def test_what_is_given_back_comes_again_in_its_place(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        await broker.publish([message(n) for n in range(3)])
        (first,) = await consumer.receive(100)
        await consumer.requeue([first])
        again = await taken(consumer, 3)
        assert bodies(again) == [0, 1, 2]
        assert [one.delivery_count for one in again] == [1, 0, 0]
        assert [one.redelivered for one in again] == [True, False, False]

    rig.loop.run_until_complete(days())


def test_a_message_dies_of_too_many_returns(rig: Rig) -> None:
    async def days() -> None:
        rig.server.delivery_limit = 2
        broker, consumer = await rig.pair()
        await broker.publish([message(7)])
        for _ in range(3):
            await consumer.requeue(await consumer.receive(1))
        await eventually(lambda: rig.server.depth("a.dead") == 1, deadline=5.0)
        assert rig.server.depth("a") == 0

    rig.loop.run_until_complete(days())


def test_a_lost_link_gives_out_again_what_was_in_hand(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        downs: list[str] = []
        broker.on_down(lambda generation, reason: downs.append(reason))
        await broker.publish([message(n) for n in range(2)])
        (held,) = await consumer.receive(100)
        assert consumer.alive(held)
        broker.drop_connections(0.0, 0.0)
        await eventually(lambda: broker.generation == 2, deadline=10.0)
        assert downs == ["connection reset by peer"]
        assert not consumer.alive(held)
        await consumer.acknowledge([held])
        again = await taken(consumer, 2)
        assert bodies(again) == [0, 1]
        assert again[0].redelivered

    rig.loop.run_until_complete(days())


def test_a_broker_that_learns_late_keeps_what_was_in_hand(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        await broker.publish([message(1)])
        await consumer.receive(100)
        broker.drop_connections(0.0, 20.0)
        await eventually(lambda: broker.generation == 2, deadline=10.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await consumer.receive(100)
        assert bodies(await taken(consumer, 1)) == [1]

    rig.loop.run_until_complete(days())


def test_of_what_is_under_way_at_a_cut_only_the_first_arrive(rig: Rig) -> None:
    """And nobody is told which."""

    async def days() -> set[int]:
        kept = set()
        for _ in range(20):
            broker = await rig.client()
            publishing = asyncio.ensure_future(broker.publish([message(n, "b") for n in range(10)]))
            await elapse(0.0)
            broker.drop_connections(0.0, 0.0)
            assert {one.outcome for one in await publishing} == {Outcome.UNKNOWN}
            await elapse(1.0)
            reader = await broker.consume(["b"], 100)
            count = rig.server.depth("b")
            assert bodies(await taken(reader, count)) == list(range(count))
            kept.add(count)
            await broker.stop()
        return kept

    assert len(rig.loop.run_until_complete(days())) > 3


def test_the_dead_are_let_go_and_speak_no_more(rig: Rig) -> None:
    process = rig.loop.process("p")
    held: list[int] = []

    async def life() -> None:
        broker, consumer = await rig.pair()
        process.on_death.append(broker.disconnect)
        while True:
            held.extend(bodies(await consumer.receive(100)))

    async def days() -> None:
        broker = await rig.client()
        process.spawn(life())
        await broker.publish([message(1)])
        await eventually(lambda: held == [1], deadline=5.0)
        process.kill()
        assert bodies(await taken(await broker.consume(["a"], 10), 1)) == [1]
        assert held == [1]

    rig.loop.run_until_complete(days())


def test_nothing_is_taken_during_an_alarm_and_all_of_it_after(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        rig.server.raise_alarm("memory alarm")
        sending = asyncio.ensure_future(broker.publish([message(1)], timeout=5.0))
        await elapse(1.0)
        assert broker.blocked == "memory alarm"
        late = await broker.publish([message(2)], timeout=2.0)
        assert late[0].outcome is Outcome.UNKNOWN
        assert (await sending)[0].outcome is Outcome.UNKNOWN
        rig.server.clear_alarm()
        assert bodies(await taken(consumer, 1)) == [1], "the first was on its way before the client knew"
        assert broker.blocked is None

    rig.loop.run_until_complete(days())


def test_a_restart_keeps_the_queues_and_a_loss_of_memory_does_not(rig: Rig) -> None:
    async def days() -> None:
        broker = await rig.client()
        await broker.publish([message(1, "b")])
        rig.server.stop()
        assert broker.state is not LinkState.UP or await _goes_down(broker)
        assert (await broker.publish([message(2)]))[0].outcome is Outcome.UNKNOWN
        with pytest.raises(Unavailable):
            await broker.message_count("b")
        rig.server.start()
        assert await broker.wait_connected(30.0)
        assert await broker.message_count("b") == (1, 0)
        rig.server.stop()
        rig.server.forget()
        rig.server.start()
        await _goes_down(broker)
        assert await broker.wait_connected(30.0)
        assert await broker.message_count("b") == (0, 0), "declared again at the connect"

    rig.loop.run_until_complete(days())


async def _goes_down(broker: MemoryBroker) -> bool:
    return await eventually(lambda: broker.state is not LinkState.UP, deadline=5.0)


def test_weather_keeps_the_order_within_a_queue(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        rig.server.held_back = lambda queue: rig.dice.uniform(0.0, 3.0)
        await broker.publish([message(n) for n in range(20)])
        assert bodies(await taken(consumer, 20)) == list(range(20))
        rig.server.held_back = lambda queue: 0.0
        rig.server.copied_after = lambda queue: 2.0
        await broker.publish([message(99)])
        assert bodies(await taken(consumer, 2)) == [99, 99]

    rig.loop.run_until_complete(days())


def test_a_deleted_queue_comes_back_and_is_read_again(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        await broker.delete("a")
        assert await broker.message_count("a") is None
        (result,) = await broker.publish([message(1)])
        assert result.outcome is Outcome.RETURNED
        await elapse(11.0)
        await broker.publish([message(2)])
        assert bodies(await taken(consumer, 1)) == [2]

    rig.loop.run_until_complete(days())


def test_other_arguments_are_named(rig: Rig) -> None:
    async def days() -> None:
        broker = await rig.client()
        with pytest.raises(ConfigError, match="queue b"):
            await broker.declare(Topology(queues=(Queue("b", {"x-max-length": 3}), Queue("c"))))
        assert await broker.message_count("c") == (0, 0)

    rig.loop.run_until_complete(days())


def test_a_paused_consumer_keeps_what_it_has(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        await broker.publish([message(n) for n in range(3)])
        held = await consumer.receive(100)
        await consumer.pause()
        await consumer.acknowledge(held)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await consumer.receive(100)
        await consumer.resume()
        assert bodies(await taken(consumer, 2)) == [1, 2]

    rig.loop.run_until_complete(days())


def test_a_consumer_that_reopens_or_closes_gives_all_back(rig: Rig) -> None:
    async def days() -> None:
        broker, consumer = await rig.pair()
        await broker.publish([message(1)])
        (held,) = await consumer.receive(100)
        await consumer.reopen()
        assert not consumer.alive(held)
        (again,) = await consumer.receive(100)
        assert again.redelivered
        await consumer.close()
        assert await consumer.receive(100) == []
        await eventually(lambda: rig.server.depth("a") == 1, deadline=5.0)

    rig.loop.run_until_complete(days())


def test_one_consumer_gets_all_of_a_queue_with_a_single_active_one(rig: Rig) -> None:
    async def days() -> None:
        broker, other = await rig.client(), await rig.client()
        queue = Topology(queues=(Queue("one", {"x-single-active-consumer": True}),))
        await broker.declare(queue)
        first = await other.consume(["one"], 10)
        await elapse(1.0)
        second = await broker.consume(["one"], 10)
        await elapse(1.0)
        await broker.publish([Outgoing("", "one", b"1", "m-1"), Outgoing("", "one", b"2", "m-2")])
        assert bodies(await taken(first, 2)) == [1, 2]
        await broker.publish([Outgoing("", "one", b"3", "m-3")])
        await first.receive(1)
        await first.close()
        assert bodies(await taken(second, 1)) == [3]

    rig.loop.run_until_complete(days())


def test_an_exclusive_queue_is_one_sessions_and_ends_with_it(rig: Rig) -> None:
    own = Topology(queues=(Queue("mine", exclusive=True),))

    async def days() -> None:
        broker, other = MemoryBroker(rig.server, topology=own), await rig.client()
        await broker.start()
        assert await broker.wait_connected(10.0)
        ping = Outgoing("", "mine", b"1", "m-1")
        assert [one.outcome for one in await other.publish([ping])] == [Outcome.CONFIRMED]
        broker.drop_connections(client_after=0.0, server_after=5.0)
        assert await broker.wait_connected(3.0)
        assert [one.outcome for one in await other.publish([ping])] == [Outcome.CONFIRMED], "the old one's"
        await elapse(5.0)
        assert [one.outcome for one in await other.publish([ping])] == [Outcome.RETURNED]
        await elapse(2.0)
        assert [one.outcome for one in await other.publish([ping])] == [Outcome.CONFIRMED], "made again"
        await broker.stop()
        await elapse(1.0)
        assert [one.outcome for one in await other.publish([ping])] == [Outcome.RETURNED]

    rig.loop.run_until_complete(days())


def test_whoever_asks_is_told_of_the_end_of_a_channel(rig: Rig) -> None:
    async def days() -> None:
        broker, lost = await rig.client(), asyncio.Event()
        consumer = await broker.consume(["b"], 1, own_topology=TOPOLOGY)
        consumer.on_channel_lost(lost.set)
        await broker.publish([message(1, "b"), message(2, "b")])
        (held,) = await consumer.receive(1)
        rig.server.delete("b")
        await asyncio.wait_for(lost.wait(), 1.0)
        assert not consumer.alive(held)
        await elapse(1.0)
        await broker.publish([message(3, "b")])
        assert bodies(await taken(consumer, 1)) == [3]
        lost.clear()
        broker.drop_connections(client_after=0.0, server_after=0.0)
        await asyncio.wait_for(lost.wait(), 1.0)

    rig.loop.run_until_complete(days())


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02, 0.03, 0.05])
def test_a_consumer_that_is_closed_makes_nothing_anew(rig: Rig, pause: float) -> None:
    async def wanted() -> bool:
        await elapse(0.01)
        return True

    async def days() -> None:
        broker = await rig.client()
        rig.server.delete("b")
        consumer = await broker.consume(["b"], 1, own_topology=TOPOLOGY, dynamic_topology=wanted)
        await elapse(pause)
        await consumer.close()
        await broker.delete("b")
        await elapse(1.0)
        assert "b" not in rig.server.queues

    rig.loop.run_until_complete(days())
