"""How does the link come up, go down and come up again?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from yarl import URL

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import LinkState
from orchestrix.errors import ConfigError, Unavailable
from tests.conformance.port.rig import WORK, Rig, fill, take
from tests.support import eventually, free_port


@pytest.fixture
async def brokers() -> AsyncIterator[list[AmqpBroker]]:
    """Brokers that are stopped with the test."""
    made: list[AmqpBroker] = []
    yield made
    for broker in made:
        await broker.stop()


async def test_hooks_come_in_order_and_the_generation_rises(rig: Rig) -> None:
    broker, heard = rig.make(), list[object]()
    broker.on_up(lambda generation: heard.append(("up", generation, broker.state)))
    broker.on_down(lambda generation, reason: heard.append(("down", generation, broker.state, bool(reason))))
    assert (broker.state, broker.generation) == (LinkState.DOWN, 0)
    await broker.start()
    assert await broker.wait_connected(10)
    assert broker.problem is None
    rig.proxy.cut()
    await eventually(lambda: broker.generation == 2, deadline=5)
    await broker.stop()
    assert heard == [
        ("up", 1, LinkState.UP),
        ("down", 1, LinkState.DOWN, True),
        ("up", 2, LinkState.UP),
        ("down", 2, LinkState.CLOSING, True),
    ]
    assert broker.state is LinkState.DOWN


async def test_a_hook_that_fails_harms_nobody(rig: Rig) -> None:
    broker, heard = rig.make(), list[int]()

    def fail(generation: int) -> None:
        raise RuntimeError("a bug in a hook")

    broker.on_up(fail)
    broker.on_up(heard.append)
    await broker.start()
    assert await broker.wait_connected(10)
    assert heard == [1]


async def test_an_unreachable_broker_is_no_error_and_found_when_it_appears(rig: Rig) -> None:
    await rig.proxy.stop()
    broker = rig.make()
    await broker.start()
    assert not await broker.wait_connected(0.3)
    await eventually(lambda: "cannot connect" in (broker.problem or ""), deadline=5)
    with pytest.raises(Unavailable, match="cannot connect"):
        await broker.declare(WORK)
    with pytest.raises(Unavailable):
        await broker.message_count("jobs")
    with pytest.raises(Unavailable):
        await broker.delete("jobs")
    await rig.proxy.start()
    assert await broker.wait_connected(10)
    await broker.declare(WORK)


async def test_both_connections_come_back_when_one_is_cut(rig: Rig, broker: AmqpBroker) -> None:
    consumer = await broker.consume(["jobs"], 10)
    for round in range(2, 6):
        rig.proxy.cut()
        await eventually(lambda round=round: broker.generation == round, deadline=10)  # type: ignore[misc]
        await fill(broker, 3)
        assert len(await take(consumer, 3)) == 3
    assert rig.proxy.connections == 2


async def test_a_silent_broker_is_given_up_after_two_heartbeats(rig: Rig) -> None:
    broker = await rig.up(heartbeat=1)
    reasons: list[str] = []
    broker.on_down(lambda _, reason: reasons.append(reason))
    rig.proxy.freeze()
    await eventually(lambda: reasons, deadline=4)
    assert "no data from the broker" in reasons[0]
    rig.proxy.thaw()
    assert await broker.wait_connected(10)


async def test_a_link_that_answers_nothing_is_cut_by_the_consumer_that_looks(
    rig: Rig, broker: AmqpBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.broker.amqp.consumer.SUBSCRIPTION_CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr("orchestrix.broker.amqp.channel.RPC_TIMEOUT_S", 0.3)
    reasons: list[str] = []
    broker.on_down(lambda _, reason: reasons.append(reason))
    await broker.consume(["jobs"], 10)
    await eventually(lambda: _has_consumer(broker), deadline=5)
    rig.proxy.freeze()
    await eventually(lambda: reasons, deadline=5)
    assert "does not answer" in reasons[0]
    rig.proxy.thaw()
    monkeypatch.undo()
    assert await broker.wait_connected(10)


async def _has_consumer(broker: AmqpBroker) -> bool:
    return await broker.message_count("jobs") == (0, 1)


async def test_heartbeats_keep_an_idle_link_and_a_busy_one(rig: Rig) -> None:
    broker = await rig.up(heartbeat=1)
    await broker.declare(WORK)
    consumer = await broker.consume(["jobs"], 100)
    ends = time.monotonic() + 7  # aio-pika gives up after 3 × (1 + 1) s
    while time.monotonic() < ends:
        await fill(broker, 1)
        await take(consumer, 1)
    assert broker.generation == 1


async def test_stopping_takes_less_than_five_seconds_when_the_broker_hangs(rig: Rig, broker: AmqpBroker) -> None:
    consumers = [await broker.consume(["jobs"], 10) for _ in range(3)]
    await fill(broker, 1)
    rig.proxy.freeze()
    began = time.monotonic()
    await broker.stop()
    assert time.monotonic() - began < 5
    assert [await consumer.receive(1) for consumer in consumers[1:]] == [[], []]


async def test_stopping_before_the_start_and_while_connecting(rig: Rig) -> None:
    await rig.make().stop()
    rig.proxy.freeze()
    broker = rig.make()
    await broker.start()
    await eventually(lambda: broker.state is LinkState.CONNECTING, deadline=2)
    await broker.stop()
    assert broker.state is LinkState.DOWN


async def test_a_goodbye_of_the_broker_is_told_in_its_words(
    embedded: EmbeddedBroker, broker_of_embedded: AmqpBroker
) -> None:
    reasons: list[str] = []
    broker_of_embedded.on_down(lambda _, reason: reasons.append(reason))
    embedded.close_all_connections("for maintenance")
    await eventually(lambda: broker_of_embedded.generation == 2, deadline=5)
    assert "320" in reasons[0]
    assert "maintenance" in reasons[0]


async def test_a_broker_that_restarts_empty_is_used_again(
    embedded: EmbeddedBroker, broker_of_embedded: AmqpBroker
) -> None:
    consumer = await broker_of_embedded.consume(["jobs"], 10)
    await embedded.stop()
    await eventually(lambda: broker_of_embedded.state is not LinkState.UP, deadline=5)
    await embedded.start()
    await eventually(lambda: broker_of_embedded.generation == 2, deadline=10)
    await broker_of_embedded.declare(WORK)
    await fill(broker_of_embedded, 1)
    assert len(await take(consumer, 1)) == 1


@pytest.mark.servers
async def test_a_wrong_password_is_named_without_the_password(rabbitmq_url: str, brokers: list[AmqpBroker]) -> None:
    url = str(URL(rabbitmq_url).with_password("s3cret"))
    brokers.append(broker := AmqpBroker(url, name="test"))
    await broker.start()
    await eventually(lambda: "rejected the login of 'guest'" in (broker.problem or ""), deadline=10)
    assert "s3cret" not in (broker.problem or "")


@pytest.mark.servers
async def test_a_missing_virtual_host_is_named(rabbitmq_url: str, brokers: list[AmqpBroker]) -> None:
    brokers.append(broker := AmqpBroker(str(URL(rabbitmq_url).with_path("/nope")), name="test"))
    await broker.start()
    await eventually(lambda: "no virtual host 'nope'" in (broker.problem or ""), deadline=10)


async def test_what_does_not_speak_amqp_is_named(brokers: list[AmqpBroker]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        brokers.append(broker := AmqpBroker(f"amqp://u:s3cret@127.0.0.1:{port}/", name="test"))
        await broker.start()
        await eventually(lambda: "does not speak AMQP" in (broker.problem or ""), deadline=5)
        assert "s3cret" not in (broker.problem or "")


async def test_who_never_answers_is_given_up(brokers: list[AmqpBroker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.broker.amqp.connection.CONNECT_TIMEOUT_S", 0.3)

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        brokers.append(broker := AmqpBroker(f"amqp://127.0.0.1:{port}/", name="test"))
        await broker.start()
        await eventually(lambda: "did not answer in time" in (broker.problem or ""), deadline=5)
        await broker.stop()


async def test_any_of_several_hosts_will_do(embedded: EmbeddedBroker, brokers: list[AmqpBroker]) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{free_port()},127.0.0.1:{embedded.port}/"
    for _ in range(4):
        brokers.append(broker := AmqpBroker(url, name="test"))
        await broker.start()
        assert await broker.wait_connected(5)


async def test_the_address_is_asked_for_again_before_each_connect(
    embedded: EmbeddedBroker, brokers: list[AmqpBroker]
) -> None:
    answers: Iterator[Exception | str] = iter(
        [OSError("no such file"), ConfigError("no broker is running here"), "nonsense", embedded.url]
    )

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    brokers.append(broker := AmqpBroker(ask, name="test"))
    await broker.start()
    assert await broker.wait_connected(10)
    assert list(answers) == []
