"""Shard assembly: the coordinator of shard services of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from orchestrix.errors import ConfigError
from orchestrix.lifecycle import Service
from orchestrix.shards.combined import CombinedTransport
from orchestrix.shards.coordinator import ShardCoordinator
from orchestrix.shards.rabbitmq import RabbitMQTransport
from orchestrix.shards.transport import MakeTransport, MemberService
from orchestrix.version import DISTRIBUTION

LINK_HEARTBEATS_PER_TIMEOUT: Final = 15
"""Heartbeats of the connection in the heartbeat time-out of members. After two to three of them, a fifth of the
time-out, the broker gives the unacknowledged messages of a stopped node to others. A member's lease is two thirds: it
outlasts that, half of itself until the next heartbeat, and the second for which routine heartbeats are gathered."""


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


def assemble_shards(
    node: NodeContext, connect: Connect | None, current_id: Callable[[], str | None] = lambda: None
) -> NodeShards | None:
    """The parts of a coordinator, of which nothing runs yet; None for a node without that role. `current_id` is its id
    in the cluster, where that is not its name. Raises `ConfigError`.

    The connection is probed: during an alarm of the broker members cannot send, and one that does not publish would not
    learn of it.
    """
    if COORDINATOR not in node.roles or connect is None:
        return None
    broker = connect(
        f"orchestrix shards {node.name}",
        shard_topology(),
        heartbeat=link_heartbeat_s(node),
        reconnect_max_s=shard_rules(node.settings.shards).reconnect_max_s,
    )
    make: MakeTransport = partial(RabbitMQTransport, broker)
    sockets: list[Service] = []
    if node.settings.shards.zmq:
        socket, make = _with_clients(node, broker, current_id)
        sockets.append(socket)
    coordinator = ShardCoordinator(
        node.database,
        broker,
        make,
        node_id=node.name,
        rules=shard_rules(node.settings.shards),
        check_s=node.settings.shards.check,
    )
    return NodeShards(broker, coordinator, [*sockets, broker, BrokerProbe(broker), coordinator])


def shard_works(node: NodeContext, connect: Connect | None) -> Sequence[Service]:
    """What of it runs on a node of these roles, in the order of the start."""
    shards = assemble_shards(node, connect)
    return [] if shards is None else shards.works


def _with_clients(
    node: NodeContext, broker: Broker, current_id: Callable[[], str | None]
) -> tuple[Service, MakeTransport]:
    """The ZeroMQ socket, and the transport that serves its clients besides members by RabbitMQ."""
    settings = node.settings.shards
    if settings.zmq_is_open:
        raise ConfigError(
            f"anyone who can reach {settings.zmq_endpoint} could take shards: set SHARD_COORDINATOR_BIND_HOST="
            "tcp://127.0.0.1, or ORCHESTRIX_SHARDS__ZMQ_SERVER_KEY and ORCHESTRIX_SHARDS__ZMQ_CLIENT_KEYS for CURVE "
            "or, if something else protects it, ORCHESTRIX_SHARDS__ZMQ_AUTH=none"
        )
    try:
        from orchestrix.shards import zmq  # an extra, which others do not need
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "zmq":
            raise
        raise ConfigError(
            "ORCHESTRIX_SHARDS__ZMQ is on, but ZeroMQ is not installed: run pip install "
            f"'{DISTRIBUTION}[zmq]', or unset it"
        ) from error
    keys = None
    if settings.zmq_server_key is not None and settings.zmq_client_keys is not None:
        keys = zmq.CurveKeys(settings.zmq_server_key, settings.zmq_client_keys)
    socket = zmq.ClientSocket(settings.zmq_endpoint, keys)

    def make(handler: MemberService) -> CombinedTransport:
        clients = zmq.ZmqTransport(
            socket, handler, broker, lambda: current_id() or node.name, node.signals.shard_pushes
        )
        return CombinedTransport(RabbitMQTransport(broker, handler), clients)

    return socket, make
