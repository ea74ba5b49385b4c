"""Address check: whether an executor's address may be registered and called, by the allow list and by what it is."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Final

from orchestrix import clock
from orchestrix.domain.registry.addresses import AllowList, ExecutorAddress, IpAddress, judge
from orchestrix.errors import Invalid, Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry.node_listeners import SEEN_S

RESOLVE_TIMEOUT_S: Final = 3.0
"""Seconds in which a host name must be resolved."""
ALL_TIMEOUT_S: Final = 10.0
"""Seconds in which all addresses of a list must be judged."""
_AT_ONCE: Final = 10
"""How many of them are judged at once: few more than there are threads for the name service on a small machine."""
KEPT_S: Final = 30.0
"""Seconds for which an address that is allowed is not judged again when it registers."""
MOST_KEPT: Final = 10_000
_UNKNOWN: Final = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)
"""What the name service answers of a host that has no address; its other errors may pass."""
LISTENERS_KEPT_S: Final = 5.0
"""Seconds for which it is not read again where nodes listen."""


class AddressNotAllowed(Invalid):
    """The cluster may not call this address; the message names the setting."""


class UnresolvedHost(Unavailable):
    """The name service does not answer for a host; it may later."""


class AddressCheck:
    """Judges addresses: of those that register, and again of each that is called."""

    def __init__(self, database: Database, allow: AllowList, own: Callable[[], Collection[Listener]]) -> None:
        self._database = database
        self._allow = allow
        self._own = own
        self._allowed: OrderedDict[str, float] = OrderedDict()
        self._nodes: set[Listener] = set()
        self._nodes_until = 0.0

    async def admit(self, address: ExecutorAddress) -> None:
        """Returns if the address may be called. Raises `AddressNotAllowed`, and `Unavailable` if its name cannot be
        resolved now or the database is away.
        """
        text, now = str(address), clock.monotonic()
        if self._allowed.get(text, 0.0) > now:
            return
        await self.judged(address)
        self._allowed[text] = now + KEPT_S
        self._allowed.move_to_end(text)
        if len(self._allowed) > MOST_KEPT:
            self._allowed.popitem(last=False)

    async def refused(self, addresses: Sequence[ExecutorAddress]) -> tuple[int, AddressNotAllowed] | None:
        """The place of the first address that may not be called, and why; None if all may be.

        Raises `Unavailable` if none is refused and one cannot be resolved now, if it takes longer than
        `ALL_TIMEOUT_S`, or if the database is away.
        """
        gate = asyncio.Semaphore(_AT_ONCE)

        async def admit(address: ExecutorAddress) -> None:
            async with gate:
                await self.admit(address)

        try:
            async with asyncio.timeout(ALL_TIMEOUT_S):
                found = await asyncio.gather(*map(admit, addresses), return_exceptions=True)
        except TimeoutError:
            raise UnresolvedHost(f"the addresses could not be resolved within {ALL_TIMEOUT_S:g} s") from None
        for place, error in enumerate(found):
            if isinstance(error, AddressNotAllowed):
                return place, error
        for error in filter(None, found):
            raise error
        return None

    async def judged(self, address: ExecutorAddress) -> Collection[IpAddress]:
        """The IP addresses by one of which it may be called. Raises as `admit`."""
        ips = await _resolved(address.host)
        await self._read_nodes()
        listening = [(ip_address(ip), port) for ip, port in {*self._nodes, *self._own()}]
        if (refusal := judge(address, ips, self._allow, listening)) is not None:
            raise AddressNotAllowed(refusal)
        return ips

    async def _read_nodes(self) -> None:
        if clock.monotonic() < self._nodes_until:
            return
        async with self._database.read() as connection:
            since = connection.now() - timedelta(seconds=SEEN_S)
            self._nodes = await listeners.living(connection, since)
        self._nodes_until = clock.monotonic() + LISTENERS_KEPT_S


async def _resolved(host: str) -> Collection[IpAddress]:
    """The IP addresses of a host; of a numeric one without the name service."""
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise UnresolvedHost(f"{host} could not be resolved within {RESOLVE_TIMEOUT_S:g} s") from None
    except UnicodeError:
        raise AddressNotAllowed(f"{host} is no host name") from None
    except OSError as error:
        if isinstance(error, socket.gaierror) and error.errno in _UNKNOWN:
            raise AddressNotAllowed(
                f"{host} has no address in the name service: register a name that it knows"
            ) from None
        raise UnresolvedHost(f"{host} cannot be resolved now") from None
    return sorted({ip_address(str(one[4][0]).partition("%")[0]) for one in found}, key=lambda ip: (ip.version, int(ip)))
