"""Service memory: the services as this node has last read them, from which routine heartbeats are answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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
        known = self._services
        await self.read(
            connection,
            [
                name
                for name, version in found.items()
                if name not in known or known[name].version != version or known[name].state.pending is not None
            ],
        )

    async def read(self, connection: Connection, names: Collection[str]) -> None:
        """These services as they are stored now."""
        found = await service_store.read_all(connection, names)
        self._services = {name: one for name, one in self._services.items() if name not in names} | found
