"""What do tests of executor jobs call executors with? Whole nodes with an API on loopback, and real executors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from orchestrix import Executor, server
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.config.settings import Settings, load
from orchestrix.domain.jobs import JobRow
from orchestrix.node import Node, open_node
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.registry import groups
from tests.conformance.store.test_jobs import inserted, pending
from tests.support import eventually, free_port

GROUP: Final = "shop"
ROLES: Final = frozenset({"api", "orchestrator", "coordinator"})
QUICK: Final = {
    "cluster__heartbeat": 1.0,
    "cluster__dead": 5.0,
    "cluster__orphan_check": 0.5,
    "cluster__reconcile": 0.3,
    "cluster__handoff_ack": 0.4,
    "cluster__handoff_hard": 5.0,
    "registry__allow": "127.0.0.0/8",
}


class ClusterNode:
    """A node of these settings; with the role api it listens at `url`."""

    def __init__(self, settings: Settings, broker_url: str, roles: frozenset[str] = ROLES) -> None:
        self.node: Node = open_node(settings, roles, broker_url)
        self.url = ""
        self._serving: asyncio.Task[None] | None = None
        self._server = server._server(self.node, None) if "api" in roles else None

    async def start(self) -> None:
        """Serves and takes part."""
        if self._server is not None:
            found = listening("127.0.0.1", [0])
            self.url = f"http://127.0.0.1:{found.getsockname()[1]}"
            self.node.registry.listeners.bound([found])
            self._serving = asyncio.create_task(self._server.serve(sockets=[found]))
        await self.node.start()
        await self.node.begin()
        await self.node.settled()

    async def stop(self) -> None:
        """Ends in good order, as the server does."""
        self.node.health.stopping = True
        await self.node.resign()
        await self.node.retire()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        await self.node.stop()


class Cluster:
    """Nodes over one database and one broker."""

    def __init__(self, database: Database, database_url: str, broker_url: str) -> None:
        self.database = database
        self._urls = {"database_url": database_url, "broker_url": broker_url}
        self.nodes: list[ClusterNode] = []

    async def node(self, roles: frozenset[str] = ROLES, **settings: Any) -> ClusterNode:
        """One more."""
        flags = {**QUICK, **self._urls, **settings}
        made = ClusterNode(load({}, **flags), str(self._urls["broker_url"]), roles)
        self.nodes.append(made)
        await made.start()
        return made

    async def close(self) -> None:
        """Ends all."""
        for one in reversed(self.nodes):
            await one.stop()

    async def group(self, name: str = GROUP, addresses: Sequence[str] | None = None) -> None:
        """The app's executors are those that register, or those at these addresses."""
        async with self.database.begin() as tx:
            await groups.set_addresses(tx, name, addresses, tx.now())

    @asynccontextmanager
    async def executor(self, group: str = GROUP, **more: Any) -> AsyncIterator[str]:
        """A real executor that is registered, and its address."""
        address = f"http://127.0.0.1:{free_port()}"
        options = {"listen": address.removeprefix("http://"), "stop_timeout": 20.0, **more}
        urls = [one.url for one in self.nodes if one.url]
        async with Executor(group, address, urls, **options):
            await eventually(lambda: self._is_listed(group, address), deadline=10.0)
            yield address

    async def _is_listed(self, group: str, address: str) -> bool:
        async with self.database.read() as connection:
            found = await groups.get(connection, group)
        return found is not None and address in found.addresses

    async def submit(self, **more: Any) -> JobRow:
        """A job for the group, which is due."""
        wanted = {"queue": None, "executor_group": GROUP, "routing": "FIRST", **more}
        [job] = await inserted(self.database, pending(self.database, **wanted))
        for one in self.nodes:
            one.node.context.signals.node_notified()
        return job

    async def now(self, job: JobRow) -> JobRow:
        """The job as the database has it."""
        async with self.database.read() as connection:
            found = await jobs.get(connection, job.id)
        assert found is not None
        return found

    async def stop_owner(self, job: JobRow) -> ClusterNode:
        """Ends the node that owns the job, which is another one's then."""
        owner = (await self.now(job)).owner
        [found] = [one for one in self.nodes if one.node.current_id == owner]
        self.nodes.remove(found)
        await found.stop()
        return found

    async def reached(self, job: JobRow, state: str, *, deadline: float = 15.0) -> JobRow:
        """Waits until the job is in that state."""

        async def there() -> bool:
            return (await self.now(job)).state == state

        await eventually(there, deadline=deadline, message=f"the job is {state}")
        return await self.now(job)
