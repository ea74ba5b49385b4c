"""Does a given broker get virtual hosts by its management API, and is its absence said?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.servers.management import ManagedBroker, ManagementMissing


class Api(HTTPServer):
    """Notes what it was asked and answers 201, or what it was told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.answer = 201

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Api

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append(f"{self.command} {self.path} {self.headers['Authorization']} {body}")
        self.send_response(self.server.answer)
        self.end_headers()

    do_DELETE = do_PUT

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_virtual_hosts_come_with_permissions_and_go(api: Api) -> None:
    broker = ManagedBroker("amqp://us%40er:pass@rabbit:5671/main", api.url)
    broker.change_vhosts(["new"], ["old"])
    login = "Basic dXNAZXI6cGFzcw=="
    assert api.asked[0].startswith(f"DELETE /api/vhosts/old {login}")
    assert api.asked[1].startswith(f"PUT /api/vhosts/new {login}")
    assert api.asked[2].startswith("PUT /api/permissions/new/us%40er")
    assert '"configure": ".*"' in api.asked[2]
    assert broker.url("new") == "amqp://us%40er:pass@rabbit:5671/new"


def test_a_virtual_host_that_is_gone_already_is_no_error(api: Api) -> None:
    api.answer = 404
    ManagedBroker("amqp://rabbit", api.url).change_vhosts([], ["old"])
    assert [line.split()[0] for line in api.asked] == ["DELETE"]


def test_a_refusal_is_said(api: Api) -> None:
    api.answer = 401
    with pytest.raises(ManagementMissing, match="401"):
        ManagedBroker("amqp://rabbit", api.url).change_vhosts(["new"], [])


def test_a_missing_api_is_said_with_the_remedy(api: Api) -> None:
    with pytest.raises(ManagementMissing, match="enable the plugin rabbitmq_management"):
        ManagedBroker("amqp://rabbit", "http://127.0.0.1:1").change_vhosts(["new"], [])
