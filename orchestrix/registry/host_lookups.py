"""Host look-ups: the IP addresses of host names, in threads of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

from orchestrix.domain.registry.addresses import IpAddress
from orchestrix.errors import Invalid, Unavailable
from orchestrix.lifecycle import DaemonThreadPool

LOOKUP_THREADS: Final = 4
"""Look-ups at once: a name service that hangs keeps no other work of the process waiting."""
_UNKNOWN: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)
"""What the name service answers of a host that has no address; its other errors may pass."""


class UnknownHost(Invalid):
    """The name service says that there is no such host, or no host can have this name."""


class UnresolvedHost(Unavailable):
    """The name service does not answer for a host; it may later."""


class HostLookups:
    """Looks up hosts; who asks for one that is being looked up gets the same answer."""

    def __init__(self) -> None:
        self._threads = DaemonThreadPool(LOOKUP_THREADS)
        self._running: dict[str, asyncio.Task[Sequence[IpAddress]]] = {}

    async def ips(self, host: str, timeout_s: float) -> Sequence[IpAddress]:
        """The IP addresses of a host; of a numeric one without the name service. Raises `UnknownHost`, and
        `UnresolvedHost` also if there is no answer within `timeout_s` seconds.
        """
        try:
            return [ip_address(host)]
        except ValueError:
            pass
        if (task := self._running.get(host)) is None:
            task = self._running[host] = asyncio.create_task(self._resolve(host), name="host look-up")
            task.add_done_callback(lambda done: self._ended(host, done))
        if not (await asyncio.wait({task}, timeout=timeout_s))[0]:
            raise UnresolvedHost(f"{host} could not be resolved within {timeout_s:g} s")
        return task.result()

    def _ended(self, host: str, task: asyncio.Task[Any]) -> None:
        del self._running[host]
        if not task.cancelled():
            task.exception()  # read, for its callers may all have timed out

    async def _resolve(self, host: str) -> Sequence[IpAddress]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, _addresses, host)
        except UnicodeError:
            raise UnknownHost(f"{host} is no host name") from None
        except OSError as error:
            if isinstance(error, socket.gaierror) and error.errno in _UNKNOWN:
                raise UnknownHost(f"{host} has no address in the name service: register a name that it knows") from None
            raise UnresolvedHost(f"{host} cannot be resolved now") from None
        return sorted({ip_address(ip) for ip in found}, key=lambda ip: (ip.version, int(ip)))


def _addresses(host: str) -> list[str]:
    return [str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
