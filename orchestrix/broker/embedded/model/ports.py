"""Ports: what queues and channels need of the connection that carries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrix.broker.embedded.model.profile import Profile
    from orchestrix.broker.embedded.model.queues import QueuedMessage, Subscription
    from orchestrix.broker.embedded.model.vhost import VirtualHost


class ConnectionPort(Protocol):
    """A connection, seen from its channels. Also the identity that owns exclusive queues."""

    @property
    def user(self) -> str: ...

    @property
    def frame_max(self) -> int:
        """Bytes."""

    @property
    def notifies_cancel(self) -> bool: ...

    @property
    def profile(self) -> Profile: ...

    @property
    def vhost(self) -> VirtualHost: ...

    @property
    def writable(self) -> bool:
        """False while the peer reads more slowly than we write: it gets no further deliveries."""

    def send(self, data: bytes) -> None: ...

    def before_flush(self, write: Callable[[], None]) -> None:
        """Call `write` once before the collected output leaves."""


class ChannelPort(Protocol):
    """A channel, seen from a queue."""

    @property
    def link(self) -> ConnectionPort: ...

    def deliver(self, consumer: Subscription, entry: QueuedMessage) -> None: ...

    def consumer_cancelled(self, consumer: Subscription) -> None:
        """The queue was deleted: notify the client, drop the consumer."""
