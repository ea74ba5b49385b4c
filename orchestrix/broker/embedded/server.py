"""Embedded broker: starts and stops the AMQP server, and lets a test interrupt it."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from typing import Any

from orchestrix.broker.embedded.broker_state import BrokerState
from orchestrix.broker.embedded.connection import EmbeddedConnection
from orchestrix.broker.embedded.model.profile import profile_named
from orchestrix.errors import ConfigError

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 2.0


class EmbeddedBroker:
    """A small AMQP 0-9-1 broker for development: memory only, loopback only.

    `profile` is "strict" (as RabbitMQ 4.x) or "lenient" (as 3.10). Raises ConfigError for another profile and for a
    host that is not loopback. Port 0 takes a free one; `port` and `url` have it after `start`.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, profile: str = "strict") -> None:
        self._host = _loopback(host)
        self._wanted_port = port
        self._profile = profile_named(profile)
        self._state = BrokerState(self._profile)
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket | None = None) -> None:
        """Listen, on a socket that does so already where one is given; without effect when it listens.

        Raises OSError if the port is taken, and ConfigError for a socket that is not on loopback.
        """
        if self._server is not None:
            return
        place: dict[str, Any] = {"host": self._host, "port": self._wanted_port}
        if listening is not None:
            self._host = _loopback(listening.getsockname()[0])
            place = {"sock": listening}
        self._server = await asyncio.get_running_loop().create_server(lambda: EmbeddedConnection(self._state), **place)
        log.warning(
            "embedded AMQP broker on port %s: for development only, its messages are lost when it stops", self.port
        )

    @property
    def port(self) -> int:
        """The port that it listens on; before the start, the one asked for."""
        if self._server is None or not self._server.sockets:
            return self._wanted_port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"amqp://guest:guest@{host}:{self.port}/"

    async def stop(self) -> None:
        """Close all connections, cut those that do not answer within 2 s, drop all messages."""
        if self._server is None:
            return
        self._wanted_port = self.port
        self._server.close()
        self.close_all_connections("the embedded broker is shutting down")
        await self._wait_for_clients_to_leave()
        self.drop_all_connections()
        await self._server.wait_closed()
        self._server = None
        self._state.forget_messages()

    async def _wait_for_clients_to_leave(self) -> None:
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await self._state.no_clients.wait()
        except TimeoutError:
            log.debug("%s clients did not answer connection.close", len(self._state.clients))

    def close_all_connections(self, reason: str) -> int:
        """As an operator would: connection.close 320 to all. Returns how many there were."""
        clients = list(self._state.clients)
        for client in clients:
            client.close_by_operator(reason)
        return len(clients)

    def drop_all_connections(self) -> int:
        """Drop all sockets without connection.close. Returns how many there were."""
        clients = list(self._state.clients)
        for client in clients:
            client.drop()
        return len(clients)

    def queue_depths(self, vhost: str = "/") -> dict[str, int]:
        """Messages that are ready, by queue."""
        if vhost not in self._state.vhosts:
            return {}
        return {name: len(queue.ready) for name, queue in self._state.vhosts[vhost].queues.items()}

    def unsettled(self, vhost: str = "/") -> dict[str, int]:
        """Messages that are ready, or unacked at a consumer, by queue."""
        if vhost not in self._state.vhosts:
            return {}
        return {name: queue.unsettled for name, queue in self._state.vhosts[vhost].queues.items()}

    def block_publishers(self) -> None:
        """As a memory alarm: a connection that publishes from now on gets connection.blocked and is no longer read."""
        self._state.alarm = True

    def unblock_publishers(self) -> None:
        self._state.end_alarm()


def _loopback(host: str) -> str:
    """The address to bind. Raises ConfigError for one that other machines could reach."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        allowed = ipaddress.ip_address(host).is_loopback
    except ValueError:
        allowed = False
    if not allowed:
        raise ConfigError(
            "The embedded broker has no authentication and is for development only: it binds to a loopback address "
            f"such as 127.0.0.1, not to {host!r}. Use RabbitMQ where other machines must connect."
        )
    return host
