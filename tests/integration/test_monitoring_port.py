"""What does the port of metrics and health answer, whatever the event loop and the clients do?"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from http.client import HTTPConnection
from textwrap import dedent
from typing import Any

import pytest

from orchestrix.bootstrap.monitoring import port as pages
from orchestrix.bootstrap.monitoring import server as bounds
from orchestrix.bootstrap.monitoring.port import MonitoringPort, Render, node_port
from orchestrix.config.settings import ApiSettings, Settings
from orchestrix.config.telemetry import MetricsSettings
from orchestrix.errors import ConfigError
from orchestrix.lifecycle import Health
from tests.support import eventually, eventually_sync, free_port

TOKENS = {"ada": "a-secret-of-sixteen"}


def metrics(accept: str) -> tuple[str, bytes]:
    """What tells which form was asked for."""
    return "text/plain", f"asked for {accept}\n".encode()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def checks(body: bytes) -> dict[str, Any]:
    """Whether each component is healthy."""
    return {one["component"]: one["isHealthy"] for one in json.loads(body)["checks"]}


@asynccontextmanager
async def listening(health: Health, render: Render = metrics) -> AsyncIterator[int]:
    """The port."""
    number = free_port()
    settings = Settings(metrics=MetricsSettings(port=number), api=ApiSettings(tokens=TOKENS))
    one = MonitoringPort(settings, health, render)
    await one.start()
    try:
        yield number
    finally:
        await one.stop()


def healthy() -> Health:
    """A process that has started."""
    health = Health()
    health.watch("Broker", lambda: None)
    health.started = True
    return health


async def beside(work: Callable[[], Any]) -> Any:
    """In a thread, while the loop runs."""
    return await asyncio.to_thread(work)


async def test_components_and_yes_or_no_alone_but_for_whoever_has_a_token() -> None:
    health = Health()
    state: list[str | None] = ["amqp://host is away"]
    health.watch("Broker", lambda: state[0])
    async with listening(health) as port:
        status, body = await beside(lambda: ask(port, "/health/ready"))
        assert (status, checks(body)) == (503, {"Start": False, "Broker": False})
        assert b"amqp" not in body
        for bad in ("Bearer wrong", "Basic a-secret-of-sixteen", "Bearer", "Bearer ä"):
            assert b"amqp" not in (await beside(partial(ask, port, "/health/ready", Authorization=bad)))[1]
        known = await beside(lambda: ask(port, "/health/ready", Authorization="Bearer a-secret-of-sixteen"))
        assert b"amqp://host is away" in known[1]
        assert (await beside(lambda: ask(port, "/health/live")))[0] == 200
        health.started, state[0] = True, None
        await eventually(lambda: beside(lambda: ask(port, "/health/ready")[0] == 200), deadline=5)
        health.stopping = True
        await eventually(lambda: beside(lambda: ask(port, "/health/ready")[0] == 503), deadline=5)
        assert (await beside(lambda: ask(port, "/health/live")))[0] == 200


async def test_guesses_of_tokens_are_few() -> None:
    health = healthy()
    health.watch("Broker", lambda: "a reason")
    async with listening(health) as port:
        right = {"Authorization": "Bearer a-secret-of-sixteen"}
        for _ in range(pages.GUESSES):
            assert b"a reason" not in (await beside(lambda: ask(port, "/health/ready", Authorization="Bearer x")))[1]
        assert b"a reason" not in (await beside(lambda: ask(port, "/health/ready", **right)))[1]


async def test_pages_and_methods() -> None:
    async with listening(healthy()) as port:
        assert await beside(lambda: ask(port, "/metrics", Accept="a/b")) == (200, b"asked for a/b\n")
        assert await beside(lambda: ask(port, "/metrics", "HEAD")) == (200, b"")
        assert (await beside(lambda: ask(port, "/metrics", "POST")))[0] == 405
        status, body = await beside(lambda: ask(port, "/apps"))
        assert (status, body) == (404, b"here are /metrics, /health/live and /health/ready\n")


async def test_what_fails_is_answered_without_a_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    def broken(accept: str) -> tuple[str, bytes]:
        raise RuntimeError("secret of the process")

    health = healthy()
    health.watch("Broken", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    async with listening(health, broken) as port:
        status, body = await beside(lambda: ask(port, "/metrics"))
        assert (status, b"secret" in body, b"Traceback" in body) == (500, False, False)
        assert checks((await beside(lambda: ask(port, "/health/ready")))[1]) == {"Health": False}
        assert (await beside(lambda: ask(port, "/health/live")))[0] == 200
    assert "secret of the process" in caplog.text


async def test_it_answers_while_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "NOT_READY_AFTER_S", 0.7)
    monkeypatch.setattr(pages, "NOT_LIVE_AFTER_S", 3.0)
    monkeypatch.setattr(pages, "SECOND_LOOK_S", 0.05)
    seen: list[Any] = []
    async with listening(healthy()) as port:
        await eventually(lambda: beside(lambda: ask(port, "/health/ready")[0] == 200), deadline=5)
        over = threading.Event()

        def scrape() -> None:
            try:
                seen.append(ask(port, "/metrics")[0])
                eventually_sync(lambda: ask(port, "/health/ready")[0] == 503, deadline=20)
                seen.append(checks(ask(port, "/health/ready")[1]))
                seen.append(ask(port, "/health/live")[0])
                eventually_sync(lambda: ask(port, "/health/live")[0] == 503, deadline=20)
                seen.append(ask(port, "/metrics")[0])
            finally:
                over.set()

        scraping = threading.Thread(target=scrape)
        scraping.start()
        assert over.wait(60)  # it blocks the loop until all is asked
        scraping.join()
        assert seen == [200, {"Event loop": False, "Broker": True}, 200, 200]
        await eventually(lambda: beside(lambda: ask(port, "/health/ready")[0] == 200), deadline=5)
        assert (await beside(lambda: ask(port, "/health/live")))[0] == 200


async def test_connections_that_say_nothing_take_nothing_from_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTION_S", 60.0)
    async with listening(healthy()) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * bounds.MAX_CONNECTIONS)]
        try:
            assert (await beside(lambda: ask(port, "/metrics")))[0] == 200
            for one in idle[: bounds.MAX_CONNECTIONS]:
                one.settimeout(10)
                assert await beside(partial(_ended, one))
        finally:
            for one in idle:
                one.close()


async def test_a_slow_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONNECTION_S", 1.0)
    async with listening(healthy()) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            assert await beside(lambda: _ended(slow))
        assert (await beside(lambda: ask(port, "/metrics")))[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [b"rubbish\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 200_000, b"\r\n" * 10],
)
async def test_what_is_no_request_harms_nobody(request_bytes: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with listening(healthy()) as port:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as other:
                await beside(partial(_send_all, other, request_bytes))
        assert (await beside(lambda: ask(port, "/metrics")))[0] == 200
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 1


async def test_upgrades_and_bodies_are_answered_as_requests() -> None:
    async with listening(healthy()) as port:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await beside(lambda: ask(port, "/metrics", **upgrade)))[0] == 200
        with socket.create_connection(("127.0.0.1", port), timeout=10) as other:
            other.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n")
            assert (await beside(lambda: other.recv(100))).startswith(b"HTTP/1.1 405 ")


async def test_a_taken_port_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        one = MonitoringPort(Settings(metrics=MetricsSettings(port=number)), Health(), metrics)
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{number} \(Address already in use\): set ORCHESTRIX_M"):
            await one.start()
        await one.stop()


@pytest.mark.parametrize(("roles", "listens"), [({"orchestrator"}, True), ({"api", "coordinator"}, False)])
async def test_a_node_with_the_api_has_no_other_port(roles: set[str], listens: bool) -> None:
    number = free_port()
    one = node_port(Settings(metrics=MetricsSettings(port=number)), roles, healthy())
    await one.start()
    try:
        with socket.socket() as probe:
            assert (probe.connect_ex(("127.0.0.1", number)) == 0) is listens
    finally:
        await one.stop()


def test_a_forked_child_keeps_neither_the_port_nor_a_connection() -> None:
    script = """
        import asyncio, multiprocessing, socket, time
        from orchestrix.bootstrap.monitoring.port import MonitoringPort
        from orchestrix.config.settings import Settings
        from orchestrix.config.telemetry import MetricsSettings
        from orchestrix.lifecycle import Health, run_to_the_end
        from tests.support import free_port

        def keep(lives):
            lives.set()
            time.sleep(60)

        async def main():
            number = free_port()
            port = MonitoringPort(Settings(metrics=MetricsSettings(port=number)), Health(), lambda a: ("x/y", b"yes"))
            await port.start()
            client = socket.create_connection(("127.0.0.1", number), timeout=20)
            client.sendall(b"GET /metrics HTTP/1.1\\r\\n")
            await asyncio.sleep(0.5)  # the server has it
            lives = multiprocessing.Event()
            child = multiprocessing.Process(target=keep, args=(lives,), daemon=True)
            child.start()
            assert await asyncio.to_thread(lives.wait, 20)
            client.sendall(b"Host: x\\r\\n\\r\\n")
            print((await asyncio.to_thread(client.recv, 1000)).split()[1].decode())
            await asyncio.to_thread(client.recv, 1000)
            print("closed" if await asyncio.to_thread(client.recv, 1000) == b"" else "open")
            await port.stop()
            socket.create_server(("127.0.0.1", number)).close()
            print("free", child.is_alive())
            child.kill()
            child.join(10)

        run_to_the_end(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["200", "closed", "free", "True"]), done.stderr


def _ended(one: socket.socket) -> bool:
    """Whether the other side closes the connection."""
    try:
        while one.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


def _send_all(one: socket.socket, content: bytes) -> None:
    try:
        one.sendall(content)
        one.shutdown(socket.SHUT_WR)
        _ended(one)
    except OSError:
        pass
