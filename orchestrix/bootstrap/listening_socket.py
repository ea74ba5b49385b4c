"""Listening socket: finds a port for this process and listens on it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from orchestrix.errors import ConfigError

FALLBACK_PORTS = 99
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""Seconds of silence before the first probe and between two, probes without an answer, and milliseconds for what was
sent and not acknowledged."""


def nearby(*wanted: int) -> Iterator[int]:
    """The wanted ports, then those above the last of them, then 0: whichever the system chooses."""
    last = wanted[-1]
    return chain(wanted, range(last + 1, min(last + FALLBACK_PORTS, 65535) + 1), (0,))


def listening(host: str, ports: Iterable[int], advice: str = "choose another --port or --host") -> socket.socket:
    """A socket that listens on the first of `ports` that it can have.

    No other process can take the port between check and use, for there is no check. Raises `ConfigError` that says why
    it cannot listen there, with the `advice` what to do, or that this machine has no such host.
    """
    refused = "no port is named"
    for port in ports:
        family, address = _address(host, port)
        try:
            found = socket.create_server(address, family=family, backlog=2048)
        except OSError as error:
            refused = f"{host}:{port} ({os.strerror(error.errno) if error.errno else error.strerror})"  # said once
            if error.errno == errno.EADDRNOTAVAIL:
                break
            continue
        found.setblocking(False)
        # Each connection inherits it. asyncio sets it only where the socket names its protocol, which this one does
        # not; without it an answer's body waits for the acknowledgement of its head, which many delay by 40 ms.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ask_whether_alive(found)
        return found
    raise ConfigError(f"cannot listen on {refused}: {advice}")


def _ask_whether_alive(listener: socket.socket) -> None:
    """Each connection inherits this too: it ends for a client that is gone without closing it (a power loss)."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        if (number := getattr(socket, option, None)) is not None:  # not every system has each of them
            listener.setsockopt(socket.IPPROTO_TCP, number, value)


def _address(host: str, port: int) -> tuple[int, Any]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is not an address of this machine: write 127.0.0.1 or 0.0.0.0") from error
    return family, address
