"""Owner notifier: wakes the owners of jobs for groups when there is an executor to call, on whichever node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outgoing
from orchestrix.broker.topology import node_queue
from orchestrix.saga.messages import dump

CALLS_KIND: Final = "executor-calls"
"""The kind of a notification of a node that it has executors to call."""


class OwnerNotifier:
    """Notifies nodes by the queues that only they have.

    A lost notification costs little, for each owner looks once a second.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending: set[asyncio.Task[None]] = set()

    def __call__(self, owners: Iterable[str | None]) -> None:
        """Begins to publish to each of them once; returns at once."""
        if nodes := {one for one in owners if one is not None}:
            task = asyncio.create_task(self._send(sorted(nodes)), name="notifications of owners")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, nodes: Iterable[str]) -> None:
        # One that is returned was for a node that is gone: the next owner finds the attempt by itself.
        body = dump({"kind": CALLS_KIND})
        pokes = [Outgoing("", node_queue(one), body, clock.uuid7(), type="node.poke") for one in nodes]
        await self._broker.publish(pokes, timeout=1.0)
