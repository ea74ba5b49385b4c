"""Node listeners: notes for all nodes where this one listens, for no executor may have such an address."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener

REPEAT_S: Final = 30.0
"""Seconds between two notes of where a node listens."""
SEEN_S: Final = 3 * REPEAT_S
"""Seconds after its last note for which a node counts as listening."""
_LOCAL_IPV4: Final = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


class NodeListeners:
    """Keeps the addresses of this node in the database: those of its settings, and those at which it was called.

    A node behind an ASGI server does not know where that listens before the first request.
    """

    def __init__(self, database: Database, node: str, host: str, port: int) -> None:
        self._database = database
        self._node = node
        self._known: set[Listener] = {(ip, port) for ip in _interfaces(host)} if port else set()
        self._learned = WakeSignal()
        self._loop = Loop("node listeners", self._round)

    async def start(self) -> None:
        """Begins to note where the node listens."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; the node listens no more."""
        await self._loop.stop()
        with suppress(Exception):  # it is forgotten by itself after a while
            async with asyncio.timeout(1.0), self._database.begin() as tx:
                await listeners.forget(tx, self._node)

    def own(self) -> Collection[Listener]:
        """Where this node listens, as far as it knows."""
        return self._known

    def called_at(self, host: str, port: int) -> None:
        """A request came in at this address."""
        try:
            listener = str(ip_address(host.partition("%")[0])), port
        except ValueError:
            return  # a socket in the file system
        if listener not in self._known:
            self._known.add(listener)
            self._learned.set()

    async def _round(self) -> None:
        known = set(self._known)
        async with self._database.begin() as tx:
            await listeners.record(tx, self._node, known, tx.now())
        await self._learned.wait(REPEAT_S)


def _interfaces(host: str) -> Iterator[str]:
    """The IP addresses by which a server that listens on `host` is reached."""
    with suppress(OSError, UnicodeError):
        for one in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            ip = ip_address(str(one[4][0]).partition("%")[0])
            if ip.is_unspecified:
                yield from _local()
            yield str(ip)


def _local() -> Iterator[str]:
    """The addresses of this machine, as far as they can be found without sending anything."""
    yield from ("127.0.0.1", "::1")
    with suppress(OSError):  # Linux alone has these files
        yield from _LOCAL_IPV4.findall(Path("/proc/net/fib_trie").read_text())
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            yield str(ip_address(bytes.fromhex(line.split()[0])))
    with suppress(OSError, UnicodeError):
        for one in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(ip_address(str(one[4][0]).partition("%")[0]))
