"""Do answers reach the node that their clients are connected to, and does junk from there do no harm?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from orchestrix.broker.port import Broker, Outcome, Outgoing, Published
from orchestrix.shards import forwarding
from orchestrix.shards.forwarding import ForwardedAnswers, forward
from orchestrix.shards.rabbitmq import MemberAnswer


class Outbox:
    """Takes what is published."""

    def __init__(self, outcome: Outcome = Outcome.CONFIRMED) -> None:
        self.sent: list[Outgoing] = []
        self.outcome = outcome

    async def publish(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        self.sent += messages
        return [Published(self.outcome) for _ in messages]


def answer(via: str, number: int, size: int = 2) -> MemberAnswer:
    return MemberAnswer(f"zmq:{number:02}", b"{" + b" " * (size - 2) + b"}", via=via)


def fields(message: Outgoing) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.body)
    return found


async def test_each_node_gets_those_of_its_clients_in_messages_that_are_not_too_long() -> None:
    broker = Outbox()
    long = forwarding.MOST_MESSAGE_CHARS // 2 + 1
    answers = [answer("n-2", 1), answer("n-1", 2, long), answer("n-2", 3), answer("n-1", 4, long)]
    assert await forward(cast(Broker, broker), answers) == 0
    assert [one.routing_key.removeprefix("orchestrix.node.") for one in broker.sent] == ["n-1", "n-1", "n-2"]
    assert [[one["to"] for one in fields(message)["answers"]] for message in broker.sent] == [
        ["zmq:02"],
        ["zmq:04"],
        ["zmq:01", "zmq:03"],
    ]
    assert {fields(one)["kind"] for one in broker.sent} == {"shard-answers"}


async def test_what_no_node_takes_is_lost_and_counted() -> None:
    broker = Outbox(Outcome.RETURNED)
    assert await forward(cast(Broker, broker), [answer("n-1", 1), answer("n-2", 2)]) == 2
    assert await forward(cast(Broker, broker), []) == 0
    assert len(broker.sent) == 2


async def test_a_node_takes_what_is_an_answer_and_ignores_the_rest() -> None:
    broker, arrived = Outbox(), ForwardedAnswers()
    await forward(cast(Broker, broker), [answer("n-1", 1), answer("n-1", 2)])
    arrived.add(fields(broker.sent[0])["answers"])
    arrived.add(["junk", {"to": 1, "body": "x"}, {"to": "zmq:03"}, None])
    found = await arrived.take()
    assert [(one.reply_to, one.body, one.via) for one in found] == [("zmq:01", b"{}", None), ("zmq:02", b"{}", None)]


async def test_of_too_many_the_oldest_are_dropped() -> None:
    arrived = ForwardedAnswers()
    for number in range(forwarding.MOST_KEPT + 5):
        arrived.add([{"to": f"zmq:{number}", "body": "{}"}])
    found = await arrived.take()
    assert (len(found), found[0].reply_to) == (forwarding.MOST_KEPT, "zmq:5")
