"""Which brokers does the suite run against, and in what do they differ by declaration?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from orchestrix.broker.embedded import EmbeddedBroker
from tests.conformance.broker.relay import Relay

T = TypeVar("T")
PATIENCE = 10.0  # seconds until a broker that does not answer fails a test


@dataclass(frozen=True)
class Features:
    """What a broker does where RabbitMQ 3.10 and 4.x differ, or where the embedded one refuses by design."""

    default_delivery_limit: int | None
    """Of quorum queues; None is unlimited."""
    nack_keeps_place_without_limit: bool
    """A quorum queue without delivery limit puts nacked messages at its end in 3.10."""
    transient_shared_queues: bool
    """Queues that are neither durable nor exclusive can be declared."""
    last_death_headers: bool
    """Dead letters tell their newest death in `x-last-death-*`, too."""
    max_message_size: int
    """Bytes."""
    own_refusals: bool
    """Refuses what the product does not use (transactions, exchange bindings, unknown arguments)."""


MIB = 1024 * 1024
EMBEDDED = Features(
    default_delivery_limit=20,
    nack_keeps_place_without_limit=True,
    transient_shared_queues=False,
    last_death_headers=True,
    max_message_size=16 * MIB,
    own_refusals=True,
)
EMBEDDED_LENIENT = Features(
    default_delivery_limit=None,
    nack_keeps_place_without_limit=False,
    transient_shared_queues=True,
    last_death_headers=False,
    max_message_size=128 * MIB,
    own_refusals=True,
)
RABBITMQ_3_10 = Features(
    default_delivery_limit=None,
    nack_keeps_place_without_limit=False,
    transient_shared_queues=True,
    last_death_headers=False,
    max_message_size=128 * MIB,
    own_refusals=False,
)
RABBITMQ_4 = Features(
    default_delivery_limit=20,
    nack_keeps_place_without_limit=True,
    transient_shared_queues=True,
    last_death_headers=True,
    max_message_size=16 * MIB,
    own_refusals=False,
)


def rabbitmq_features(version: str) -> Features:
    """The record for what the server calls itself, such as `3.10.8`."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if major < 4:
        return RABBITMQ_3_10
    return replace(RABBITMQ_4, transient_shared_queues=(major, minor) < (4, 3))


class Background:
    """An event loop in a thread of its own, so that blocking clients can talk to what runs in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="conformance", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def call(self, work: Callable[[], T]) -> T:
        async def inside() -> T:
            return work()

        return self.run(inside())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


@dataclass(frozen=True)
class Broker:
    """A broker with an empty virtual host. `cut_url` leads to it through a relay that `cut` breaks."""

    name: str
    url: str
    features: Features
    background: Background
    relay: Relay

    @property
    def cut_url(self) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=f"guest:guest@127.0.0.1:{self.relay.port}"))

    def cut(self) -> None:
        """End all connections through the relay without a word, as a dead network or a killed process does."""
        self.background.call(self.relay.cut)


@dataclass(frozen=True)
class Embedded:
    """The embedded broker in the background."""

    server: EmbeddedBroker
    background: Background

    def stop(self) -> None:
        self.background.run(self.server.stop())


def start_embedded(background: Background, profile: str) -> Embedded:
    server = EmbeddedBroker(profile=profile)
    background.run(server.start())
    return Embedded(server, background)
