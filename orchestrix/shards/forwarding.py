"""Answer forwarding: sends answers by the node that their clients are connected to, which no other can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outcome, Outgoing
from orchestrix.broker.topology import SHARD_ANSWERS_KIND, node_queue
from orchestrix.lifecycle import WakeSignal
from orchestrix.saga.messages import dump
from orchestrix.shards.rabbitmq import MemberAnswer

FORWARD_TIMEOUT_S: Final = 2.0
MOST_MESSAGE_CHARS: Final = 256 * 1024
"""Characters of the answers in one message to a node; a longer answer goes alone."""
MOST_KEPT: Final = 10_000
"""Answers from other nodes that wait to be sent here; the oldest of more are dropped."""


class ForwardedAnswers:
    """Answers that other nodes have sent for clients of this one, and that are not sent yet."""

    def __init__(self) -> None:
        self._answers: list[MemberAnswer] = []
        self._arrived = WakeSignal()

    def add(self, found: Sequence[object]) -> None:
        """Those of one message; what is no answer is ignored."""
        self._answers += [answer for one in found if (answer := _answer(one)) is not None]
        del self._answers[:-MOST_KEPT]
        self._arrived.set()

    async def take(self) -> list[MemberAnswer]:
        """Waits for some, and takes all."""
        while not self._answers:
            await self._arrived.wait(None)
        found, self._answers = self._answers, []
        return found


async def forward(broker: Broker, answers: Sequence[MemberAnswer]) -> int:
    """Sends answers to the nodes that their `via` names; how many nodes' messages are lost, which are not sent again:
    the answers to the clients' next heartbeats say the same.
    """
    outgoing = [_outgoing(via, part) for via, part in _parts(answers)]
    results = await broker.publish(outgoing, FORWARD_TIMEOUT_S) if outgoing else []
    return sum(one.outcome is not Outcome.CONFIRMED for one in results)


def _parts(answers: Sequence[MemberAnswer]) -> Iterator[tuple[str, list[MemberAnswer]]]:
    def by_node(one: MemberAnswer) -> str:
        return one.via or ""

    for via, group in groupby(sorted(answers, key=by_node), by_node):
        part: list[MemberAnswer] = []
        size = 0
        for one in group:
            if part and size + len(one.body) > MOST_MESSAGE_CHARS:
                yield via, part
                part, size = [], 0
            part.append(one)
            size += len(one.body)
        yield via, part


def _outgoing(via: str, answers: Sequence[MemberAnswer]) -> Outgoing:
    fields = [{"to": one.reply_to, "body": one.body.decode()} for one in answers]
    body = dump({"kind": SHARD_ANSWERS_KIND, "answers": fields})
    return Outgoing("", node_queue(via), body, clock.uuid7(), type="node.poke")


def _answer(found: object) -> MemberAnswer | None:
    if not isinstance(found, Mapping):
        return None
    reply_to, body = found.get("to"), found.get("body")
    return MemberAnswer(reply_to, body.encode()) if isinstance(reply_to, str) and isinstance(body, str) else None
