"""On which port can `dev` listen?"""

from __future__ import annotations

import socket
from itertools import chain

from app.errors import ConfigError

TRIES = 100


def free_port(host: str, wanted: int, *more: int) -> int:
    """The first free one of the wanted ports, in this order, else the next one above the last of them.

    Somebody else may take it before it is used. Raises `ConfigError` for a host that this machine does not have.
    """
    last = more[-1] if more else wanted
    for port in chain((wanted, *more), range(last + 1, min(last + TRIES, 65536))):
        if is_free(host, port):
            return port
    return 0


def is_free(host: str, port: int) -> bool:
    """Whether one can listen there right now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is no address of this machine: write 127.0.0.1 or 0.0.0.0") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError:
            return False
    return True
