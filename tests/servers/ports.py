"""Which port of 127.0.0.1 is free?"""

from __future__ import annotations

import os
import random
import socket

# Below the range from which Linux takes ports for outgoing connections: a server that is stopped and started again
# on the same port must not find a stranger's connection there.
_LOWEST, _HIGHEST = 20_000, 32_000
_SHARES = 4
_given: set[int] = set()


def share(worker: str) -> range:
    """The ports of one of the processes that run tests side by side (`gw0`, …), or all for the only one (empty).

    A port is nobody's while the server that has it is being restarted: no neighbour may take it then.
    """
    ports = range(_LOWEST, _HIGHEST)
    return ports[int(worker.removeprefix("gw")) % _SHARES :: _SHARES] if worker else ports


_ours = share(os.environ.get("PYTEST_XDIST_WORKER", ""))


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and that this process has not handed out before."""
    while True:
        port = random.choice(_ours)
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
