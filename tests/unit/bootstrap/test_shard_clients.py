"""Does a node open a socket for plain clients only where that is asked for, is safe and is possible?"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from orchestrix.bootstrap.context import COORDINATOR, NodeContext, NodeSignals
from orchestrix.bootstrap.factories import open_broker
from orchestrix.bootstrap.shards import NodeShards, assemble_shards
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.config.settings import load
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.shards.zmq import ClientSocket

HERE = {"shards__zmq_host": "tcp://127.0.0.1"}


async def assembled(**settings: Any) -> NodeShards:
    database = Database("sqlite+aiosqlite:///never-opened.db")
    broker = AmqpBroker("amqp://nowhere", name="n-1")
    signals = NodeSignals()
    roles = frozenset({COORDINATOR})
    try:
        context = NodeContext("n-1", load({}, **settings), roles, database, broker, Catalog([]), signals)
        made = assemble_shards(context, partial(open_broker, "amqp://nowhere"))
    finally:
        await database.close()
    assert made is not None
    return made


def sockets(made: NodeShards) -> list[ClientSocket]:
    return [one for one in made.works if isinstance(one, ClientSocket)]


async def test_there_is_no_socket_unless_it_is_asked_for() -> None:
    assert sockets(await assembled()) == []
    made = await assembled(shards__zmq=True, **HERE)
    assert [one.endpoint for one in sockets(made)] == ["tcp://127.0.0.1:5555"]
    assert made.works[0] is sockets(made)[0], "it is closed last, when all has been answered"


async def test_one_that_anyone_can_reach_needs_curve_or_the_setting_that_says_so() -> None:
    with pytest.raises(ConfigError, match=r"set SHARD_COORDINATOR_BIND_HOST=tcp://127\.0\.0\.1, or ORCH"):
        await assembled(shards__zmq=True)
    assert sockets(await assembled(shards__zmq=True, shards__zmq_auth="none"))
    assert sockets(await assembled(shards__zmq=True, shards__zmq_server_key="a", shards__zmq_client_keys="b"))


async def test_without_the_extra_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "orchestrix.shards.zmq")
    monkeypatch.delattr("orchestrix.shards.zmq")
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"ZeroMQ is not installed: run pip install 'orchestrix-sagas\[zmq\]'"):
        await assembled(shards__zmq=True, **HERE)
    assert sockets(await assembled()) == []
