"""Node heartbeats: published by each node on a topic that all nodes consume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Consumer, LinkState, Outgoing
from orchestrix.broker.topology import HEARTBEAT, heartbeat_queue
from orchestrix.domain.nodes import NodeState
from orchestrix.lifecycle import Loop
from orchestrix.saga.messages import UnreadableMessage, dump, load

PREFETCH: Final = 100


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """A node's heartbeat. `at` is when it was received, on the monotonic clock."""

    node_id: str
    job_count: int
    state: NodeState
    at: float


def heartbeat_message(node_id: str, job_count: int, state: NodeState, at: datetime) -> Outgoing:
    """The message of a node's heartbeat."""
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = dump({"nodeId": node_id, "jobCount": job_count, "timestamp": stamp, "state": state.value})
    return Outgoing(HEARTBEAT, node_id, body, clock.uuid7(), type="node.heartbeat")


def read_heartbeat(body: bytes) -> NodeHeartbeat | None:
    """The heartbeat in `body`; None if it is none. A program that knows no states is alive."""
    try:
        fields: Mapping[str, Any] = load(body)
        node_id, jobs = fields["nodeId"], fields.get("jobCount", 0)
        state = NodeState(fields.get("state", NodeState.ALIVE))
    except (UnreadableMessage, KeyError, ValueError):
        return None
    if not isinstance(node_id, str) or isinstance(jobs, bool) or not isinstance(jobs, int):
        return None
    return NodeHeartbeat(node_id, jobs, state, clock.monotonic())


class HeartbeatListener:
    """Receives every node's heartbeats. `latest` has the last one of each, as long as the link lasts."""

    def __init__(self, broker: Broker, node_id: str) -> None:
        self._broker, self._node_id = broker, node_id
        self.latest: dict[str, NodeHeartbeat] = {}
        self._consumer: Consumer | None = None
        self._loop = Loop("heartbeats", self._round)
        self._linked_at: float | None = None
        broker.on_up(lambda generation: self._linked())
        broker.on_down(lambda generation, why: self._lost())

    @property
    def listening_for_s(self) -> float:
        """For how many seconds it has been listening without a break."""
        return 0.0 if self._linked_at is None else clock.monotonic() - self._linked_at

    def _linked(self) -> None:
        self._linked_at = clock.monotonic()

    def _lost(self) -> None:
        self._linked_at = None
        self.latest.clear()

    async def start(self) -> None:
        """Begins to listen; the broker may be down."""
        if self._broker.state is LinkState.UP and self._linked_at is None:
            self._linked()
        self._consumer = await self._broker.consume([heartbeat_queue(self._node_id)], PREFETCH)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops listening."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        assert self._consumer is not None
        found = await self._consumer.receive(PREFETCH)
        if not found:
            await asyncio.sleep(1.0)  # the link is closed: this part is about to end
        for heartbeat in filter(None, (read_heartbeat(one.body) for one in found)):
            self.latest[heartbeat.node_id] = heartbeat
        await self._consumer.acknowledge(found)
