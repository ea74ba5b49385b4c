"""Who starts the servers that several test processes share, once for all of them?

The process that hands out the tests does, when the first test asks, and ends them with the run.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.servers import lookup
from tests.servers.base import Server
from tests.servers.run import Run

_SOCKET: Final = "host"
_PATIENCE_S: Final = 300.0
"""Seconds that a server has to start: longer than it gives itself."""


class ServerHost:
    """Starts each kind of server at most once; asked by `ask`, from any process of this user."""

    def __init__(self) -> None:
        self._run = Run(in_memory=True)
        self.address = self._run.root / _SOCKET
        self._servers: dict[str, Server] = {}
        self._locks = {kind.name: threading.Lock() for kind in lookup.KINDS}
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.address))
        self._listening.listen()
        threading.Thread(target=self._listen, name="server-host", daemon=True).start()

    def close(self) -> None:
        """Ends all of them."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for server in self._servers.values():
            server.discard()
        self._run.close()

    def _listen(self) -> None:
        with suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._answer, args=(self._listening.accept()[0],), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        with asking, asking.makefile("rw") as wire:
            name = wire.readline().strip()
            try:
                answer: dict[str, Any] = {"place": self._place_of(name)}
            except Exception as error:  # the test that asks shows it
                answer = {"error": f"{type(error).__name__}: {error}"}
            with suppress(OSError):  # who asked has ended
                print(json.dumps(answer), file=wire, flush=True)

    def _place_of(self, name: str) -> dict[str, Any]:
        with self._locks[name]:
            if name not in self._servers:
                (kind,) = (one for one in lookup.KINDS if one.name == name)
                server = lookup.private_server(kind, self._run)
                server.durable = False
                try:
                    server.start()
                except BaseException:
                    server.discard()
                    raise
                self._servers[name] = server
            return self._servers[name].place()


def ask(address: Path, kind: lookup.Kind, run: Run) -> Server:
    """The host's server of that kind, to be used by its address. Raises RuntimeError if it did not start."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PATIENCE_S)
        asking.connect(str(address))
        with asking.makefile("rw") as wire:
            print(kind.name, file=wire, flush=True)
            answer = json.loads(wire.readline())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    server = lookup.private_server(kind, run)
    server.move_to(answer["place"])
    return server
