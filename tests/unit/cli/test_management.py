"""Does the broker's management plugin tell what it has, and nobody else hear its password?"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from orchestrix.cli.doctor import rabbitmq_management
from orchestrix.cli.doctor.rabbitmq_management import DescriptorUsage, descriptors

LOGIN = f"Basic {base64.b64encode(b'ada:s3cret').decode()}"
NODES = [
    {"name": "rabbit@a", "running": True, "fd_total": 65536, "fd_used": 900},
    {"name": "rabbit@b", "running": True, "fd_total": 1024, "fd_used": 100},
    {"name": "rabbit@c", "running": False, "fd_total": 10, "fd_used": 9},
    {"name": "rabbit@d", "running": True},
]


class Plugin:
    """An HTTP server that answers as one is told; `asked` are the paths and what was shown there."""

    def __init__(self) -> None:
        self.realm = 'Basic realm="RabbitMQ Management"'
        self.answers: dict[str, Any] = {
            "/api/overview": {"listeners": [{"protocol": "amqp", "port": 5672}]},
            "/api/nodes": NODES,
        }
        self.asked: list[tuple[str, str | None]] = []


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """One that knows a broker at port 5672."""
    plugin = Plugin()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown = self.headers.get("Authorization")
            plugin.asked.append((self.path, shown))
            self.send_response(401 if plugin.realm and shown != LOGIN else 200)
            if plugin.realm:
                self.send_header("WWW-Authenticate", plugin.realm)
            self.end_headers()
            self.wfile.write(json.dumps(plugin.answers.get(self.path)).encode())

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(rabbitmq_management, "_base", lambda scheme, host: f"http://{host}:{server.server_port}")
    yield plugin
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("hosts", ["127.0.0.1", "127.0.0.1:5672", "127.0.0.1:5672,other:5673"])
def test_the_node_with_the_fewest_free_ones_counts(plugin: Plugin, hosts: str) -> None:
    assert descriptors(f"amqp://ada:s3cret@{hosts}/") == DescriptorUsage("rabbit@b", 1024, 100)


def test_a_wrong_password_and_an_old_plugin_tell_nothing(plugin: Plugin) -> None:
    assert descriptors("amqp://ada:wrong@127.0.0.1/") is None
    plugin.answers["/api/nodes"] = {"error": "not_authorised"}
    assert descriptors("amqp://ada:s3cret@127.0.0.1/") is None


def test_the_plugin_of_another_broker_tells_nothing(plugin: Plugin) -> None:
    assert descriptors("amqp://ada:s3cret@127.0.0.1:5673/") is None


@pytest.mark.parametrize("realm", ["", 'Basic realm="Router"'])
def test_nobody_but_rabbitmq_is_shown_the_password(plugin: Plugin, realm: str) -> None:
    plugin.realm = realm
    assert descriptors("amqp://ada:s3cret@127.0.0.1/") is None
    assert {shown for _, shown in plugin.asked} == {None}


def test_where_nobody_answers_nothing_is_told(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq_management, "_base", lambda scheme, host: "http://127.0.0.1:9")
    assert descriptors("amqp://ada:s3cret@127.0.0.1/") is None
    assert plugin.asked == []


@pytest.mark.parametrize(
    ("scheme", "host", "base"),
    [("amqp", "mq", "http://mq:15672"), ("amqps", "mq", "https://mq:15671"), ("amqp", "::1", "http://[::1]:15672")],
)
def test_the_usual_port_is_asked(scheme: str, host: str, base: str) -> None:
    assert rabbitmq_management._base(scheme, host) == base
