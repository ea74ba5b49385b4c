"""Is the node that a client is connected to asked to send what the client has?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from orchestrix.broker.port import Broker, Outcome, Outgoing, Published
from orchestrix.shards import forwarding
from orchestrix.shards.forwarding import ForwardedPushes, forward
from orchestrix.shards.rabbitmq import MemberAnswer


class Outbox:
    """Takes what is published."""

    def __init__(self, outcome: Outcome = Outcome.CONFIRMED) -> None:
        self.sent: list[Outgoing] = []
        self.outcome = outcome

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        self.sent += messages
        return [Published(self.outcome) for _ in messages]


def answer(via: str | None, number: int) -> MemberAnswer:
    return MemberAnswer(f"zmq:{number:02}", b"{}", via=via)


def fields(message: Outgoing) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.body)
    return found


async def test_each_node_is_asked_once_and_not_told_what_may_be_old_when_it_reads_it() -> None:
    broker = Outbox()
    answers = [answer("n-2", 1), answer("n-1", 2), answer("n-2", 3), answer(None, 4)]
    assert await forward(cast(Broker, broker), answers) == 0
    assert [one.routing_key for one in broker.sent] == ["orchestrix.node.n-1", "orchestrix.node.n-2"]
    assert [fields(one) for one in broker.sent] == [
        {"kind": "shard-pushes", "to": ["zmq:02"]},
        {"kind": "shard-pushes", "to": ["zmq:01", "zmq:03"]},
    ]


async def test_very_many_are_divided_among_messages() -> None:
    broker = Outbox()
    assert await forward(cast(Broker, broker), [answer("n-1", number) for number in range(2_001)]) == 0
    assert [len(fields(one)["to"]) for one in broker.sent] == [1_000, 1_000, 1]


async def test_what_no_node_takes_is_lost_and_counted() -> None:
    broker = Outbox(Outcome.RETURNED)
    assert await forward(cast(Broker, broker), [answer("n-1", 1), answer("n-2", 2)]) == 2
    assert await forward(cast(Broker, broker), []) == 0
    assert len(broker.sent) == 2


async def test_each_client_waits_once_and_no_more_than_so_many() -> None:
    arrived = ForwardedPushes()
    found = asyncio.create_task(arrived.take())
    await asyncio.sleep(0)
    arrived.add(["zmq:01", "zmq:02"])
    arrived.add(["zmq:01"])
    assert await found == {"zmq:01", "zmq:02"}
    arrived.add(f"zmq:{number}" for number in range(forwarding.MOST_KEPT + 5))
    assert len(await arrived.take()) == forwarding.MOST_KEPT
