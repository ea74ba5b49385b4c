"""Push forwarding: has an assignment sent by the node that its client is connected to, which no other can reach.

That node is not sent the assignment itself: it may get the message late, and a plain client cannot see that one is old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outcome, Outgoing
from orchestrix.broker.topology import SHARD_PUSHES_KIND, node_queue
from orchestrix.lifecycle import WakeSignal
from orchestrix.saga.messages import dump
from orchestrix.shards.rabbitmq import MemberAnswer

FORWARD_TIMEOUT_S: Final = 2.0
ADDRESSES_AT_ONCE: Final = 1_000
"""Clients in one message to a node."""
MOST_KEPT: Final = 10_000
"""Clients that wait for what another node has asked for; more are ignored."""


class ForwardedPushes:
    """The addresses of clients of this node that are to be sent what they have now, because it has changed."""

    def __init__(self) -> None:
        self._addresses: set[str] = set()
        self._arrived = WakeSignal()

    def add(self, addresses: Iterable[str]) -> None:
        """Another node has changed what these have."""
        for one in addresses:
            if len(self._addresses) < MOST_KEPT:
                self._addresses.add(one)
        self._arrived.set()

    async def take(self) -> set[str]:
        """Waits for some, and takes all."""
        while not self._addresses:
            await self._arrived.wait(None)
        found, self._addresses = self._addresses, set()
        return found


async def forward(broker: Broker, answers: Iterable[MemberAnswer]) -> int:
    """Asks the nodes that their `via` names to send them; how many of these messages are lost. They are not sent again:
    the answers to the clients' next heartbeats say the same.
    """
    by_node: dict[str, list[str]] = defaultdict(list)
    for one in answers:
        if one.via is not None:
            by_node[one.via].append(one.reply_to)
    outgoing = [
        _outgoing(via, addresses[first : first + ADDRESSES_AT_ONCE])
        for via, addresses in sorted(by_node.items())
        for first in range(0, len(addresses), ADDRESSES_AT_ONCE)
    ]
    results = await broker.publish(outgoing, FORWARD_TIMEOUT_S) if outgoing else []
    return sum(one.outcome is not Outcome.CONFIRMED for one in results)


def _outgoing(via: str, addresses: Sequence[str]) -> Outgoing:
    body = dump({"kind": SHARD_PUSHES_KIND, "to": addresses})
    return Outgoing("", node_queue(via), body, clock.uuid7(), type="node.poke")
