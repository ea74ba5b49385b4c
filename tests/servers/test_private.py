"""Do the servers for tests start, keep tests apart, survive what tests do to them, and end?"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aio_pika
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.servers import reaper, run
from tests.servers.base import DidNotStart
from tests.servers.maria import MariaServer
from tests.servers.postgres import PostgresServer
from tests.servers.rabbit import RabbitServer, speaks_amqp
from tests.servers.run import CommandFailed, Run
from tests.servers.sql import answers_sql
from tests.support import eventually

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("turn", [1, 2])
async def test_every_test_has_an_empty_virtual_host(rabbitmq_url: str, turn: int) -> None:
    connection = await aio_pika.connect(rabbitmq_url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("same name", durable=True, arguments={"x-queue-type": "quorum"})
        assert queue.declaration_result.message_count == 0
        await channel.default_exchange.publish(aio_pika.Message(b"left behind"), "same name")


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("fixture", ["postgres_url", "mariadb_url", "sqlite_url"])
async def test_every_test_has_an_empty_database(request: pytest.FixtureRequest, fixture: str, turn: int) -> None:
    url = request.getfixturevalue(fixture)
    await execute(url, "CREATE TABLE same_name (id int)")
    assert await execute(url, "SELECT count(*) FROM same_name") == 0
    await execute(url, "INSERT INTO same_name VALUES (1)")


async def test_postgres_keeps_committed_rows_over_a_kill(
    private_postgres: Callable[[], PostgresServer], scale: Callable[[int, int], int]
) -> None:
    server = private_postgres()
    await execute(server.url(), "CREATE TABLE t (id int)")
    for turn in range(scale(2, 50)):
        await execute(server.url(), f"INSERT INTO t VALUES ({turn})")
        family = reaper.family(server.pid)
        server.kill9()
        assert not any(reaper.family(pid) for pid in family)
        assert not answers_sql(server.url())
        server.start()
        assert await execute(server.url(), "SELECT count(*) FROM t") == turn + 1


async def test_mariadb_keeps_committed_rows_over_a_kill(
    private_mariadb: Callable[[], MariaServer], scale: Callable[[int, int], int]
) -> None:
    server = private_mariadb()
    await execute(server.url(), "CREATE DATABASE d")
    await execute(server.url("d"), "CREATE TABLE t (id int)")
    for turn in range(scale(2, 50)):
        await execute(server.url("d"), f"INSERT INTO t VALUES ({turn})")
        server.kill9()
        assert not answers_sql(server.url())
        server.start()
        assert await execute(server.url("d"), "SELECT count(*) FROM t") == turn + 1


async def test_a_frozen_database_keeps_its_connections_and_answers_later(
    private_postgres: Callable[[], PostgresServer],
) -> None:
    server = private_postgres()
    engine = create_async_engine(server.url())
    async with engine.connect() as connection:
        server.pause()
        assert not any(reaper.stat_of(pid)[0] in "RS" for pid in reaper.family(server.pid))
        server.resume()
        assert (await connection.exec_driver_sql("SELECT 1")).scalar_one() == 1
    await engine.dispose()


async def test_rabbitmq_keeps_persistent_messages_over_a_kill_freezes_and_leaves_nothing(
    private_rabbitmq: Callable[[], RabbitServer],
) -> None:
    server = private_rabbitmq()
    connection = await aio_pika.connect(server.url())
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "q")
    server.settle()
    server.kill9()
    assert not speaks_amqp(server.port)
    server.start()
    assert await eventually(lambda: first_body(server, "q"), deadline=30) == b"kept"
    server.pause()
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as link:
        link.settimeout(0.2)
        link.sendall(b"AMQP\x00\x00\x09\x01")
        with pytest.raises(TimeoutError):
            link.recv(1)
    server.resume()
    await eventually(lambda: speaks_amqp(server.port), deadline=10)
    assert server.eval("1 + 1") == "2"
    with ThreadPoolExecutor(8) as asking:
        assert list(asking.map(server.eval, ["2 + 3"] * 40)) == ["5"] * 40, "several processes may ask at once"
    with pytest.raises(CommandFailed, match="undef"):
        server.eval("no:such()")
    family = reaper.family(server.pid)
    server.discard()
    await eventually(lambda: not any(reaper.family(pid) for pid in family), deadline=5)
    assert not server.home.exists()


def test_files_lie_in_memory_only_where_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_MEMORY_BYTES", 0)
    roomy = Run(in_memory=True)
    monkeypatch.setattr(run, "_MEMORY_BYTES", 1 << 60)
    full = Run(in_memory=True)
    asked = Run()
    for made in (roomy, full, asked):
        made.close()
    memory = Path("/dev/shm")
    assert (roomy.root.parent == memory) == memory.is_dir()
    assert memory not in (full.root.parent, asked.root.parent)
    assert not roomy.root.exists()


def test_a_server_that_cannot_start_shows_its_log(private_postgres: Callable[[], PostgresServer]) -> None:
    server = private_postgres()
    server.stop()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", server.port))
        thief.listen()
        with pytest.raises(DidNotStart, match="could not bind"):
            server.start()
    server.start()
    assert answers_sql(server.url())


async def first_body(server: RabbitServer, name: str) -> bytes | None:
    """The next message, left in the queue.

    After a kill a quorum queue has no leader for a moment; RabbitMQ 3.10 may never answer what it is asked then.
    """
    connection = await aio_pika.connect(server.url())
    async with connection:
        queue = await (await connection.channel()).get_queue(name)
        try:
            message = await queue.get(fail=False, timeout=2)
        except TimeoutError:
            return None
        return message.body if message else None


async def execute(url: str, statement: str) -> object:
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        result = await connection.exec_driver_sql(statement)
        value = result.scalar_one() if result.returns_rows else None
    await engine.dispose()
    return value
