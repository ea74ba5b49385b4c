"""Do members and coordinators of shards reach each other over both brokers, and what is lost where one is gone?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

import aio_pika
import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Delivery, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import SHARD_COORDINATOR, dead_letters_of, shard_topology
from orchestrix.clock import uuid7
from orchestrix.errors import Unavailable
from orchestrix.shards.rabbitmq import (
    MAX_MESSAGE_BYTES,
    AnswerCounts,
    Handled,
    MemberAnswer,
    MemberRequest,
    RabbitMQTransport,
)
from orchestrix.worker.shards.rabbitmq import MemberTransport
from tests.conformance.port.rig import QUORUM, Rig, outcomes, take
from tests.support import eventually

GONE = "orchestrix.shard.member.gone"
Judge = Callable[[Sequence[MemberRequest]], None]


class Echo:
    """Answers each request with its own body; `bad` ones are unreadable. `judge` may raise before."""

    def __init__(self) -> None:
        self.seen: list[MemberRequest] = []
        self.calls = 0
        self.judge: Judge = lambda requests: None
        self.to: str | None = None

    async def handle(self, requests: Sequence[MemberRequest]) -> Sequence[Handled]:
        self.calls += 1
        self.judge(requests)
        self.seen += requests
        return [self._handled(one) for one in requests]

    def refusal(self, problem: str) -> bytes:
        return json.dumps({"error": problem}).encode()

    def _handled(self, one: MemberRequest) -> Handled:
        if one.body == b"bad":
            return Handled(unreadable="type: must be register")
        to = self.to or one.reply_to
        return Handled([MemberAnswer(to, b"echo " + one.body, one.correlation_id)] if to is not None else [])


class Scene:
    """A coordinator that answers by `echo`, and how to make members of it."""

    def __init__(self, rig: Rig, broker: AmqpBroker) -> None:
        self.rig, self.broker, self.echo = rig, broker, Echo()
        self.transport = RabbitMQTransport(broker, self.echo)
        self.members: list[MemberTransport] = []

    @property
    def counts(self) -> AnswerCounts:
        return self.transport.counts

    async def member(self, name: str = "w-1") -> MemberTransport:
        member = MemberTransport(await self.rig.up(), name)
        self.members.append(member)
        await member.start()
        return member

    async def publish(self, body: bytes, reply_to: str | None = None) -> None:
        """As a client without the SDK does."""
        published = await self.broker.publish([Outgoing("", SHARD_COORDINATOR, body, uuid7(), reply_to=reply_to)])
        assert outcomes(published) == [Outcome.CONFIRMED]

    async def is_acknowledged(self) -> bool:
        """Whether nothing is left for another node, when this one ends and starts again."""
        await self.transport.stop()
        left = await self.broker.message_count(SHARD_COORDINATOR)
        await self.transport.start()
        return left == (0, 0)

    async def dead(self, count: int) -> list[Delivery]:
        consumer = await self.broker.consume([dead_letters_of(SHARD_COORDINATOR)], 10)
        return await take(consumer, count)


@pytest.fixture
async def scene(rig: Rig) -> AsyncIterator[Scene]:
    broker = await rig.up()
    await broker.declare(shard_topology())
    scene = Scene(rig, broker)
    await scene.transport.start()
    yield scene
    for member in scene.members:
        await member.stop()
    await scene.transport.stop()


async def answers(member: MemberTransport, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [one.body for one in await member.receive()]
    return found


@pytest.mark.req("S1-51")
async def test_each_member_gets_the_answers_to_what_it_sent(scene: Scene) -> None:
    members = [await scene.member(f"w-{number}") for number in range(3)]
    for number, member in enumerate(members):
        for turn in range(2):
            assert await member.send("heartbeat", b"%d.%d" % (number, turn), f"c-{number}")
    for number, member in enumerate(members):
        assert await answers(member, 2) == [b"echo %d.%d" % (number, turn) for turn in range(2)]
    await eventually(lambda: scene.counts.sent == 6, deadline=10)
    assert {one.correlation_id for one in scene.echo.seen} == {"c-0", "c-1", "c-2"}
    await eventually(scene.is_acknowledged, deadline=20)


async def test_an_answer_has_the_correlation_id_of_what_it_answers(scene: Scene) -> None:
    member = await scene.member()
    assert await member.send("register", b"1", "corr")
    async with asyncio.timeout(20):
        (answer,) = await member.receive()
    assert (answer.body, answer.correlation_id) == (b"echo 1", "corr")


async def test_the_answer_to_a_member_that_is_gone_is_counted_and_forgotten(scene: Scene) -> None:
    member = await scene.member()
    await scene.publish(b"leave", GONE)
    assert await member.send("heartbeat", b"next")
    assert await answers(member, 1) == [b"echo next"]
    await eventually(lambda: (scene.counts.returned, scene.counts.sent) == (1, 1), deadline=10)
    await eventually(scene.is_acknowledged, deadline=20)


@pytest.mark.parametrize("reply_to", ["cmd.createGitRepo", "orchestrix.coordinator.leader", "victim"])
async def test_answers_go_to_members_alone_whoever_names_another_queue(
    scene: Scene, reply_to: str, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.broker.declare(Topology(queues=(Queue(reply_to, QUORUM),)))
    await scene.publish(b"trick", reply_to)
    await eventually(lambda: bool(scene.echo.seen), deadline=10)
    assert [one.reply_to for one in scene.echo.seen] == [None]
    assert "orchestrix.shard.member.<id>" in caplog.text
    await scene.transport.send([MemberAnswer(reply_to, b"answer")])
    assert scene.counts == AnswerCounts(withheld=1)
    assert await scene.broker.message_count(reply_to) == (0, 0)


async def test_what_cannot_be_read_is_refused_and_becomes_a_dead_letter(scene: Scene) -> None:
    member = await scene.member()
    assert await member.send("register", b"bad")
    assert await member.send("register", bytes(MAX_MESSAGE_BYTES + 1))
    assert await member.send("register", bytes(MAX_MESSAGE_BYTES))
    refusals = [body for body in await answers(member, 3) if not body.startswith(b"echo")]
    said = [json.loads(body)["error"] for body in refusals]
    assert said == ["type: must be register", "too-large: 65537 bytes, at most 65536"]
    dead = await scene.dead(2)
    assert [one.headers["x-reason"] for one in dead] == said
    assert all(one.reply_to is not None for one in dead)
    assert [len(one.body) for one in scene.echo.seen] == [3, MAX_MESSAGE_BYTES]


async def test_one_that_breaks_the_handler_costs_its_neighbours_nothing(scene: Scene) -> None:
    def judge(requests: Sequence[MemberRequest]) -> None:
        if any(one.body == b"poison" for one in requests):
            raise KeyError("poison")

    scene.echo.judge = judge
    member = await scene.member()
    await scene.transport.stop()
    for body in (b"1", b"poison", b"2"):
        assert await member.send("heartbeat", body)
    consumer = await scene.broker.consume([SHARD_COORDINATOR], 10, own_topology=shard_topology())
    await scene.transport._finish(consumer, await take(consumer, 3, acknowledge=False))
    found = await answers(member, 3)
    assert sorted(found) == sorted([b"echo 1", b"echo 2", b'{"error": "failed: KeyError"}'])
    (dead,) = await scene.dead(1)
    assert (dead.body, dead.headers["x-reason"]) == (b"poison", "failed: KeyError")


async def test_while_the_handler_cannot_work_requests_are_kept(scene: Scene) -> None:
    def judge(requests: Sequence[MemberRequest]) -> None:
        if scene.echo.calls <= 2:
            raise Unavailable("the database is away")

    scene.echo.judge = judge
    member = await scene.member()
    assert await member.send("heartbeat", b"1")
    assert await answers(member, 1) == [b"echo 1"]
    assert scene.echo.calls == 3
    await eventually(scene.is_acknowledged, deadline=20)


async def test_a_client_without_the_sdk_is_answered_in_its_own_queue(scene: Scene) -> None:
    async with await aio_pika.connect(scene.rig.url) as other:
        channel = await other.channel()
        queue = await channel.declare_queue("orchestrix.shard.member.plain:1", exclusive=True)
        sent = aio_pika.Message(b"hello", reply_to=queue.name, correlation_id="c")
        await channel.default_exchange.publish(sent, SHARD_COORDINATOR)

        async def answered() -> bool:
            got = await queue.get(no_ack=True, fail=False)
            return got is not None and (got.body, got.correlation_id, got.type) == (b"echo hello", "c", "assignment")

        await eventually(answered, deadline=10)


async def test_after_a_lost_connection_both_sides_go_on(scene: Scene) -> None:
    member = await scene.member()
    assert await member.send("register", b"before")
    assert await answers(member, 1) == [b"echo before"]
    scene.rig.proxy.cut()

    async def answered() -> bool:
        return await member.send("heartbeat", b"after")

    await eventually(answered, deadline=30)
    found = await answers(member, 1)
    assert set(found) == {b"echo after"}
    assert len({one.reply_to for one in scene.echo.seen if one.body != b"x"}) == 2
