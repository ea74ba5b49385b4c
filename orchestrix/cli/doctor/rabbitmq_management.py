"""RabbitMQ management: asks the plugin how many file descriptors the broker has left."""

from __future__ import annotations

import base64
import functools
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

RESPONSE_TIMEOUT_S = 2.0
"""Seconds for one answer."""
_LONGEST = 4 * 1024 * 1024
_REALM = "RabbitMQ"


@dataclass(frozen=True, slots=True)
class DescriptorUsage:
    """The file descriptors of one node of the broker."""

    node: str
    total: int
    used: int


def descriptors(broker_url: str) -> DescriptorUsage | None:
    """Those of the node with the fewest free ones; None where the plugin does not answer.

    Asks at the usual port of the broker's first host, and shows it the password only if RabbitMQ asks for that. What
    answers must belong to the broker that the URL names.
    """
    try:
        parts = _first_of(broker_url)
        base = _base(parts.scheme, parts.hostname or "127.0.0.1")
        if not _is_rabbitmq(base):
            return None
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        overview, nodes = (_get(f"{base}/api/{name}", login) for name in ("overview", "nodes"))
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        return _scarcest(nodes) if _listens(overview, port) else None
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return None


def _first_of(broker_url: str) -> SplitResult:
    """The URL with the first of its hosts alone."""
    parts = urlsplit(broker_url)
    login, at, hosts = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}{hosts.split(',')[0]}")


def _base(scheme: str, host: str) -> str:
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:15671" if scheme == "amqps" else f"http://{host}:15672"


def _is_rabbitmq(base: str) -> bool:
    try:
        _get(f"{base}/api/overview", None)
    except urllib.error.HTTPError as refused:
        return refused.code == 401 and _REALM in refused.headers.get("www-authenticate", "")
    return False


def _get(url: str, login: str | None) -> Any:
    request = urllib.request.Request(url)
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        with _opener().open(request, timeout=RESPONSE_TIMEOUT_S) as answer:
            return json.loads(answer.read(_LONGEST))
    except urllib.error.HTTPError as refused:
        refused.close()
        raise


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password would be sent along."""

    def redirect_request(self, *_: Any) -> None:
        return None


@functools.cache  # reading the certificates of the machine takes longer than an answer
def _opener() -> urllib.request.OpenerDirector:
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), https, _NoRedirects())


def _listens(overview: Any, port: int) -> bool:
    return any(one["port"] == port for one in overview["listeners"] if one["protocol"].startswith("amqp"))


def _scarcest(nodes: Any) -> DescriptorUsage | None:
    texts = [
        DescriptorUsage(str(one["name"]), one["fd_total"], one.get("fd_used") or 0)
        for one in nodes
        if one.get("running") and isinstance(one.get("fd_total"), int) and one["fd_total"] > 0
    ]
    return min(texts, key=lambda one: one.total - one.used, default=None)
