"""Broker addresses: reads them from a broker URL, and says without secrets why one cannot be reached."""

from __future__ import annotations

import socket
import ssl

from yarl import URL

from orchestrix import clock
from orchestrix.errors import ConfigError

_SCHEMES = ("amqp", "amqps")
_NUMBERS = ("heartbeat", "timeout")
_PARAMETERS = ("auth", "cadata", "cafile", "capath", "certfile", "keyfile", "name", "no_verify_ssl", *_NUMBERS)


def addresses(url: str) -> list[URL]:
    """The brokers of `amqp://user:password@host1:5672,host2/vhost`, in random order.

    Raises ConfigError; its text never repeats the URL, which holds a password.
    """
    scheme, _, rest = url.strip().partition("://")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    if scheme not in _SCHEMES or not hosts:
        raise ConfigError("the broker URL must look like amqp://user:password@host:5672/vhost")
    try:
        found = [URL(f"{scheme}://{login}{at}{host.strip()}{slash}{path}") for host in hosts.split(",")]
        sound = all(one.host and (one.port or one.port is None) for one in found)
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("the host or port of the broker URL cannot be read; write amqp://user:password@host:5672/")
    for name, value in found[0].query.items():
        _check(name, value)
    return sorted(found, key=lambda _: clock.uniform(0, 1))


def _check(name: str, value: str) -> None:
    """Raises `ConfigError` for a parameter of the URL without effect: it may have been meant to protect something."""
    if name not in _PARAMETERS:
        raise ConfigError(
            f"the broker URL has the unknown parameter {name[:40]!r}; known are {', '.join(_PARAMETERS)}"
            " (for TLS write amqps://)"
        )
    if name in _NUMBERS and not (value.isascii() and value.isdigit()):
        raise ConfigError(f"the broker URL has {name}={value[:40]}: write a number of seconds")


def host_and_port(url: URL) -> str:
    """Host and port, for logs and errors."""
    return f"{url.host}:{url.port or (5671 if url.scheme == 'amqps' else 5672)}"


def connect_problem(url: URL, error: BaseException, refusal: tuple[int, str] | None, last_error: str | None) -> str:
    """Why connecting to `url` failed.

    `refusal` is code and text with which the broker closed it, if it did; `last_error` how the socket ended.
    """
    where = f"the broker at {host_and_port(url)}"
    if refusal is not None:
        return _refused(url, where, *refusal)
    if isinstance(error, TimeoutError):
        return f"{where} did not answer in time"
    if last_error is not None:
        return f"{where} rejected the connection: {last_error}"
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ConnectionRefusedError):
        return f"cannot connect to {host_and_port(url)}: connection refused"
    if isinstance(cause, socket.gaierror):
        return f"the host name {url.host} cannot be resolved"
    if isinstance(cause, ssl.SSLError):
        return f"TLS with {host_and_port(url)} failed ({getattr(cause, 'reason', None) or type(cause).__name__})"
    return f"{where} cannot be reached ({type(cause).__name__})"


def _refused(url: URL, where: str, code: int, text: str) -> str:
    if code == 403:
        return f"{where} rejected the login of {url.user or 'guest'!r} ({code} {text})"
    if code == 530:
        return f"{where} has no virtual host {url.path[1:] or '/'!r} for {url.user or 'guest'!r} ({code} {text})"
    return f"{where} refused the connection ({code} {text})"
