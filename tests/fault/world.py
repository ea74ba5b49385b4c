"""How does a fault test run a system whose every process reaches its servers through proxies of its own?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.system import System
from tests.fault.load import Stream
from tests.fault.proxy import Proxy
from tests.invariants import Ledger
from tests.processes import Process
from tests.support import free_port

CLAIM: Final = 2
"""Seconds that a node has for the rows that it has claimed, instead of 15: its peers take over that much sooner."""

LOSSLESS: Final = 40
"""Seconds for every saga's end after a fault that loses no message for good: less than the minute that a step has, for
after that the orchestrator sends its command again, which would hide a loss."""
NO_GIT: Final = {"ORCHESTRIX_GIT__PROVIDER": "none"}
"""For tests of many sagas: a repository costs several processes and waits for the disk."""


@dataclass
class Member:
    """A node or a worker, and its links. `url` is empty for a worker."""

    process: Process
    database: Proxy
    broker: Proxy
    url: str
    start: Callable[[], Process]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.returncode is None

    def restart(self) -> None:
        """Starts it again after its end, on the same port and links."""
        self.process = self.start()

    def heal(self) -> None:
        """Undoes all faults of its links."""
        self.database.heal()
        self.broker.heal()


class World:
    """Nodes and workers on one database and one broker."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.nodes: list[Member] = []
        self.workers: list[Member] = []
        self._effects = True

    @property
    def members(self) -> list[Member]:
        """All nodes and workers."""
        return [*self.nodes, *self.workers]

    @property
    def urls(self) -> list[str]:
        """The addresses of the nodes."""
        return [node.url for node in self.nodes]

    async def up(self, *, nodes: int = 1, workers: int = 1, env: Mapping[str, str] | None = None) -> None:
        """Starts so many of each, with the settings `env`, and waits until they are ready."""
        env = env or {}
        self._effects = "ORCHESTRIX_GIT__PROVIDER" not in env
        self.nodes += [self._node(env) for _ in range(nodes)]
        self.workers += [self._worker(env) for _ in range(workers)]
        await self.ready()

    async def ready(self, *, deadline: float = 40.0) -> None:
        """Waits until all nodes are ready and all workers serve."""
        await asyncio.gather(
            *(self.system.ready(node.url, deadline=deadline) for node in self.nodes),
            *(worker.process.wait_for_line("cmd.createGitRepo", deadline=deadline) for worker in self.workers),
        )

    def _node(self, env: Mapping[str, str]) -> Member:
        database, broker, settings = self._links(env)
        port = free_port()

        def start() -> Process:
            return self.system.node(port=port, **settings)[0]

        return Member(start(), database, broker, f"http://127.0.0.1:{port}", start)

    def _worker(self, env: Mapping[str, str]) -> Member:
        database, broker, settings = self._links(env)

        def start() -> Process:
            return self.system.worker(**settings)

        return Member(start(), database, broker, "", start)

    def _links(self, env: Mapping[str, str]) -> tuple[Proxy, Proxy, dict[str, str]]:
        database, broker = Proxy.to(self.system.database_url), Proxy.to(self.system.broker_url)
        settings = {
            "ORCHESTRIX_ORCHESTRATOR__CLAIM": str(CLAIM),
            **env,
            "ORCHESTRIX_DATABASE_URL": database.through(self.system.database_url),
            "ORCHESTRIX_BROKER_URL": broker.through(self.system.broker_url),
        }
        return database, broker, settings

    def stream(self, prefix: str, *, rate: float = 15.0, urls: Sequence[str] = ()) -> Stream:
        """Starts of apps, so many a second, at the nodes in turn."""
        return Stream(urls or self.urls, prefix, rate)

    async def sql(self, *statements: str) -> list[Any]:
        """Runs the statements on a connection of its own, past the proxies; the rows of the last one, if it has any."""
        engine = create_async_engine(self.system.database_url, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                for statement in statements:
                    result = await connection.execute(text(statement))
                return list(result.all()) if result.returns_rows else []
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def transaction(self, statement: str) -> AsyncIterator[None]:
        """Holds a transaction open that has done `statement`; rolled back at the end."""
        engine = create_async_engine(self.system.database_url, poolclass=NullPool)
        try:
            async with engine.connect() as connection:
                await connection.execute(text(statement))
                yield
        finally:
            await engine.dispose()

    async def a_deadline_passes(self) -> None:
        """Lets every live saga send its command again, as it would after the minute that its step has, without a try
        more."""
        await self.sql(
            "UPDATE apps SET wake_at = '2020-01-01 00:00:00', wake_reason = 'retry' WHERE wake_at IS NOT NULL"
        )

    async def completed(self, answered: Iterable[str] = ()) -> int:
        """How many apps are COMPLETED; of these names only, if any are given."""
        wanted = set(answered)
        ledger = await self.system.ledger()
        return sum(app.state == "COMPLETED" and (not wanted or app.name in wanted) for app in ledger.apps)

    async def all_well(self, *streams: Stream, deadline: float) -> Ledger:
        """Waits until every saga has ended, within `deadline` s, and checks that nothing is lost or done twice."""
        answered = [name for stream in streams for name in stream.answered]
        ledger = await self.system.all_ended(answered, deadline=deadline)
        ledger.check_completed(answered)
        for stream in streams:
            stream.check(ledger)
        if self._effects:
            self._check_effects(ledger)
        return ledger

    def _check_effects(self, ledger: Ledger) -> None:
        made = {path.stem for path in self.system.repos.glob("*.git")}
        assert made == {str(app.id) for app in ledger.apps}, "I5: each app has exactly its own repository"

    def close(self) -> None:
        """Ends the processes, then their links."""
        for member in self.members:
            member.process.kill9()
        for member in self.members:
            member.database.close()
            member.broker.close()
