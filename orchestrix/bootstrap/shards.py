"""Shard assembly: the coordinator of shard services of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from orchestrix.bootstrap.context import COORDINATOR, NodeContext
from orchestrix.bootstrap.factories import CONNECTION_HEARTBEAT_S, Connect
from orchestrix.bootstrap.health_checks import broker_problem
from orchestrix.broker.port import Broker
from orchestrix.broker.probe import BrokerProbe
from orchestrix.broker.topology import shard_topology
from orchestrix.config.settings import ShardsSettings
from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.state import PlainMode, ShardRules
from orchestrix.lifecycle import Service
from orchestrix.shards.coordinator import ShardCoordinator
from orchestrix.shards.rabbitmq import RabbitMQTransport

LINK_HEARTBEATS_PER_TIMEOUT: Final = 15
"""Heartbeats of the connection in the heartbeat time-out of members. After two to three of them, a fifth of the
time-out, the broker gives to others what a frozen node has in hand. A member's lease is two thirds: it outlasts that,
half of itself until the next heartbeat, and the second for which routine heartbeats are gathered."""


def link_heartbeat_s(node: NodeContext) -> int:
    """Seconds between heartbeats of the connection; where the broker is in this process, both are frozen together."""
    if node.single_process:
        return CONNECTION_HEARTBEAT_S
    return max(1, int(node.settings.shards.heartbeat_timeout / LINK_HEARTBEATS_PER_TIMEOUT))


def shard_rules(settings: ShardsSettings) -> ShardRules:
    """The rules by which all nodes divide shards; they need the same settings."""
    return ShardRules(
        window_s=settings.window,
        heartbeat_timeout_s=settings.heartbeat_timeout,
        plain=PlainMode(settings.plain),
        allocation=Allocation(settings.allocation),
    )


@dataclass(frozen=True, slots=True)
class NodeShards:
    """A node's part for services of shards: its connection, the coordinator that uses it, and both among `works`, which
    run in the order of the start.
    """

    broker: Broker
    coordinator: ShardCoordinator
    works: Sequence[Service]

    def problem(self) -> str | None:
        """Why this node answers no members now."""
        return broker_problem(self.broker)() or self.coordinator.problem()


def assemble_shards(node: NodeContext, connect: Connect | None) -> NodeShards | None:
    """The parts of a coordinator, of which nothing runs yet; None for a node without that role.

    The connection is probed: during an alarm of the broker members cannot send, and one that does not publish would not
    learn of it.
    """
    if COORDINATOR not in node.roles or connect is None:
        return None
    broker = connect(f"orchestrix shards {node.name}", shard_topology(), heartbeat=link_heartbeat_s(node))
    coordinator = ShardCoordinator(
        node.database,
        broker,
        partial(RabbitMQTransport, broker),
        node_id=node.name,
        rules=shard_rules(node.settings.shards),
        check_s=node.settings.shards.check,
    )
    return NodeShards(broker, coordinator, [broker, BrokerProbe(broker), coordinator])


def shard_works(node: NodeContext, connect: Connect | None) -> Sequence[Service]:
    """What of it runs on a node of these roles, in the order of the start."""
    shards = assemble_shards(node, connect)
    return [] if shards is None else shards.works
