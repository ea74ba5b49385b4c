"""Address check: whether an executor's address may be registered and called, by the allow list and by what it is."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Final

from orchestrix import clock
from orchestrix.domain.registry.addresses import AllowList, ExecutorAddress, IpAddress, judge
from orchestrix.errors import Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry.host_lookups import HostLookups, UnknownHost, UnresolvedHost
from orchestrix.registry.node_listeners import NODE_SEEN_S

RESOLVE_TIMEOUT_S: Final = 3.0
"""Seconds in which a host name must be resolved."""
ALL_TIMEOUT_S: Final = 10.0
"""Seconds in which all addresses of a list must be judged."""
_AT_ONCE: Final = 10
"""How many of them are judged at once: few more than there are threads for the name service."""
RENEW_TIMEOUT_S: Final = 1.0
"""The same for an address that was admitted before: its executor waits 3 s for the answer to its heartbeat."""
ADMISSION_FRESH_S: Final = 45.0
"""Seconds for which an admitted address is not judged again: one and a half heartbeats, so at every other one."""
ADMISSION_KEPT_DEADS: Final = 2
"""For how many times the dead time an address stays admitted while its name cannot be resolved."""
MOST_ADMISSIONS: Final = 10_000
NODES_FRESH_S: Final = 5.0
"""Seconds for which it is not read again where nodes listen."""


class AddressNotAllowed(Invalid):
    """The cluster may not call this address; the message names the setting."""


@dataclass(frozen=True, slots=True)
class _Admission:
    fresh_until: float
    kept_until: float


class AddressCheck:
    """Judges addresses: of those that register, and again of each that is called.

    An executor whose heartbeat is silent for `dead_s` seconds is dead. One that was admitted stays so through an outage
    of the name service, or all that have names would be removed.
    """

    def __init__(
        self, database: Database, allow: AllowList, own: Callable[[], Collection[Listener]], dead_s: float
    ) -> None:
        self._database = database
        self._allow = allow
        self._own = own
        self._kept_s = ADMISSION_KEPT_DEADS * dead_s
        self._lookups = HostLookups()
        self._admissions: OrderedDict[str, _Admission] = OrderedDict()
        self._nodes: set[Listener] = set()
        self._nodes_until = 0.0
        self._reading = asyncio.Lock()

    async def admit(self, address: ExecutorAddress) -> None:
        """Returns if the address may be called, or might when its name could last be resolved. Raises
        `AddressNotAllowed`, and `Unavailable` if its name cannot be resolved now or the database is away.
        """
        text, now = str(address), clock.monotonic()
        before = self._admissions.get(text)
        if before is not None and now < before.fresh_until:
            return
        known = before is not None and now < before.kept_until
        fresh_until = now + ADMISSION_FRESH_S
        try:
            await self._judge(address, RENEW_TIMEOUT_S if known else RESOLVE_TIMEOUT_S)
        except UnresolvedHost:
            if not known:
                raise
            fresh_until = now  # the next heartbeat asks again
        except AddressNotAllowed as refused:
            if known and isinstance(refused.__cause__, UnknownHost):
                return  # it may pass, but not last: nothing is prolonged
            self._admissions.pop(text, None)
            raise
        self._admissions[text] = _Admission(fresh_until, now + self._kept_s)
        self._admissions.move_to_end(text)
        if len(self._admissions) > MOST_ADMISSIONS:
            self._admissions.popitem(last=False)

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
        return await self._judge(address, RESOLVE_TIMEOUT_S)

    async def _judge(self, address: ExecutorAddress, timeout_s: float) -> Collection[IpAddress]:
        try:
            ips = await self._lookups.ips(address.host, timeout_s)
        except UnknownHost as unknown:
            raise AddressNotAllowed(str(unknown)) from unknown
        await self._read_nodes()
        listening = [(ip_address(ip), port) for ip, port in {*self._nodes, *self._own()}]
        if (refusal := judge(address, ips, self._allow, listening)) is not None:
            raise AddressNotAllowed(refusal)
        return ips

    async def _read_nodes(self) -> None:
        if clock.monotonic() < self._nodes_until:
            return
        async with self._reading:
            if clock.monotonic() < self._nodes_until:
                return  # read for another call meanwhile
            async with self._database.read() as connection:
                since = connection.now() - timedelta(seconds=NODE_SEEN_S)
                self._nodes = await listeners.living(connection, since)
            self._nodes_until = clock.monotonic() + NODES_FRESH_S
