"""How does a test get a virtual host of its own on a broker that somebody else runs?"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

from tests.servers.rabbit import amqp_url

MANAGEMENT_VARIABLE = "ORCHESTRIX_TEST_RABBITMQ_MANAGEMENT_URL"


class ManagementMissing(Exception):
    """The broker has no management API where we looked, or it refuses us: no virtual host per test without it."""


class ManagedBroker:
    """A broker by its AMQP address. Its user must be an administrator, and the management plugin must answer.

    The API is expected on port 15672 of the same host, or where `ORCHESTRIX_TEST_RABBITMQ_MANAGEMENT_URL` says.
    """

    def __init__(self, url: str, management: str | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 5672
        self._user, self._password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        api = management or os.environ.get(MANAGEMENT_VARIABLE) or f"http://{self._host}:15672"
        self._api = api.rstrip("/")

    def url(self, vhost: str = "/") -> str:
        """The AMQP address of a virtual host."""
        login = f"{quote(self._user, safe='')}:{quote(self._password, safe='')}"
        return amqp_url(self._port, vhost, host=self._host, login=login)

    def change_vhosts(self, add: Sequence[str], drop: Sequence[str]) -> None:
        """Adds and drops virtual hosts. Raises ManagementMissing."""
        for name in drop:
            self._call("DELETE", f"vhosts/{name}")
        for name in add:
            self._call("PUT", f"vhosts/{name}")
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            self._call("PUT", f"permissions/{name}/{quote(self._user, safe='')}", everything)

    def _call(self, method: str, path: str, body: object = None) -> None:
        login = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        request = urllib.request.Request(
            f"{self._api}/api/{path}",
            method=method,
            data=json.dumps(body or {}).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            error.close()
            if not (method == "DELETE" and error.code == 404):
                raise ManagementMissing(f"{method} {path} at {self._api}: {error}") from error
        except OSError as error:
            raise ManagementMissing(
                f"no management API at {self._api} ({error}): enable the plugin rabbitmq_management "
                f"or set {MANAGEMENT_VARIABLE}"
            ) from error
