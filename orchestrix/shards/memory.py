"""Service memory: the services as this node has last read them, from which routine heartbeats are answered."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrix.persistence.engine import Connection
from orchestrix.persistence.shards import service_store, services
from orchestrix.persistence.shards.service_store import StoredService


class ServiceMemory:
    """May be old: what it says of a member counts only where a sign of life was stored under the version it knows."""

    def __init__(self) -> None:
        self._services: dict[str, StoredService] = {}

    def get(self, service: str) -> StoredService | None:
        """The service as it was read last."""
        return self._services.get(service)

    def __iter__(self) -> Iterator[tuple[str, StoredService]]:
        return iter(sorted(self._services.items()))

    async def refresh(self, connection: Connection) -> None:
        """Reads what has changed. Who leads a pending generation changes without its service's version."""
        found = await services.versions(connection)
        self._services = {name: known for name, known in self._services.items() if name in found}
        for name, version in sorted(found.items()):
            known = self._services.get(name)
            if known is None or known.version != version or known.state.pending is not None:
                await self.read(connection, name)

    async def read(self, connection: Connection, service: str) -> StoredService | None:
        """The service as it is stored now."""
        found = await service_store.read(connection, service)
        if found is None:
            self._services.pop(service, None)
        else:
            self._services[service] = found
        return found
