"""Does `doctor` see missing rights at a real RabbitMQ, and does the line that it gives mend them?"""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import pytest

from orchestrix.bootstrap import open_broker
from orchestrix.broker.port import Exchange, Topology
from orchestrix.broker.topology import EVENTS
from orchestrix.cli.doctor.result import CheckResult
from orchestrix.cli.doctor.rights import rights
from tests.servers.management import ManagedBroker
from tests.servers.rabbit import RabbitServer
from tests.servers.shared import Broker

READY_TIMEOUT_S = 20.0


def allow(server: Broker, line: list[str]) -> None:
    """What `rabbitmqctl set_permissions -p HOST USER CONFIGURE WRITE READ` does."""
    *_, host, user, configure, write, read = line
    if isinstance(server, ManagedBroker):
        server._call("PUT", f"permissions/{host}/{user}", {"configure": configure, "write": write, "read": read})
    else:
        assert isinstance(server, RabbitServer)
        server.ctl(*line[1:])


async def seen(url: str) -> list[CheckResult]:
    broker = open_broker(url, "orchestrix doctor")
    try:
        await broker.start()
        assert await broker.wait_connected(READY_TIMEOUT_S)
        return await rights(broker, url)
    finally:
        await broker.stop()


@pytest.mark.servers
async def test_each_right_that_is_missing_is_named_and_given_back(rabbitmq_server: Broker, rabbitmq_url: str) -> None:
    parts = urlsplit(rabbitmq_url)
    host, user = parts.path[1:], parts.username or "guest"
    assert await seen(rabbitmq_url) == [], "no node has made the exchanges yet"
    broker = open_broker(rabbitmq_url, "node")
    await broker.start()
    assert await broker.wait_connected(READY_TIMEOUT_S)
    await broker.declare(Topology((Exchange(EVENTS, "topic"),)))
    await broker.stop()
    assert await seen(rabbitmq_url) == []
    for right, held in {
        "configure": ("^$", ".*", ".*"),
        "write": (".*", "^$", ".*"),
        "read": (".*", ".*", "^$"),
    }.items():
        allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, *held])
        (found,) = await seen(rabbitmq_url)
        assert f"RabbitMQ's user {user!r} may not {right} " in found.detail
        assert found.fix is not None
        allow(rabbitmq_server, shlex.split(found.fix))
        assert await seen(rabbitmq_url) == []
