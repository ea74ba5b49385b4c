"""Broker state: the virtual hosts of the embedded broker, and its open connections."""

from __future__ import annotations

import asyncio
from typing import Protocol

from orchestrix.broker.embedded.model.profile import Profile
from orchestrix.broker.embedded.model.vhost import VirtualHost


class Client(Protocol):
    """A connection, seen from the broker."""

    def close_by_operator(self, reason: str) -> None:
        """Close by the operator: connection.close 320."""

    def drop(self) -> None:
        """Drop the socket without connection.close."""

    def alarm_ended(self) -> None:
        """Resume reading, where an alarm made it stop."""


class BrokerState:
    """Virtual hosts, each made when first asked for, and the open connections."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.clients: set[Client] = set()
        self.no_clients = asyncio.Event()
        self.no_clients.set()
        self.alarm = False
        self.vhosts: dict[str, VirtualHost] = {}

    def joined(self, client: Client) -> None:
        self.clients.add(client)
        self.no_clients.clear()

    def left(self, client: Client) -> None:
        self.clients.discard(client)
        if not self.clients:
            self.no_clients.set()

    def vhost(self, name: str) -> VirtualHost:
        if name not in self.vhosts:
            self.vhosts[name] = VirtualHost(name, self.profile)
        return self.vhosts[name]

    def end_alarm(self) -> None:
        self.alarm = False
        for client in list(self.clients):
            client.alarm_ended()

    def forget_messages(self) -> None:
        """Also stops the timers of messages that would have expired."""
        for vhost in self.vhosts.values():
            for queue in list(vhost.queues.values()):
                vhost.delete_queue(queue)
        self.vhosts.clear()
