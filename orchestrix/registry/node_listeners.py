"""Node listeners: notes for all nodes where this one listens, for no executor may have such an address."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from orchestrix.errors import Invalid, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry.host_lookups import HostLookups

REPEAT_S: Final = 30.0
"""Seconds between two notes of where a node listens."""
NODE_SEEN_S: Final = 3 * REPEAT_S
"""Seconds after its last note for which a node counts as listening."""
LOOKUP_TIMEOUT_S: Final = 1.0
"""Seconds for which a node waits for the addresses of its own name."""
_LOOPBACK: Final = frozenset(["127.0.0.1", "::1"])
_EVERYWHERE: Final = "0.0.0.0"
_LOCAL_IPV4: Final = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")


class NodeListeners:
    """Keeps the addresses of this node in the database: those of its settings, and those at which it was called.

    A node behind an ASGI server does not know where that listens before the first request. One that listens everywhere
    has the addresses of all its interfaces; only where these cannot be found, its port counts as taken on all hosts.
    """

    def __init__(self, database: Database, node: str, host: str, port: int) -> None:
        self._database = database
        self._node = node
        self._host, self._port = host or _EVERYWHERE, port
        self._known: set[Listener] = set()
        self._called: set[Listener] = set()
        self._ports: set[int] = set()
        """Those at which it listens everywhere."""
        self._interfaces = _LOOPBACK | {_EVERYWHERE}
        self._lookups = HostLookups()
        self._learned = WakeSignal()
        self._loop = Loop("node listeners", self._round)
        if port:
            self._note(self._host, port)

    async def start(self) -> None:
        """Finds where the node listens, within some seconds, and begins to note it."""
        await self._find()
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; the node listens no more."""
        await self._loop.stop()
        with suppress(Exception):  # it is forgotten by itself after a while
            async with asyncio.timeout(1.0), self._database.begin() as tx:
                await listeners.forget(tx, self._node)

    def own(self) -> Collection[Listener]:
        """Where this node listens, as far as it knows."""
        return self._known | {(ip, port) for ip in self._interfaces for port in self._ports}

    def bound(self, sockets: Iterable[socket.socket]) -> None:
        """These are what it listens on: their ports may be others than those of its settings."""
        for one in sockets:
            self.called_at(*one.getsockname()[:2])

    def called_at(self, host: str, port: int) -> None:
        """A request came in at this address."""
        if (host, port) in self._called:
            return
        self._called.add((host, port))
        if self._note(host, port):
            self._learned.set()

    def _note(self, host: str, port: int) -> bool:
        """Whether it is new that the node listens there."""
        try:
            ip = ip_address(host.partition("%")[0])
        except ValueError:
            return False  # a name, or a socket in the file system
        before = len(self._known), len(self._ports)
        if ip.is_unspecified:
            self._ports.add(port)
        else:
            self._known.add((str(ip), port))
        return before != (len(self._known), len(self._ports))

    async def _round(self) -> None:
        await self._find()  # before a port that is new is noted as one of all hosts
        async with self._database.begin() as tx:
            await listeners.record(tx, self._node, self.own(), tx.now())
        await self._learned.wait(REPEAT_S)

    async def _find(self) -> None:
        """Reads the interfaces, which may come and go, and looks up the host of the settings."""
        if self._port:
            for ip in await self._ips(self._host):
                self._note(ip, self._port)
        if self._ports:
            found = {*await asyncio.to_thread(_interfaces), *await self._ips(socket.gethostname())}
            if not all(ip_address(ip).is_loopback for ip in found):
                self._interfaces = _LOOPBACK | found

    async def _ips(self, host: str) -> list[str]:
        with suppress(Invalid, Unavailable):
            return [str(ip) for ip in await self._lookups.ips(host, LOOKUP_TIMEOUT_S)]
        return []


def _interfaces() -> list[str]:
    """The addresses of this machine's interfaces; empty where the system has no such files as Linux."""
    found = []
    with suppress(OSError):
        found += _LOCAL_IPV4.findall(Path("/proc/net/fib_trie").read_text())
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.append(str(ip_address(bytes.fromhex(line.split()[0]))))
    return found
