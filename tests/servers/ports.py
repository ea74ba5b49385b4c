"""Which port of 127.0.0.1 is free?"""

from __future__ import annotations

import random
import socket

# Below the range from which Linux takes ports for outgoing connections: a server that is stopped and started again
# on the same port must not find a stranger's connection there.
_LOWEST, _HIGHEST = 20_000, 32_000
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and that this process has not handed out before."""
    while True:
        port = random.randrange(_LOWEST, _HIGHEST)
        if port not in _given and _can_bind(port):
            _given.add(port)
            return port


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
