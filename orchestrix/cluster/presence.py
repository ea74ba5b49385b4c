"""Node presence: the exclusive queue that shows that a node is up, and by which it is notified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, Outcome, Outgoing
from orchestrix.broker.topology import REPORTS_KIND, SHARD_PUSHES_KIND, node_queue
from orchestrix.lifecycle import Loop
from orchestrix.saga.messages import UnreadableMessage, dump, load

log = logging.getLogger("orchestrix.cluster")

PING_KIND: Final = "ping"
PREFETCH: Final = 50
PING_TIMEOUT_S: Final = 2.0


class NodePresence:
    """Consumes the queue that only this node has: a message in it asks the node to check something.

    `on_notification` is called with the kind of each notification, `on_reports` with the ids of jobs that executors
    have reported, `on_pushes` with the addresses of shard clients; none must block.
    """

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        on_notification: Callable[[str], None],
        on_reports: Callable[[Collection[str]], None] = lambda job_ids: None,
        on_pushes: Callable[[Collection[str]], None] = lambda addresses: None,
    ) -> None:
        self._broker, self._node_id = broker, node_id
        self._on_notification, self._on_reports = on_notification, on_reports
        self._on_pushes = on_pushes
        self._consumer: Consumer | None = None
        self._loop = Loop("presence", self._round)

    async def start(self) -> None:
        """Begins to consume; the broker may be down."""
        self._consumer = await self._broker.consume([node_queue(self._node_id)], PREFETCH)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops consuming. The queue ends with the connection."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        assert self._consumer is not None
        found = await self._consumer.receive(PREFETCH)
        if not found:
            await asyncio.sleep(1.0)  # the link is closed: this part is about to end
        read = [_fields(one.body) for one in found]
        for kind in {_kind(fields) for fields in read} - {PING_KIND, REPORTS_KIND, SHARD_PUSHES_KIND, None}:
            self._on_notification(str(kind))
        if reported := {one for fields in read if _kind(fields) == REPORTS_KIND for one in _texts(fields, "jobs")}:
            self._on_reports(reported)
        if pushes := {one for fields in read if _kind(fields) == SHARD_PUSHES_KIND for one in _texts(fields, "to")}:
            self._on_pushes(pushes)
        await self._consumer.acknowledge(found)


def _fields(body: bytes) -> Mapping[str, object]:
    try:
        return load(body)
    except UnreadableMessage:
        return {}


def _kind(fields: Mapping[str, object]) -> str | None:
    kind = fields.get("kind")
    return kind if isinstance(kind, str) else None


def _texts(fields: Mapping[str, object], name: str) -> list[str]:
    found = fields.get(name)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


async def missing(broker: Broker, node_ids: Sequence[str]) -> set[str] | None:
    """Which of the nodes have no queue at the broker; None where that is not known of all of them."""
    body = dump({"kind": PING_KIND})
    pings = [Outgoing("", node_queue(node_id), body, clock.uuid7(), type="node.ping") for node_id in node_ids]
    outcomes = [one.outcome for one in await broker.publish(pings, PING_TIMEOUT_S)]
    if not set(outcomes) <= {Outcome.CONFIRMED, Outcome.RETURNED}:
        return None
    return {node_id for node_id, outcome in zip(node_ids, outcomes, strict=True) if outcome is Outcome.RETURNED}
