"""How does a test of the suite get each of the brokers in turn?"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pika
import pytest

from tests.conformance.broker.brokers import (
    EMBEDDED,
    EMBEDDED_LENIENT,
    Background,
    Broker,
    Features,
    rabbitmq_features,
    start_embedded,
)
from tests.conformance.broker.plain import Plain, plain
from tests.conformance.broker.relay import Relay

EMBEDDED_PROFILES = {"embedded": ("strict", EMBEDDED), "embedded-lenient": ("lenient", EMBEDDED_LENIENT)}


@pytest.fixture(scope="session")
def background() -> Iterator[Background]:
    loop = Background()
    yield loop
    loop.close()


@pytest.fixture(params=["embedded", "embedded-lenient", pytest.param("rabbitmq", marks=pytest.mark.servers)])
def broker(request: pytest.FixtureRequest, background: Background) -> Iterator[Broker]:
    """Each broker in turn, with a virtual host that is this test's alone."""
    name = str(request.param)
    if name == "rabbitmq":
        url = str(request.getfixturevalue("rabbitmq_url"))
        yield from _with_relay(name, url, rabbitmq_features(_version(url)), background)
        return
    profile, features = EMBEDDED_PROFILES[name]
    embedded = start_embedded(background, profile)
    try:
        yield from _with_relay(name, embedded.server.url, features, background)
    finally:
        embedded.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[Plain]:
    """Plain pika on that broker."""
    with plain(broker.url) as one:
        yield one


def _with_relay(name: str, url: str, features: Features, background: Background) -> Iterator[Broker]:
    parts = urlsplit(url)
    relay = Relay(parts.hostname or "127.0.0.1", parts.port or 5672)
    background.run(relay.start())
    try:
        yield Broker(name, url, features, background, relay)
    finally:
        background.run(relay.stop())


def _version(url: str) -> str:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return str((connection._impl.server_properties or {})["version"])
    finally:
        connection.close()
