"""Does `doctor` see missing rights at a real RabbitMQ, and does the line that it gives mend them?"""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import pytest

from orchestrix.bootstrap import open_broker
from orchestrix.broker.port import Exchange, Outgoing, Queue, Topology
from orchestrix.broker.topology import EVENTS, SHARD_COORDINATOR, UNROUTED, shard_topology
from orchestrix.cli.doctor.permissions import check_permissions
from orchestrix.cli.doctor.result import CheckResult
from tests.servers.management import ManagedBroker
from tests.servers.rabbit import RabbitServer
from tests.servers.shared import Broker
from tests.support import eventually

READY_TIMEOUT_S = 20.0


def allow(server: Broker, line: list[str]) -> None:
    """What `rabbitmqctl set_permissions -p HOST USER CONFIGURE WRITE READ` does."""
    *_, host, user, configure, write, read = line
    if isinstance(server, ManagedBroker):
        server._call("PUT", f"permissions/{host}/{user}", {"configure": configure, "write": write, "read": read})
    else:
        assert isinstance(server, RabbitServer)
        server.ctl(*line[1:])


async def seen(url: str, *queues: str) -> list[CheckResult]:
    broker = open_broker(url, "orchestrix doctor")
    try:
        await broker.start()
        assert await broker.wait_connected(READY_TIMEOUT_S)
        return await check_permissions(broker, url, queues)
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


EXCEPT = "^(?!NAME$).*"


@pytest.mark.servers
async def test_a_right_that_is_missing_on_one_name_is_found_and_nothing_is_taken(
    rabbitmq_server: Broker, rabbitmq_url: str
) -> None:
    parts = urlsplit(rabbitmq_url)
    host, user = parts.path[1:], parts.username or "guest"
    broker = open_broker(rabbitmq_url, "node")
    await broker.start()
    try:
        assert await broker.wait_connected(READY_TIMEOUT_S)
        wanted = Topology((Exchange(EVENTS, "topic"), Exchange(UNROUTED, "fanout")))
        await broker.declare(wanted + Topology(queues=(Queue("cmd.pay", {"x-queue-type": "quorum"}),)))
        await broker.declare(Topology(queues=shard_topology().queues))
        await broker.publish([Outgoing("", "cmd.pay", b"{}", "m-1")])
        for right, what, name, held in (
            ("write", "exchange", EVENTS, (".*", EXCEPT.replace("NAME", EVENTS), ".*")),
            ("write", "exchange", "amq.default", (".*", EXCEPT.replace("NAME", "amq.default"), ".*")),
            ("read", "queue", "cmd.pay", (".*", ".*", EXCEPT.replace("NAME", "cmd.pay"))),
            ("read", "queue", SHARD_COORDINATOR, (".*", ".*", EXCEPT.replace("NAME", SHARD_COORDINATOR))),
        ):
            allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, *held])
            (found,) = await seen(rabbitmq_url, "cmd.pay")
            assert f"may not {right} in virtual host" in found.detail
            assert found.detail.endswith(f": {what} {name!r}")
            assert found.fix is not None
            allow(rabbitmq_server, shlex.split(found.fix))
            assert await seen(rabbitmq_url, "cmd.pay") == []
        consumer = await broker.consume(["cmd.pay"], 1)
        (delivery,) = await consumer.receive(1)
        assert not delivery.redelivered, "the check has taken no message"
    finally:
        await broker.stop()


@pytest.mark.servers
async def test_who_may_not_read_a_queue_logs_the_line_that_helps(
    rabbitmq_server: Broker, rabbitmq_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(rabbitmq_url)
    host, user = parts.path[1:], parts.username or "guest"
    broker = open_broker(rabbitmq_url, "worker")
    await broker.start()
    try:
        assert await broker.wait_connected(READY_TIMEOUT_S)
        await broker.declare(Topology(queues=(Queue("cmd.pay"),)))
        allow(rabbitmq_server, ["rabbitmqctl", "set_permissions", "-p", host, user, ".*", ".*", "^$"])
        await broker.consume(["cmd.pay"], 1)
        line = f"type: rabbitmqctl set_permissions -p {host} {user} '.*' '.*' '.*'"
        await eventually(lambda: line in caplog.text, deadline=READY_TIMEOUT_S)
        assert "the broker closed the channel of cmd.pay: 403 ACCESS_REFUSED" in caplog.text
    finally:
        await broker.stop()
